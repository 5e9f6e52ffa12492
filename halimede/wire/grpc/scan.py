"""Finds the parts of a ModelInferRequest message without parsing them, and the layouts of messages that repeat.

Pure functions on bytes. Knows protobuf's wire format and the field numbers of the message, and not what the parts mean.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from halimede.tensors import Buffer

V = TypeVar("V")


class MessageLayout(Generic[V]):
    """Where the id and the raw contents lie in messages of one length, and what is known of such messages.

    A message of the same length, with the same bytes in all other places, has the same tags and sizes at the same
    positions. So it need not be parsed again: only the id and the raw contents differ. `known` maps those other bytes
    to what they mean.
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
        """Returns the bytes of the message except the id and the raw contents."""
        key = bytes(message[self.first])
        for piece in self.rest:
            key += message[piece]
        return key


_ID_TAG, _PARAMETER_TAG, _RAW_INPUT_TAG = 0x1A, 0x22, 0x3A
_TAKEN_TAGS = (_ID_TAG, _PARAMETER_TAG, _RAW_INPUT_TAG)


class MessageScan(NamedTuple):
    """The top level of a message: the head, which clients repeat; the parameters, as a message of their own; and where
    the id and the raw contents lie."""

    head: bytes
    parameters: bytes
    id: slice | None
    raws: list[slice]


def scan_message(view: memoryview) -> MessageScan | None:
    """Scans a message. Returns None if it has anything but length-delimited fields with numbers below 16, which no
    client of the protocol sends. Raises IndexError if it is malformed."""
    at, end, kept = 0, len(view), 0
    pieces: list[memoryview] = []
    parameters: list[memoryview] = []
    raws: list[slice] = []
    request_id: slice | None = None
    while at < end:
        tag, start, stop = _field(view, at)
        # Wire type 2, and a tag of one byte.
        if tag & 0x87 != 2:
            return None
        # A field that is longer than the message.
        if stop > end:
            raise IndexError
        if tag in _TAKEN_TAGS:
            if tag == _RAW_INPUT_TAG:
                raws.append(slice(start, stop))
            elif tag == _ID_TAG:
                request_id = slice(start, stop)
            else:
                parameters.append(view[at:stop])
            # Fields in a row are copied as one piece.
            if kept < at:
                pieces.append(view[kept:at])
            kept = stop
        at = stop
    if kept < end:
        pieces.append(view[kept:end])
    return MessageScan(b"".join(pieces), b"".join(parameters), request_id, raws)


def raw_offset(start: Buffer) -> int:
    """Returns where the bytes of the first raw tensor begin in a ModelInferRequest whose first bytes are `start`, so
    that the transport can align a large message for it. Returns 0 if no raw tensor begins there."""
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
    """Returns tag, start and end of the contents of the length-delimited field at `at`. Raises IndexError beyond the
    end."""
    tag, size, start = view[at], view[at + 1], at + 2
    # Most lengths have one byte, for which a call would cost more than the rest.
    if size > 127:
        size, start = _varint(view, at + 1)
    return tag, start, start + size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Returns the number at `at`, and where it ends. Raises IndexError if it does not end."""
    value = shift = 0
    # A varint has at most ten bytes.
    while shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise IndexError
