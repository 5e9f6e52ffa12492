"""Reads the few fields of a protobuf message that matter, straight from a mapped file: no message classes are needed,
and large fields, such as weights, are skipped. Pure, any thread."""

import mmap
from collections.abc import Iterator

View = memoryview | mmap.mmap
Range = tuple[int, int]
"""The beginning and the end of a message in its file."""

_FIXED = {1: 8, 5: 4}
"""Bytes of a field by its wire type."""


def find(view: View, within: Range, *numbers: int) -> Iterator[Range]:
    """Where the length-delimited fields with one of the numbers lie. Raises ValueError or IndexError for bytes that are
    no message."""
    return (value for _, value in fields(view, within, *numbers) if isinstance(value, tuple))


def fields(view: View, within: Range, *numbers: int) -> Iterator[tuple[int, Range | int]]:
    """The fields with one of the numbers, in order: the place of a length-delimited one, the value of a varint. Raises
    ValueError or IndexError for bytes that are no message."""
    at, end = within
    while at < end:
        tag, at = _varint(view, at)
        wire, number = tag & 7, tag >> 3
        if wire == 2:
            size, at = _varint(view, at)
            if at + size > end:
                raise ValueError("field reaches beyond its message")
            if number in numbers:
                yield number, (at, at + size)
            at += size
        elif wire == 0:
            value, at = _varint(view, at)
            if number in numbers:
                yield number, value
        elif wire in _FIXED:
            at += _FIXED[wire]
        else:
            raise ValueError(f"wire type {wire}")


def signed(value: int) -> int:
    """A varint as an int64 or int32."""
    return value - (1 << 64) if value >= 1 << 63 else value


def text(view: View, place: Range) -> str:
    return bytes(view[place[0] : place[1]]).decode()


def _varint(view: View, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint of more than 64 bits")
