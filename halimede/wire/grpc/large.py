"""ModelInferRequest messages that are too large for the event loop: many fields, or much typed contents.

protobuf would make an object of each element, and hold the interpreter meanwhile. So the elements are counted before
they take memory, typed contents become bytes in slices, and other threads run in between. Pure. Any thread. Raises
Internal for a malformed message, and Invalid for one that is beyond a limit.
"""

from collections.abc import Iterator
from time import sleep
from typing import Final

import numpy as np
import numpy.typing as npt

from halimede.errors import Internal, Invalid
from halimede.tensors import MAX_DIMS
from halimede.wire.grpc.scan import MAX_FIELDS, FieldReader

MAX_LARGE_HEAD_BYTES: Final = 1 << 24
"""Bytes of a gRPC inference without the contents of its tensors. Beyond: INVALID_ARGUMENT."""
MAX_TYPED_STRINGS: Final = 1_000_000
"""Elements of the `bytes_contents` of a gRPC inference. Beyond: INVALID_ARGUMENT."""

_SLICE_BYTES: Final = 1 << 15
"""Bytes of typed contents that are converted without a break."""
_PARTS_PER_TURN: Final = 1 << 13
"""Lengths and strings that are joined without a break."""

_INPUTS, _OUTPUTS, _PARAMETERS, _RAW = 0x2A, 0x32, 0x22, 0x3A
_HEAD: Final = frozenset((0x0A, 0x12, 0x1A, _PARAMETERS, _OUTPUTS))
"""The tags of the other fields: model, version, id, and those above."""
_INPUT_SHAPE, _INPUT_PARAMETERS, _INPUT_CONTENTS, _OUTPUT_PARAMETERS = 0x1A, 0x22, 0x2A, 0x12
_LONGEST_VARINT: Final = 10
"""Bytes of a number at most."""
_PARAMETER_VALUE = 0x12
_NO_CONTENTS: Final = b"\x2a\x00"
"""Typed contents without elements. They count as given."""


class TypedValues:
    """The numbers of one kind of typed contents, as they stand in the message."""

    __slots__ = ("_packed",)

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def converted(self, code: str, datatype: npt.DTypeLike) -> bytes:
        """Returns the numbers as `datatype`. `code` is numpy's code of the kind. Integers lose their high bits, as by a
        C cast. Raises Internal if they are malformed."""
        if code in ("<f4", "<f8"):
            if len(self._packed) % int(code[2]):
                raise _malformed()
            # A view of the same bytes.
            return self._packed
        parts = []
        for values in _varints(self._packed):
            parts.append((values != 0 if code == "?" else values).astype(datatype).tobytes())
            sleep(0)
        return b"".join(parts)


def _varints(packed: bytes) -> Iterator[npt.NDArray[np.uint64]]:
    """Yields the numbers of packed varints, in slices."""
    data = np.frombuffer(packed, np.uint8)
    if len(data) and data[-1] > 0x7F:
        raise _malformed()
    at = 0
    while at < len(data):
        ends = np.flatnonzero(data[at : at + _SLICE_BYTES] < 0x80)
        if not len(ends):
            raise _malformed()
        starts = np.concatenate(([0], ends[:-1] + 1))
        lengths = ends - starts + 1
        longest = int(lengths.max())
        if longest > _LONGEST_VARINT:
            raise _malformed()
        values = np.zeros(len(ends), np.uint64)
        for place in range(longest):
            longer = lengths > place
            bits = data[at + starts[longer] + place].astype(np.uint64) & np.uint64(0x7F)
            values[longer] |= bits << np.uint64(7 * place)
        yield values
        at += int(ends[-1]) + 1


