"""gRPC over HTTP/2, the part about bytes: message framing, compression, timeouts and the text of a status.

Source: the gRPC-over-HTTP/2 protocol description and its compression document. Pure but for the reader, which holds the
message that is coming. Knows no connection and no inference.
"""

import zlib
from collections.abc import Callable, Sequence
from struct import Struct
from urllib.parse import quote

from halimede.tensors import Buffer
from halimede.transport.buffers import aligned

PREFIX = Struct(">BL")
"""Before each message: whether it is compressed, and its size."""

UNKNOWN, INVALID, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 2, 3, 4, 8, 12, 13
"""The codes of status that the transport gives by itself."""

LARGE_MESSAGE_BYTES = 1 << 16
"""Messages from this size on get a buffer with their tensors aligned; (de)compressing them leaves the event loop."""


class MessageFault(Exception):
    """A call that cannot go on: its status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class MessageReader:
    """Splits the body of a call into messages, in the order they come.

    `messages` are those that are whole, each with its compressed flag; the taker empties the list. `limit` is the most
    bytes of one. `allocate` makes the buffers of those that come in parts. `first_tensor` tells from
    the first bytes of a large message where to align it.
    """

    __slots__ = ("_allocate", "_buffer", "_filled", "_first_tensor", "_flag", "_limit", "_prefix", "messages")

    def __init__(
        self,
        limit: int,
        first_tensor: Callable[[Buffer], int] | None = None,
        allocate: Callable[[int, int], memoryview] = aligned,
    ) -> None:
        self._limit = limit
        self._allocate = allocate
        self._first_tensor = first_tensor
        self._prefix = b""
        self._flag = 0
        self._buffer: memoryview | None = None
        self._filled = 0
        self.messages: list[tuple[int, Buffer]] = []

    @property
    def is_between(self) -> bool:
        """Whether no message is half there."""
        return not self._prefix and self._buffer is None

    def feed(self, data: memoryview, most: int) -> int:
        """Takes a part of the body, copied, as far as where `most` messages are there; how much of it. Raises
        MessageFault."""
        at, end, messages = 0, len(data), self.messages
        while at < end and len(messages) < most:
            if self._buffer is None:
                at = self._begin(data, at)
                continue
            step = min(end - at, len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + step] = data[at : at + step]
            at += step
            self.filled(step)
        return at

    def room(self) -> memoryview | None:
        """Where the next bytes of the message under way belong."""
        return None if self._buffer is None else self._buffer[self._filled :]

    def filled(self, count: int) -> None:
        """So many bytes were put into what `room` gave."""
        buffer = self._buffer
        assert buffer is not None
        self._filled += count
        if self._filled == len(buffer):
            self._buffer = None
            self.messages.append((self._flag, buffer))

    def _begin(self, data: memoryview, at: int) -> int:
        """The next message begins at `at`; takes it if it is whole."""
        if self._prefix or len(data) - at < PREFIX.size:
            part = bytes(data[at : at + PREFIX.size - len(self._prefix)])
            self._prefix += part
            at += len(part)
            if len(self._prefix) < PREFIX.size:
                return at
            flag, size = PREFIX.unpack(self._prefix)
            self._prefix = b""
        else:
            flag, size = PREFIX.unpack_from(data, at)
            at += PREFIX.size
        if flag > 1:
            raise MessageFault(INTERNAL, "Invalid gRPC message flags")
        if size > self._limit:
            raise MessageFault(RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {self._limit})")
        if size <= len(data) - at and size < LARGE_MESSAGE_BYTES:
            self.messages.append((flag, bytes(data[at : at + size])))
            return int(at + size)
        self._flag, self._filled = flag, 0
        self._buffer = self._new_buffer(size, data[at:])
        return at

    def _new_buffer(self, size: int, start: memoryview) -> memoryview:
        """Only touched as data arrive: a client that announces much and sends little costs little."""
        offset = self._first_tensor(start) if self._first_tensor is not None and size >= LARGE_MESSAGE_BYTES else 0
        try:
            return self._allocate(size, offset)
        except MemoryError:
            raise MessageFault(RESOURCE_EXHAUSTED, f"no memory for a message of {size} bytes") from None


IDENTITY = "identity"
_WINDOW_BITS = {"gzip": 31, "deflate": 15}
ENCODINGS = (IDENTITY, "deflate", "gzip")

_LEVELS = {"none": (), "low": ("gzip", "deflate"), "medium": ("deflate", "gzip"), "high": ("deflate", "gzip")}
"""What gRPC chooses for a compression level among the encodings that the client takes (contract G36)."""


def answer_encoding(level: str, accepted: Sequence[str]) -> str:
    """The encoding of answers for a level and a client."""
    return next((encoding for encoding in _LEVELS[level] if encoding in accepted), IDENTITY)


def inflate(message: Buffer, encoding: str, limit: int) -> bytes:
    """The message as it was before compression. Raises MessageFault when it is malformed or over `limit` bytes."""
    engine = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        out = engine.decompress(message, limit + 1)
    except zlib.error:
        raise _not_inflated(encoding) from None
    except (MemoryError, OverflowError):
        raise MessageFault(RESOURCE_EXHAUSTED, "no memory for a decompressed message") from None
    if len(out) > limit:
        raise MessageFault(RESOURCE_EXHAUSTED, f"Decompressed message larger than max ({limit})")
    if not engine.eof or engine.unused_data:
        raise _not_inflated(encoding)
    return out


def _not_inflated(encoding: str) -> MessageFault:
    return MessageFault(INTERNAL, f"Unexpected error decompressing data for algorithm {encoding}")


def deflate(message: Sequence[Buffer], encoding: str) -> tuple[int, Sequence[Buffer]]:
    """What to send in place of the message, and its compressed flag: the message itself where that is no longer (as
    gRPC does)."""
    engine = zlib.compressobj(wbits=_WINDOW_BITS[encoding])
    parts = [engine.compress(part) for part in message]
    packed = b"".join([*parts, engine.flush()])
    return (1, (packed,)) if len(packed) < sum(map(len, message)) else (0, message)


_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


def timeout_seconds(text: bytes) -> float | None:
    """A `grpc-timeout` in seconds; None when it is malformed."""
    digits, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not digits.isdigit() or len(digits) > 8:
        return None
    return int(digits) * _UNITS[unit]


_PLAIN = "".join(chr(c) for c in range(0x20, 0x7F) if c != 0x25)


def percent_encoded(text: str) -> bytes:
    """A status text as the value of `grpc-message`."""
    return quote(text, safe=_PLAIN, errors="replace").encode()
