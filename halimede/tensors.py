"""Datatypes, shapes, the framing of BYTES, and the two values that every other room passes on: Tensor and Memory.

Knows nothing of requests, models or protocols. Plain values, usable on any thread. `Memory.host()` is the only way to
the bytes of a tensor, so a tensor on a device is never copied by accident.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from time import sleep
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from halimede.errors import Internal, Invalid


@dataclass(frozen=True, slots=True, eq=False)
class DataType:
    """One element type of the protocol (H36, R49).

    name -- as on the wire ("FP32")
    config_name -- as in a model configuration ("TYPE_FP32")
    number -- the value of the protobuf enum
    size -- bytes of one element; 0 for BYTES, whose elements are framed
    numpy -- the dtype of arrays: uint16 for BF16 (its 16 bits), object for BYTES (elements are `bytes`)
    """

    name: str
    config_name: str
    number: int
    size: int
    numpy: np.dtype[Any]

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return datatype_named, (self.name,)


def _table() -> dict[str, DataType]:
    rows: list[tuple[str, int, str]] = [
        ("BOOL", 1, "?"),
        ("UINT8", 2, "u1"),
        ("UINT16", 3, "<u2"),
        ("UINT32", 4, "<u4"),
        ("UINT64", 5, "<u8"),
        ("INT8", 6, "i1"),
        ("INT16", 7, "<i2"),
        ("INT32", 8, "<i4"),
        ("INT64", 9, "<i8"),
        ("FP16", 10, "<f2"),
        ("FP32", 11, "<f4"),
        ("FP64", 12, "<f8"),
        ("BYTES", 13, "O"),
        ("BF16", 14, "<u2"),
    ]
    table = {}
    for name, number, code in rows:
        dtype: np.dtype[Any] = np.dtype(code)
        size = 0 if name == "BYTES" else dtype.itemsize
        table[name] = DataType(name, "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}", number, size, dtype)
    return table


DATATYPES = _table()
"""All datatypes, by their names on the wire."""


def datatype_named(name: str) -> DataType:
    """The datatype with this name on the wire; UNKNOWN_DATATYPE if there is none."""
    return DATATYPES.get(name, UNKNOWN_DATATYPE)


UNKNOWN_DATATYPE = DataType("<invalid>", "TYPE_INVALID", 0, 0, np.dtype("O"))
"""The datatype of a tensor whose datatype does not exist. The model's check refuses the request (H66)."""

BY_NUMBER = {d.number: d for d in DATATYPES.values()}

