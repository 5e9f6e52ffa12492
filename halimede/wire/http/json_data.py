"""Tensors as JSON: the `data` of an input to bytes, and the bytes of an output to `data` (H37 to H40).

The fast path converts a whole list at once, if every element has the right type. Otherwise the list is walked in order,
to raise Triton's error for the first wrong element. Pure. Any thread.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import prod
from struct import Struct, pack
from struct import error as struct_error
from time import sleep
from typing import Any, Final

import numpy as np
import orjson

from halimede.errors import Error, Internal, Invalid
from halimede.tensors import (
    BF16,
    BYTES,
    DATATYPES,
    FP16,
    Buffer,
    DataType,
    Shape,
    Tensor,
    join_bytes,
    shape_text,
    string_slices,
)
from halimede.wire.http import json
from halimede.wire.http.json_slices import JsonArray

INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1

_MAX_FORM_ELEMENTS: Final = 256
"""Up to this many elements it is faster to convert one by one than as an array."""
_MAX_KNOWN_FORMS: Final = 256
"""Number of forms that are remembered."""
_ELEMENTS_PER_SLICE: Final = 1 << 14
"""Numbers of an output that are written without a break."""
_YIELD_BYTES: Final = 1 << 14
"""Bytes of JSON after which other threads may run."""
_MAX_FORM_DIMS: Final = 32
"""Dimensions of a shape that is remembered, because a client may send any number."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """How elements of a datatype look in JSON: `types` that they may have, `accepts` for the rest of the rule, `words`
    for the error, and the `struct` code of the bytes."""

    code: str
    types: frozenset[type]
    accepts: Callable[[Any], bool]
    words: str


def _is_signed(value: Any) -> bool:
    return type(value) is int and value <= INT64_MAX


def _is_unsigned(value: Any) -> bool:
    return type(value) is int and value >= 0


def _kinds() -> dict[str, _Kind]:
    integer, number = frozenset({int}), frozenset({int, float})
    kinds = {"BOOL": _Kind("?", frozenset({bool}), lambda v: type(v) is bool, "non-boolean as boolean")}
    for code in "BHIQ":
        name = f"UINT{np.dtype(code).itemsize * 8}"
        kinds[name] = _Kind(code, integer, _is_unsigned, "non-unsigned-integer as unsigned-integer")
        kinds[name[1:]] = _Kind(code.lower(), integer, _is_signed, "non-signed-integer as signed-integer")
    for name, code in (("FP32", "f"), ("FP64", "d")):
        kinds[name] = _Kind(code, number, lambda v: type(v) in (int, float), "non-number as double")
    return kinds


_KINDS = {DATATYPES[name]: kind for name, kind in _kinds().items()}


class _Form:
    """What is known of tensors of one datatype and shape: the number of elements and bytes, the JSON types, and the
    conversions."""

    __slots__ = ("count", "floats", "pack", "size", "types", "unpack")

    def __init__(self, kind: _Kind, count: int) -> None:
        layout = Struct(f"<{count}{kind.code}")
        self.count = count
        self.floats = kind.code in "fd"
        self.size = layout.size
        self.types = kind.types
        self.pack = layout.pack
        self.unpack = layout.unpack


@lru_cache(maxsize=_MAX_KNOWN_FORMS)
def _form(datatype: DataType, shape: Shape) -> _Form | None:
    """Returns the form of numbers in a small shape that is not empty, else None."""
    kind = _KINDS.get(datatype)
    if kind is None or min(shape, default=0) < 1:
        return None
    count = prod(shape)
    return _Form(kind, count) if count <= _MAX_FORM_ELEMENTS else None


# From JSON.


def pack_data(name: str, datatype: DataType, shape: Shape, data: Any, limit: int = INT64_MAX) -> bytes:
    """Returns the bytes of the input `name`, whose JSON member is `data`, a list or a `JsonArray`. Nested or flat, only
    the number of elements matters.

    Raises Internal or Invalid with Triton's texts, and Invalid if the input has more than `limit` bytes (H17). The core
    counts strings (H70).
    """
    form = _form(datatype, shape) if len(shape) <= _MAX_FORM_DIMS else None
    if form is not None and type(data) is list and form.size <= limit:
        # Nested lists are joined only if the first element is a list.
        values = _flat(data) if data and type(data[0]) is list else data
        if len(values) == form.count and form.types.issuperset(map(type, values)):
            try:
                return form.pack(*values)
            except (struct_error, OverflowError):
                # A number does not fit into the datatype. The general way below handles it.
                pass
    count = _element_count(name, datatype, shape)
    if count == 0:
        return b""
    slices: Iterable[list[Any]]
    if isinstance(data, JsonArray):
        slices = data.slices()
    elif type(data) is list:
        slices = (data,)
    else:
        raise Internal("Unable to parse 'data': attempt to access JSON non-array as array")
    _check_size(name, count * datatype.size, limit)
    kind = _KINDS.get(datatype)
    if kind is not None:
        return _pack_numbers(kind, datatype, count, slices)
    if datatype is BYTES:
        return _pack_strings(name, count, slices, limit)
    if datatype is FP16 or datatype is BF16:
        raise Invalid(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input {name}"
        )
    raise Invalid(f"invalid datatype for input {name}")


def _check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise Invalid(
            f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of {limit} "
            "bytes. Use --http-max-input-size to increase the limit."
        )


def _element_count(name: str, datatype: DataType, shape: Shape) -> int:
    """Returns the number of elements. Raises Invalid for a negative dimension or an overflow (H40)."""
    if shape and min(shape) < 0:
        raise Invalid(
            f"invalid shape for input '{name}': shape {shape_text(shape)} contains one or more invalid dimensions"
        )
    count = prod(shape)
    if count > INT64_MAX:
        raise Invalid(
            f"invalid shape for input '{name}': shape {shape_text(shape)} causes total element count to exceed "
            f"maximum size of {INT64_MAX}"
        )
    if count * datatype.size > INT64_MAX:
        raise Invalid(
            f"byte size overflow for input '{name}': element count ({count}) * data type size ({datatype.size}) "
            f"exceeds maximum allowed size ({INT64_MAX})"
        )
    return count


def _pack_numbers(kind: _Kind, datatype: DataType, count: int, slices: Iterable[list[Any]]) -> bytes:
    parts: list[bytes] = []
    left = count
    for data in slices:
        packed = _pack_some(kind, datatype, left, data)
        parts.append(packed)
        left -= len(packed) // datatype.size
    if left:
        raise Internal("Failed to parse 'data' field: shape does not match true shape")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _pack_some(kind: _Kind, datatype: DataType, count: int, data: list[Any]) -> bytes:
    """Packs the elements of a slice, at most `count`."""
    values = _flat(data)
    if len(values) > count or not kind.types.issuperset(map(type, values)):
        values = _walk(kind, count, data)
    try:
        return pack(f"<{len(values)}{kind.code}", *values)
    except (struct_error, OverflowError):
        return _pack_wide(kind, datatype, values, count, data)


def _pack_wide(kind: _Kind, datatype: DataType, values: list[Any], count: int, data: list[Any]) -> bytes:
    """Packs numbers that do not fit into the datatype. Integers lose their high bits, floats become infinite (H38)."""
    if kind.code in "fd":
        with np.errstate(over="ignore"):
            return np.array(values, np.float64).astype(datatype.numpy).tobytes()
    # A number that the kind does not accept is an error. One that only the datatype cannot hold is truncated.
    if not all(map(kind.accepts, values)):
        _walk(kind, count, data)
    # `struct` codes of signed integers are lower case.
    wide = np.int64 if kind.code.islower() else np.uint64
    return np.array(values, wide).astype(datatype.numpy).tobytes()


def _flat(data: list[Any]) -> list[Any]:
    """Returns the elements of evenly nested lists. Lists that are nested unevenly or too deep stay as they are."""
    for _ in range(json.NESTING_LIMIT - 2):
        if not data or type(data[0]) is not list or set(map(type, data)) != {list}:
            break
        data = list(chain.from_iterable(data))
    return data


def _walk(kind: _Kind, count: int, data: list[Any]) -> list[Any]:
    """Returns the elements in order. Raises Triton's error for the first wrong one, or for more than `count` (H18,
    H37)."""
    found: list[Any] = []
    for value in _elements(data, f"Unable to parse 'data': {json.NESTING_TEXT}"):
        if len(found) == count:
            raise Internal("Unable to parse 'data': Shape does not match true shape of 'data' field")
        if not kind.accepts(value):
            raise Internal(f"Unable to parse 'data': attempt to access JSON {kind.words}")
        found.append(value)
    return found


def _pack_strings(name: str, count: int, slices: Iterable[list[Any]], limit: int) -> bytes:
    parts: list[bytes] = []
    size = found = 0
    for data in slices:
        elements = _flat(data)
        if not set(map(type, elements)) <= {str}:
            elements = list(_elements(data, json.NESTING_TEXT))
            if not set(map(type, elements)) <= {str}:
                raise Internal("Unable to parse JSON bytes array: attempt to access JSON non-string as string")
        packed = join_bytes([json.encode(element) for element in elements])
        size += len(packed)
        found += len(elements)
        # Beyond the limit only the size matters, which the error tells.
        if size <= limit:
            parts.append(packed)
        # The core refuses a wrong number. One more than the shape says is enough for that.
        if found > count:
            break
    _check_size(name, size, limit)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _elements(data: list[Any], too_deep: str) -> Iterator[Any]:
    """Yields the elements of lists that are nested in any way, in order. Raises Invalid with `too_deep` beyond the
    limit (H18)."""
    levels = [iter(data)]
    while levels:
        for value in levels[-1]:
            if len(levels) >= json.NESTING_LIMIT:
                raise Invalid(too_deep)
            if type(value) is list:
                levels.append(iter(value))
                break
            yield value
        else:
            levels.pop()


# To JSON.


_MOST_TEXT: Final = {"BOOL": 6, "UINT8": 4, "INT8": 5, "INT16": 4, "FP32": 7, "FP64": 4}
"""The most bytes of JSON for each byte of a tensor, with the comma."""
_MOST_OTHER_TEXT: Final = 3


def text_bytes_of(tensor: Tensor) -> int:
    """Returns how many bytes of JSON an output becomes at most; for strings, if they have no escapes."""
    each = 1 if tensor.datatype is BYTES else _MOST_TEXT.get(tensor.datatype.name, _MOST_OTHER_TEXT)
    return each * tensor.memory.byte_size


def uncounted(size: int) -> None:
    """Takes the sizes of pieces that need not be counted."""


def write_data(tensor: Tensor, made: Callable[[int], None] = uncounted) -> bytes:
    """Returns the `data` array of an output, always flat. Raises Invalid for FP16 and BF16 (H39), and Internal if the
    bytes do not fill the shape."""
    datatype = tensor.datatype
    view: memoryview
    form = _form(datatype, tensor.shape) if len(tensor.shape) <= _MAX_FORM_DIMS else None
    if form is not None:
        view = tensor.memory.host()
        # A model may return a tensor of a wrong size. The general way raises the error.
        if view.nbytes == form.size:
            values = form.unpack(view)
            return json.write_doubles(values) if form.floats else orjson.dumps(values)
    return b"".join(write_slices(tensor, made))


def write_slices(tensor: Tensor, made: Callable[[int], None] = uncounted) -> list[Buffer]:
    """Returns what `write_data` returns, in parts. Lets other threads run while it writes a large output. Calls `made`
    with the size of each part."""
    kind = _KINDS.get(tensor.datatype)
    parts: list[Buffer] = []
    for part in _string_slices(tensor) if kind is None else _number_slices(tensor, kind):
        parts.append(part)
        made(len(part))
        if len(part) >= _YIELD_BYTES:
            sleep(0)
    # An empty output has no slices.
    if not parts:
        return [b"[]"]
    # The first slice has a comma before it too.
    parts[0] = b"[" + bytes(parts[0])[1:]
    parts.append(b"]")
    return parts


def _number_slices(tensor: Tensor, kind: _Kind) -> Iterator[Buffer]:
    """Yields the elements of an output in slices, with a comma before each."""
    datatype = tensor.datatype
    view = tensor.memory.host()
    if view.nbytes != prod(tensor.shape) * datatype.size:
        raise _unfilled(tensor)
    step = _ELEMENTS_PER_SLICE * datatype.size
    for at in range(0, view.nbytes, step):
        piece = view[at : at + step]
        yield b","
        yield memoryview(_written_numbers(piece, kind, datatype))[1:-1]


def _written_numbers(piece: memoryview, kind: _Kind, datatype: DataType) -> bytes:
    if kind.code not in "fd":
        return orjson.dumps(piece.cast(kind.code).tolist())  # type: ignore[call-overload]  # the code is one of those
    # A signalling NaN becomes a quiet one, which numpy would report.
    with np.errstate(invalid="ignore"):
        wide = np.frombuffer(piece, datatype.numpy).astype(np.float64)
    return json.write_doubles(wide)


def _string_slices(tensor: Tensor) -> Iterator[Buffer]:
    """Yields the strings of an output in slices, with a comma before each."""
    if tensor.datatype is not BYTES:
        raise Invalid(
            f"sending {tensor.datatype} data via JSON is not supported. Please use the binary data format for output"
        )
    view, expected, found = tensor.memory.host(), prod(tensor.shape), 0
    try:
        for elements in string_slices(view):
            found += len(elements)
            for some in _short_of(elements):
                if len(some) > 1 or len(some[0]) <= json.LONG_BYTES:
                    yield b","
                    yield memoryview(json.write_strings(some))[1:-1]
                else:
                    yield b',"'
                    yield from json.escaped_slices(some[0])
                    yield b'"'
    except Invalid:
        raise _unfilled(tensor) from None
    if found != expected:
        raise _unfilled(tensor)


def _short_of(elements: list[bytes]) -> Iterator[list[bytes]]:
    """Yields strings in groups of at most `LONG_BYTES`. A longer one is a group of its own.

    An answer in millions of parts would not be sent: the transport makes one buffer of each, and closes the connection.
    """
    begin = size = 0
    for at, element in enumerate(elements):
        size += len(element)
        if size > json.LONG_BYTES and at > begin:
            yield elements[begin:at]
            begin, size = at, len(element)
    if elements:
        yield elements[begin:]


def _unfilled(tensor: Tensor) -> Error:
    return Internal(f"output tensor shape does not match size of output for '{tensor.name}'")
