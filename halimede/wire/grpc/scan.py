"""The top level of a ModelInferRequest message: where its parts lie, found without reading them.

Pure functions on bytes, and the layouts of messages that repeat. Knows protobuf's wire format and the numbers of the
message's fields, nothing of what the parts say.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from halimede.tensors import Buffer

V = TypeVar("V")


class MessageLayout(Generic[V]):
    """Where the id and the raw contents lie in messages of one length, and what is `known` of them by the rest.

    A message of this length with the same bytes in all other places has the same tags and sizes at the same positions,
    so it need not be read again: only the id and the raw contents differ.
    """

    __slots__ = ("first", "id", "known", "raws", "rest")

    def __init__(self, length: int, id: slice | None, raws: Sequence[slice]) -> None:
        holes = sorted([id, *raws] if id else raws, key=lambda hole: hole.start)
        starts, ends = [0, *(hole.stop for hole in holes)], [*(hole.start for hole in holes), length]
        self.first, *self.rest = map(slice, starts, ends)
        self.id = id
        self.raws = raws
        self.known: dict[bytes, V] = {}

    def key(self, message: Buffer) -> bytes:
        """All of the message but the id and the raw contents."""
        key = bytes(message[self.first])
        for piece in self.rest:
            key += message[piece]
        return key


_ID_TAG, _PARAMETER_TAG, _RAW_INPUT_TAG = 0x1A, 0x22, 0x3A
_TAKEN_TAGS = (_ID_TAG, _PARAMETER_TAG, _RAW_INPUT_TAG)


class MessageScan(NamedTuple):
    """The top level of a message: the head that clients repeat, the parameters as a message of their own, and where the
    id and the raw contents lie."""

    head: bytes
    parameters: bytes
    id: slice | None
    raws: list[slice]


def scan_message(view: memoryview) -> MessageScan | None:
    """None for a message with anything but length-delimited fields of numbers under 16: no client of the protocol sends
    one. Raises IndexError when it is malformed."""
    at, end, kept = 0, len(view), 0
    pieces: list[memoryview] = []
    parameters: list[memoryview] = []
    raws: list[slice] = []
    request_id: slice | None = None
    while at < end:
        tag, start, stop = _field(view, at)
        if tag & 0x87 != 2:
            return None
        if stop > end:
            raise IndexError
        if tag in _TAKEN_TAGS:
            if tag == _RAW_INPUT_TAG:
                raws.append(slice(start, stop))
            elif tag == _ID_TAG:
                request_id = slice(start, stop)
            else:
                parameters.append(view[at:stop])
            if kept < at:
                pieces.append(view[kept:at])
            kept = stop
        at = stop
    if kept < end:
        pieces.append(view[kept:end])
    return MessageScan(b"".join(pieces), b"".join(parameters), request_id, raws)


def raw_offset(start: Buffer) -> int:
    """Where the bytes of the first raw tensor begin in the ModelInferRequest whose first bytes are `start`, so that a
    transport can lay a large message out with that tensor on a boundary that runtimes like. 0 where no raw tensor
    begins within `start`, or it is no such message."""
    view, at = memoryview(start), 0
    try:
        while view[at] & 0x87 == 2:
            tag, begin, stop = _field(view, at)
            if tag == _RAW_INPUT_TAG:
                return begin
            at = stop
    except IndexError:
        pass
    return 0


def _field(view: memoryview, at: int) -> tuple[int, int, int]:
    """Tag, start and end of the contents of the length-delimited field at `at`. Raises IndexError beyond the end."""
    tag, size, start = view[at], view[at + 1], at + 2
    if size > 127:
        size, start = _varint(view, at + 1)
    return tag, start, start + size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """The number at `at` and where it ends. Raises IndexError when it does not end."""
    value = shift = 0
    while shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise IndexError