BOOL, UINT8, UINT16, UINT32, UINT64 = (DATATYPES[n] for n in ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64"))
INT8, INT16, INT32, INT64 = (DATATYPES[n] for n in ("INT8", "INT16", "INT32", "INT64"))
FP16, FP32, FP64, BYTES, BF16 = (DATATYPES[n] for n in ("FP16", "FP32", "FP64", "BYTES", "BF16"))

Buffer = bytes | bytearray | memoryview
Shape = tuple[int, ...]


def shape_text(shape: Iterable[int]) -> str:
    """A shape as the protocol's error texts write it: `[1,16]`."""
    return "[" + ",".join(map(str, shape)) + "]"


MAX_DIMS = 1024
"""Dimensions of an input. Their product takes time that grows with the square of their number. Beyond: 400 or
INVALID_ARGUMENT."""


def refuse_many_dims(name: str, dims: int) -> None:
    """Raises Invalid for an input with more than `MAX_DIMS` dimensions."""
    if dims > MAX_DIMS:
        raise Invalid(f"input '{name}' has {dims} dimensions; the largest number is {MAX_DIMS}")


class MemoryKind(Enum):
    """Where the bytes of a tensor are."""

    HOST = "host"
    PINNED = "pinned"
    SHARED = "shared"
    DEVICE = "device"


class Memory(Protocol):
    """Consecutive bytes, on the host or on a device.

    kind, device_id -- where they are; devices are numbered within their kind
    byte_size -- how many there are
    owner -- the object that keeps them alive. Memory is freed or reused when its owner is finalised, not when the reply
        is sent
    """

    @property
    def kind(self) -> MemoryKind: ...
    @property
    def device_id(self) -> int: ...
    @property
    def byte_size(self) -> int: ...
    @property
    def owner(self) -> object: ...

    def host(self) -> memoryview:
        """A flat view of the bytes (format 'B'). Raises Unsupported if the host cannot reach them."""
        ...


class Destination(Protocol):
    """Memory that a result is written to, such as a client's shared memory. Any thread."""

    @property
    def byte_size(self) -> int: ...

    def write(self, source: Memory) -> None:
        """Copies all of `source` to the beginning. Raises Error if the copy fails. The caller must check the size."""
        ...


class HostMemory:
    """Bytes in ordinary memory. Views the buffer without a copy, and keeps its owner alive."""

    __slots__ = ("byte_size", "view")
    kind: ClassVar[MemoryKind] = MemoryKind.HOST
    device_id: ClassVar[int] = 0

    def __init__(self, buffer: Buffer) -> None:
        self.view = view = memoryview(buffer)
        self.byte_size = view.nbytes

    @property
    def owner(self) -> object:
        return self.view.obj

    def host(self) -> memoryview:
        return self.view

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMemory, (bytes(self.view),)


class Framing(NamedTuple):
    """What a walk through the lengths of framed strings has found.

    `whole` strings are whole. `left` bytes follow them: 0 if all is well, less than 4 if a length is incomplete. Else
    `length` is the length of a string that is not whole.
    """

    whole: int
    left: int
    length: int


class FramedMemory(HostMemory):
    """Strings in ordinary memory whose lengths were checked already."""

    __slots__ = ("framing",)

    def __init__(self, buffer: Buffer, framing: Framing) -> None:
        super().__init__(buffer)
        self.framing = framing

    def __reduce__(self) -> tuple[Any, ...]:
        return FramedMemory, (bytes(self.view), self.framing)


class RegionReference(NamedTuple):
    """Memory in a client's shared-memory region, by the name of the region (H97).

    A front end passes it through the engine's port, and the engine replaces it with memory that can be read. `offset`
    and `byte_size` are below 2**64; nothing else is checked.
    """

    region: str
    offset: int
    byte_size: int

    @property
    def kind(self) -> MemoryKind:
        return MemoryKind.SHARED

    @property
    def device_id(self) -> int:
        return 0

    @property
    def owner(self) -> object:
        return None

    def host(self) -> memoryview:
        raise Internal(f"shared memory region '{self.region}' was not looked up")


class Tensor:
    """A named array. `shape` includes the batch dimension. `memory` has the elements in row-major order, little-endian.
    An element of BYTES is its length in 4 bytes, then its bytes (H41)."""

    __slots__ = ("datatype", "memory", "name", "shape")

    def __init__(self, name: str, datatype: DataType, shape: Shape, memory: Memory) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.memory = memory

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensor, (self.name, self.datatype, self.shape, self.memory)

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype}, {shape_text(self.shape)}, {self.memory.byte_size} bytes)"


SMALL_BYTES = 1 << 10
"""Up to this size a copy is faster than a view, because numpy needs time to export its memory."""


def array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """The tensor as an array of `tensor.shape`: a view of host memory; for BYTES a new object array of `bytes`.

    Raises Invalid if the memory does not have exactly the elements of the shape.
    """
    return _array_in(tensor, tensor.memory.host())


def aligned_array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """The tensor as an array like `array_of`, but aligned: a copy if the tensor is small or its memory is not aligned.

    A runtime reads an unaligned array slowly, and may add its elements in another order. Then the alignment, which
    depends on the length of the request's head, would change the result. Transports align large tensors, so a copy of a
    large one is rare.
    """
    view = tensor.memory.host()
    if view.nbytes <= SMALL_BYTES:
        return _array_in(tensor, view if tensor.datatype is BYTES else memoryview(bytearray(view)))
    array = _array_in(tensor, view)
    return array if array.flags.aligned else array.copy()