class TypedContents:
    """The typed contents of one input. `values` has numbers, and framed strings, by the names of the fields of
    `InferTensorContents`."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: dict[str, list[bytes | memoryview]] = {}

    def values(self, field: str) -> TypedValues | bytes | None:
        chunks = self._chunks.get(field)
        if not chunks:
            return None
        joined = b"".join(chunks)
        return joined if field == _STRINGS_FIELD else TypedValues(joined)

    def add(self, field: str, chunk: bytes | memoryview) -> None:
        """Adds packed numbers, one number that is not packed (its bytes are the same), or framed strings."""
        if len(chunk):
            self._chunks.setdefault(field, []).append(chunk)


_NUMBERS: Final = {
    tag: field
    for number, single, field in (
        (1, 0, "bool_contents"),
        (2, 0, "int_contents"),
        (3, 0, "int64_contents"),
        (4, 0, "uint_contents"),
        (5, 0, "uint64_contents"),
        (6, 5, "fp32_contents"),
        (7, 1, "fp64_contents"),
    )
    for tag in (number << 3 | 2, number << 3 | single)
}
"""The fields of numbers by their tags: packed, and each number for itself."""
_STRINGS_FIELD: Final = "bytes_contents"
_STRINGS: Final = 0x42


class LargeMessage:
    """The parts of a message.

    `head` is a ModelInferRequest without inputs and raw contents. `inputs` are messages without the elements of typed
    contents. `contents` are those, by the index of the input. `raws` are views of the message.
    """

    __slots__ = ("_fields", "_head", "_size", "_strings", "_view", "contents", "inputs", "raws")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._fields = FieldReader(
            view, MAX_FIELDS, f"the request has more than {MAX_FIELDS} inputs, outputs, parameters and raw contents"
        )
        self._strings = FieldReader(
            view,
            MAX_TYPED_STRINGS,
            f"the request has more than {MAX_TYPED_STRINGS} elements in 'bytes_contents'. Use raw_input_contents.",
        )
        self._head: list[memoryview] = []
        self._size = 0
        self.inputs: list[bytes] = []
        self.raws: list[memoryview] = []
        self.contents: dict[int, TypedContents] = {}
        try:
            self._read()
        except IndexError:
            raise _malformed() from None

    @property
    def head(self) -> bytes:
        return b"".join(self._head)

    def _read(self) -> None:
        for begin, tag, start, stop in self._fields.fields(0, len(self._view)):
            if tag == _RAW:
                self.raws.append(self._view[start:stop])
            elif tag == _INPUTS:
                self._read_input(start, stop)
            # Unknown fields are left out, as protobuf does.
            elif tag in _HEAD:
                if tag == _PARAMETERS:
                    self._count_parameter(start, stop)
                elif tag == _OUTPUTS:
                    self._count_output(start, stop)
                self._take(stop - begin)
                self._head.append(self._view[begin:stop])

    def _take(self, size: int) -> None:
        self._size += size
        if self._size > MAX_LARGE_HEAD_BYTES:
            raise Invalid(f"the request has more than {MAX_LARGE_HEAD_BYTES} bytes besides the contents of its tensors")

    def _read_input(self, start: int, stop: int) -> None:
        kept: list[bytes | memoryview] = []
        index, shape_bytes = len(self.inputs), 0
        for begin, tag, at, end in self._fields.fields(start, stop):
            if tag == _INPUT_CONTENTS:
                if index not in self.contents:
                    self.contents[index] = TypedContents()
                    kept.append(_NO_CONTENTS)
                self._read_contents(self.contents[index], at, end)
                continue
            if tag == _INPUT_PARAMETERS:
                self._count_parameter(at, end)
            elif tag == _INPUT_SHAPE:
                # protobuf makes a number of each byte, and holds the interpreter meanwhile.
                shape_bytes += end - at
                if shape_bytes > MAX_DIMS * _LONGEST_VARINT:
                    raise Invalid(f"an input has more than {MAX_DIMS} dimensions")
            self._take(end - begin)
            kept.append(self._view[begin:end])
        self.inputs.append(b"".join(kept))

    def _read_contents(self, contents: TypedContents, start: int, stop: int) -> None:
        parts: list[bytes | memoryview] = []
        for _, tag, at, end in self._strings.fields(start, stop):
            if tag == _STRINGS:
                parts += ((end - at).to_bytes(4, "little"), self._view[at:end])
                # The parts of a string take ten times as much memory as an empty string itself.
                if len(parts) > _PARTS_PER_TURN:
                    contents.add(_STRINGS_FIELD, b"".join(parts))
                    parts.clear()
            elif tag in _NUMBERS:
                contents.add(_NUMBERS[tag], self._view[at:end])
        contents.add(_STRINGS_FIELD, b"".join(parts))

    def _count_output(self, start: int, stop: int) -> None:
        for _, tag, at, end in self._fields.fields(start, stop):
            if tag == _OUTPUT_PARAMETERS:
                self._count_parameter(at, end)

    def _count_parameter(self, start: int, stop: int) -> None:
        """Counts the fields of a parameter, which are its name and its value, and those of its value."""
        for _, tag, at, end in self._fields.fields(start, stop):
            if tag == _PARAMETER_VALUE:
                for _ in self._fields.fields(at, end):
                    pass


def _malformed() -> Internal:
    return Internal("Unable to parse request")
