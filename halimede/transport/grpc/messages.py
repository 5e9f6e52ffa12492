"""Message framing, compression, timeouts, and the text of a status, as gRPC over HTTP/2 defines them.

Source: the gRPC-over-HTTP/2 protocol description and its compression document. Pure except for the reader, which holds
the message that is being received. Knows no connection and no inference.
"""

import zlib
from collections.abc import Callable, Sequence
from struct import Struct
from urllib.parse import quote

from halimede.tensors import Buffer
from halimede.transport.buffered_bytes import ConnectionBytes
from halimede.transport.buffers import MIN_REUSED_BYTES, Buffers

PREFIX = Struct(">BL")
"""The head of a message: whether it is compressed, and its size in bytes."""

UNKNOWN, INVALID, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 2, 3, 4, 8, 12, 13, 14
"""The status codes that the transport itself gives."""

PAGE_BYTES = 1 << 12
"""The memory that the first byte of a message takes."""
LARGE_MESSAGE_BYTES = 1 << 16
"""Messages of at least this size get an aligned buffer, and are compressed and decompressed off the event loop."""


class MessageFault(Exception):
    """Ends a call with a status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class MessageReader:
    """Splits the body of a call into messages, in order.

    `messages` are the complete ones, each with its compressed flag; the caller empties the list. `limit` is the most
    bytes of one message. `buffers` lends the buffers of messages that come in parts, and `account` counts the bytes in
    them. `first_tensor` tells from the first bytes of a large message where to align it.
    """

    __slots__ = (
        "_account",
        "_buffer",
        "_buffers",
        "_filled",
        "_first_tensor",
        "_flag",
        "_limit",
        "_prefix",
        "messages",
    )

    def __init__(
        self,
        limit: int,
        first_tensor: Callable[[Buffer], int] | None = None,
        buffers: Buffers | None = None,
        account: ConnectionBytes | None = None,
    ) -> None:
        self._limit = limit
        self._buffers = buffers or Buffers()
        self._account = account or ConnectionBytes(self._buffers.buffered)
        self._first_tensor = first_tensor
        self._prefix = b""
        self._flag = 0
        self._buffer: memoryview | None = None
        self._filled = 0
        self.messages: list[tuple[int, Buffer]] = []

    @property
    def is_between(self) -> bool:
        """Whether no message is incomplete."""
        return not self._prefix and self._buffer is None

    @property
    def partial_bytes(self) -> int | None:
        """How much of the incomplete message has arrived, or None if there is none."""
        return None if self.is_between else len(self._prefix) + self._filled

    @property
    def small_bytes(self) -> int:
        """The memory of the small messages, the incomplete one included. They are not counted as they arrive."""
        size = sum([len(message) for _, message in self.messages if len(message) < MIN_REUSED_BYTES])
        if self._buffer is not None and len(self._buffer) < MIN_REUSED_BYTES:
            size += min(len(self._buffer), self._filled + PAGE_BYTES)
        return size

    def feed(self, data: memoryview, most: int) -> int:
        """Copies a part of the body until `most` messages are complete. Returns how much was taken. Raises
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
        """Returns a buffer for the next bytes of the incomplete message."""
        return None if self._buffer is None else self._buffer[self._filled :]

    def filled(self, count: int) -> None:
        """Tells that `count` bytes were put into the buffer that `room` returned."""
        buffer = self._buffer
        assert buffer is not None
        self._filled += count
        self._buffers.arrived(buffer, count, self._account)
        if self._filled == len(buffer):
            self._buffer = None
            self._filled = 0
            self.messages.append((self._flag, buffer))

    def _begin(self, data: memoryview, at: int) -> int:
        """Begins the message at `at`, and takes it if it is complete. Returns where the rest begins."""
        # The head of a message may be split between frames at any byte.
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
        # Only the lowest bit of the flag has a meaning.
        if flag > 1:
            raise MessageFault(INTERNAL, "Invalid gRPC message flags")
        if size > self._limit:
            raise MessageFault(RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {self._limit})")
        # A small complete message: one copy, and no buffer to fill.
        if size <= len(data) - at and size < LARGE_MESSAGE_BYTES:
            self.messages.append((flag, bytes(data[at : at + size])))
            return int(at + size)
        self._flag, self._filled = flag, 0
        self._buffer = self._new_buffer(size, data[at:])
        return at

    def _new_buffer(self, size: int, start: memoryview) -> memoryview:
        """Returns a buffer for a message. Its pages are touched only as data arrive, so a client that announces much
        and sends little costs little."""
        account = self._account
        if text := account.too_large(size):
            raise MessageFault(RESOURCE_EXHAUSTED, text)
        if size >= LARGE_MESSAGE_BYTES and account.seems_full and account.is_full():
            raise MessageFault(UNAVAILABLE, account.complaint)
        offset = self._first_tensor(start) if self._first_tensor is not None and size >= LARGE_MESSAGE_BYTES else 0
        try:
            return self._buffers.aligned(size, offset)
        except MemoryError:
            raise MessageFault(RESOURCE_EXHAUSTED, f"no memory for a message of {size} bytes") from None