def _array_in(tensor: Tensor, view: memoryview) -> npt.NDArray[Any]:
    if tensor.datatype is BYTES:
        return _strings_in(view, prod(tensor.shape)).reshape(tensor.shape)
    if view.nbytes != prod(tensor.shape) * tensor.datatype.size:
        raise Invalid(f"tensor '{tensor.name}' has {view.nbytes} bytes, which do not fill {shape_text(tensor.shape)}")
    return np.ndarray(tensor.shape, tensor.datatype.numpy, view)


def _strings_in(view: memoryview, count: int) -> npt.NDArray[Any]:
    strings = np.empty(count, dtype=object)
    if count <= STRINGS_PER_TURN:
        strings[:] = split_bytes(view, count)
        return strings
    found = 0
    # Of many strings a list would be assigned without a break for other threads.
    for some in string_slices(view):
        begin, found = found, found + len(some)
        if found <= count:
            strings[begin:found] = some
    if found != count:
        raise _other_count(found, count)
    return strings


def _other_count(found: int, expected: int) -> Invalid:
    return Invalid(f"{found} strings where {expected} are expected")


def tensor_of(name: str, datatype: DataType, array: npt.NDArray[Any]) -> Tensor:
    """The array as a tensor, without a copy if it is contiguous and not small. BYTES takes an object array of
    `bytes` (or `str`).

    Raises Internal if the array's dtype is not `datatype.numpy`, or if an element of BYTES is of another type.
    """
    if array.dtype is not datatype.numpy and array.dtype != datatype.numpy:
        raise Internal(f"tensor '{name}' of type {datatype} needs an array of {datatype.numpy}, got {array.dtype}")
    if datatype is BYTES:
        try:
            joined = _join_array(array.reshape(-1))
        except TypeError:
            raise Internal(f"tensor '{name}' of type BYTES has an element that is neither bytes nor str") from None
        return Tensor(name, datatype, array.shape, HostMemory(joined))
    if array.nbytes <= SMALL_BYTES:
        return Tensor(name, datatype, array.shape, HostMemory(array.tobytes()))
    return Tensor(name, datatype, array.shape, HostMemory(np.ascontiguousarray(array).data.cast("B")))


_LENGTH = struct.Struct("<I")
_SHORT = 64
"""The largest mean size of a framed element, in bytes, for `are_short_strings`. If the elements are few and long, it is
faster to read each length."""


STRINGS_PER_TURN = 1 << 12
"""Strings that are read or written without a break. A compiled loop does not let other threads run by itself."""


BYTES_PER_TURN = 1 << 20
"""Bytes of strings that are read without a break."""


def join_bytes(elements: Sequence[bytes | str]) -> bytes:
    """The elements, framed: each as its length in 4 bytes, little-endian, then its bytes (`str` as UTF-8)."""
    if len(elements) <= STRINGS_PER_TURN:
        return _joined(elements)
    parts: list[bytes] = []
    # In slices, because the parts of an empty string take ten times as much memory as the string.
    for at in range(0, len(elements), STRINGS_PER_TURN):
        parts.append(_joined(elements[at : at + STRINGS_PER_TURN]))
        sleep(0)
    return b"".join(parts)


def _join_array(flat: npt.NDArray[Any]) -> bytes:
    """Does what `join_bytes` does, and makes no list of all elements."""
    if len(flat) <= STRINGS_PER_TURN:
        return _joined(flat.tolist())
    parts: list[bytes] = []
    for at in range(0, len(flat), STRINGS_PER_TURN):
        parts.append(_joined(flat[at : at + STRINGS_PER_TURN].tolist()))
        sleep(0)
    return b"".join(parts)


