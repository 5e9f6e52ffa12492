"""Finds the parts of a ModelInferRequest message without parsing them, and the layouts of messages that repeat.

Pure functions on bytes. Knows protobuf's wire format and the field numbers of the message, and not what the parts mean.
"""

from collections.abc import Iterator, Sequence
from time import sleep
from typing import Final, Generic, NamedTuple, TypeVar

from halimede.errors import Invalid
from halimede.tensors import Buffer

V = TypeVar("V")

MAX_FIELDS: Final = 100_000
"""Inputs, outputs, parameters and raw contents of a gRPC inference, with the fields within them. Beyond:
INVALID_ARGUMENT."""
MAX_SCANNED_FIELDS: Final = 1024
"""Fields of a message that `scan_message` reads, which takes less than a millisecond."""
MAX_HEAD_BYTES: Final = 1 << 15
"""Bytes of a message, besides the id and the raw contents, that `scan_message` takes."""


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
    """Scans a message. Returns None if that takes long, or if it has anything but length-delimited fields with numbers
    below 16, which no client of the protocol sends. Raises IndexError if it is malformed."""
    at, end, kept = 0, len(view), 0
    pieces: list[memoryview] = []
    parameters: list[memoryview] = []
    raws: list[slice] = []
    request_id: slice | None = None
    for _ in range(MAX_SCANNED_FIELDS):
        if at >= end:
            break
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
    # A client can repeat an empty field ten million times in a message that takes a few kB when it is compressed.
    if at < end:
        return None
    if kept < end:
        pieces.append(view[kept:end])
    # Typed contents are data. Reading them takes as long as they are.
    if end > MAX_HEAD_BYTES and sum(map(len, pieces)) + sum(map(len, parameters)) > MAX_HEAD_BYTES:
        return None
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


class FieldReader:
    """Reads the fields of a message and of the messages within it, at most `most` of them. Lets other threads run while
    it reads."""

    FIELDS_PER_TURN: Final = 512
    """Fields between two moments at which other threads may run."""

    def __init__(self, view: memoryview, most: int, text: str) -> None:
        """`text` is the error for a message with more fields."""
        self._view = view
        self._left = most
        self._text = text

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yields where each field begins, its tag, and where its contents start and stop. Leaves out groups, which are
        fields that the protocol does not have. Raises IndexError for a malformed message, and Invalid for one with too
        many fields."""
        view = self._view
        groups: list[int] = []
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise Invalid(self._text)
            # A thread that never waits gives the interpreter away only after half a millisecond, and takes it back.
            if not self._left % self.FIELDS_PER_TURN:
                sleep(0)
            begin, tag, at = at, view[at], at + 1
            if tag > 127:
                tag, at = _varint(view, begin)
            # A tag has 32 bits in at most five bytes, and no field has the number 0.
            if tag < 8 or tag >> 32 or at - begin > 5:
                raise IndexError
            if tag & 7 == _GROUP_START:
                groups.append(tag >> 3)
                if len(groups) > MAX_GROUP_DEPTH:
                    raise IndexError
                continue
            if tag & 7 == _GROUP_END:
                if not groups or groups.pop() != tag >> 3:
                    raise IndexError
                continue
            start, at = self._contents(tag & 7, at)
            if at > end:
                raise IndexError
            if not groups:
                yield begin, tag, start, at
        if groups:
            raise IndexError

    def _contents(self, wire_type: int, at: int) -> tuple[int, int]:
        """Returns where the contents at `at` start and stop."""
        if wire_type == 2:
            size, start = _varint(self._view, at)
            return start, start + size
        if wire_type == 0:
            return at, _varint(self._view, at)[1]
        if wire_type in _FIXED_SIZES:
            return at, at + _FIXED_SIZES[wire_type]
        raise IndexError


_GROUP_START: Final = 3
_GROUP_END: Final = 4
"""The wire types at both ends of a group."""

MAX_GROUP_DEPTH: Final = 100
"""Groups within groups. Protobuf has the same limit."""

_FIXED_SIZES = {1: 8, 5: 4}
"""The sizes of the wire types of fixed size."""