IDENTITY = "identity"
_WINDOW_BITS = {"gzip": 31, "deflate": 15}
ENCODINGS = (IDENTITY, "deflate", "gzip")

_LEVELS = {"none": (), "low": ("gzip", "deflate"), "medium": ("deflate", "gzip"), "high": ("deflate", "gzip")}
"""The encodings that gRPC chooses for a compression level, in order of preference (G36)."""


def answer_encoding(level: str, accepted: Sequence[str]) -> str:
    """Returns the encoding of answers for a level and the encodings that a client accepts."""
    return next((encoding for encoding in _LEVELS[level] if encoding in accepted), IDENTITY)


PIECE_BYTES = 1 << 13
"""Bytes of a message that are decompressed at once, to at most a thousand times as many."""
FREE_INFLATED_BYTES = 1 << 28
"""Size that any compressed gRPC message may have after decompression."""
MAX_INFLATED_RATIO = 100
"""Size of a gRPC message of more than 256 MiB after decompression, in sizes of the compressed one. Beyond:
RESOURCE_EXHAUSTED."""


def inflate(message: Buffer, encoding: str, limit: int) -> Buffer:
    """Returns the decompressed message. Raises MessageFault if it is malformed or larger than `limit` bytes. Lets other
    threads run meanwhile."""
    # A tensor of zeros shrinks a thousandfold, so a small message may have any ratio.
    limit = min(limit, max(FREE_INFLATED_BYTES, MAX_INFLATED_RATIO * len(message)))
    engine = zlib.decompressobj(_WINDOW_BITS[encoding])
    view, at = memoryview(message), 0
    # zlib would join large parts at the end, which holds the interpreter for long. This grows in place.
    out = bytearray()
    try:
        # One byte above the limit tells that there is more. The rest is not decompressed.
        while at < len(view) and len(out) <= limit and not engine.eof:
            out += engine.decompress(view[at : at + PIECE_BYTES], limit + 1 - len(out))
            at += PIECE_BYTES
    except zlib.error:
        raise _not_inflated(encoding) from None
    except (MemoryError, OverflowError):
        raise MessageFault(RESOURCE_EXHAUSTED, "no memory for a decompressed message") from None
    if len(out) > limit:
        raise MessageFault(RESOURCE_EXHAUSTED, f"Decompressed message larger than max ({limit})")
    # A truncated stream, or bytes after its end.
    if not engine.eof or engine.unused_data or at < len(view):
        raise _not_inflated(encoding)
    return out if len(out) >= LARGE_MESSAGE_BYTES else bytes(out)


def _not_inflated(encoding: str) -> MessageFault:
    return MessageFault(INTERNAL, f"Unexpected error decompressing data for algorithm {encoding}")


def deflate(message: Sequence[Buffer], encoding: str) -> tuple[int, Sequence[Buffer]]:
    """Returns the compressed flag, and what to send: the message itself if compression does not make it smaller (gRPC's
    rule)."""
    engine = zlib.compressobj(wbits=_WINDOW_BITS[encoding])
    parts = [engine.compress(part) for part in message]
    packed = b"".join([*parts, engine.flush()])
    return (1, (packed,)) if len(packed) < sum(map(len, message)) else (0, message)


_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


def timeout_seconds(text: bytes) -> float | None:
    """Returns the seconds of a `grpc-timeout` header, or None if it is malformed."""
    digits, unit = text[:-1], text[-1:]
    # The protocol allows at most eight digits.
    if unit not in _UNITS or not digits.isdigit() or len(digits) > 8:
        return None
    return int(digits) * _UNITS[unit]


_PLAIN = "".join(chr(c) for c in range(0x20, 0x7F) if c != 0x25)


def percent_encoded(text: str) -> bytes:
    """Returns a status text in the encoding of `grpc-message`."""
    return quote(text, safe=_PLAIN, errors="replace").encode()