def _joined(elements: Sequence[bytes | str]) -> bytes:
    parts: list[bytes] = []
    for element in elements:
        raw = element.encode() if isinstance(element, str) else element
        parts += (_LENGTH.pack(len(raw)), raw)
    return b"".join(parts)


def are_short_strings(view: Buffer, count: int) -> bool:
    """Whether `view` certainly holds exactly `count` framed elements. If False, each length must be read to know.

    This takes a quarter of the time of reading each length. It finds all places with three zero bytes in a row, which
    are the upper bytes of a length below 256, and checks that each length leads to the next one. It also returns False
    for some valid elements: empty ones, those of 256 bytes or more, those with three zero bytes in a row, and those
    whose mean size is above `_SHORT`.
    """
    if not 4 * count < len(view) <= _SHORT * count:
        return False
    raw = np.frombuffer(view, np.uint8)
    zero = raw == 0
    starts = np.flatnonzero(zero[1:-2] & zero[2:-1] & zero[3:])
    if len(starts) != count or starts[0]:
        return False
    ends = starts + raw[starts] + 4
    return bool(ends[-1] == len(raw) and (ends[:-1] == starts[1:]).all())


def framing_of(view: Buffer, most: int = 2**63 - 1) -> Framing:
    """Walks through the lengths of framed strings, at most `most` of them. Lets other threads run meanwhile."""
    at, end, count, length_at = 0, len(view), 0, _LENGTH.unpack_from
    while at < end and count < most:
        start = at + 4
        if start > end:
            return Framing(count, end - at, 0)
        length: int = length_at(view, at)[0]
        if start + length > end:
            return Framing(count, end - at, length)
        at = start + length
        count += 1
        if not count % STRINGS_PER_TURN:
            sleep(0)
    return Framing(count, 0, 0)


def are_many(shape: Sequence[int]) -> bool:
    """Whether a shape has so many strings that their lengths are not checked on the event loop."""
    return len(shape) <= MAX_DIMS and prod(shape) > STRINGS_PER_TURN


def has_many_strings(tensor: Tensor) -> bool:
    """Whether the tensor has many strings in ordinary memory, whose lengths are not checked yet."""
    return tensor.datatype is BYTES and type(tensor.memory) is HostMemory and are_many(tensor.shape)


def frame_strings(tensor: Tensor) -> None:
    """Checks the lengths of the strings of a tensor in ordinary memory, for its later users. Any thread."""
    view = tensor.memory.host()
    tensor.memory = FramedMemory(view, framing_of(view))


def split_bytes(view: Buffer, expected: int) -> list[bytes]:
    """The elements of `view`, without their framing. Raises Invalid unless there are exactly `expected` elements, and
    the last one ends where the view ends."""
    elements: list[bytes] = []
    at = _split_some(view, 0, elements)
    while at < len(view):
        sleep(0)
        at = _split_some(view, at, elements)
    if len(elements) != expected:
        raise _other_count(len(elements), expected)
    return elements


def string_slices(view: Buffer) -> Iterator[list[bytes]]:
    """The elements of `view` in slices. Lets other threads run after each. Raises Invalid for a wrong length."""
    at = 0
    while at < len(view):
        elements: list[bytes] = []
        at = _split_some(view, at, elements)
        yield elements
        sleep(0)


def _split_some(view: Buffer, at: int, elements: list[bytes]) -> int:
    """Adds at most `STRINGS_PER_TURN` elements, beginning at `at`, and no further one after `BYTES_PER_TURN` bytes.
    Returns where the rest begins. Raises Invalid."""
    end, length_at = len(view), _LENGTH.unpack_from
    enough = min(end, at + BYTES_PER_TURN)
    for _ in range(STRINGS_PER_TURN):
        if at >= enough:
            break
        start = at + 4
        if start > end:
            raise Invalid(f"incomplete string length indicator: {end - at} bytes left")
        at = start + length_at(view, at)[0]
        if at > end:
            raise Invalid(f"incomplete string: {end - start} of {at - start} bytes")
        elements.append(bytes(view[start:at]))
    return at
