"""One request of an HTTP/1 connection, and its answer: whole, or in parts.

Parsing, the order of requests and keep-alive belong to the connection. This module uses no socket except the transport
that an answer in parts is written to. Event-loop thread only.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from halimede.tensors import Buffer
from halimede.transport.buffered_bytes import BufferedBytes
from halimede.transport.http1.headers import Headers

log = logging.getLogger(__name__)

JOIN_BYTES = 1 << 16
"""Up to this size buffers are joined and written at once, because one write costs less than the copy."""

_REASONS = {
    200: b"200 OK",
    400: b"400 Bad Request",
    401: b"401 Unauthorized",
    403: b"403 Forbidden",
    404: b"404 Not Found",
    405: b"405 Not Allowed",
    408: b"408 Request Timeout",
    413: b"413 Content Too Large",
    429: b"429 Too Many Requests",
    431: b"431 Request Header Fields Too Large",
    500: b"500 Internal Server Error",
    501: b"501 Not Implemented",
    503: b"503 Service Unavailable",
}
STATUS_LINES = {
    version: {code: b"HTTP/%s %s\r\n" % (version, reason) for code, reason in _REASONS.items()}
    for version in (b"1.1", b"1.0")
}
JSON = b"Content-Type: application/json\r\n"
_NO_GONE: Callable[[], None] = lambda: None  # noqa: E731


@dataclass(frozen=True, slots=True)
class Http1Head:
    """What the head of a request says. `http10` is true for HTTP/1.0. `body_size` is 0 for a chunked body. `compressed`
    is true if the body has a content coding."""

    method: bytes
    target: bytes
    headers: Headers
    keep_alive: bool
    http10: bool
    body_size: int
    compressed: bool = False


class Http1Exchange:
    """One whole request, and its one answer.

    `method` and `target` are as sent. `headers` are by lower-case name, of equal names the first. `began` is when the
    body began to arrive, in monotonic nanoseconds, and 0 if it came with the head. If the client goes before the
    answer, `gone` is set and `on_gone` is called.
    """

    __slots__ = ("_connection", "began", "body", "gone", "head", "headers", "method", "on_gone", "target")

    def __init__(self, connection: "AnsweringConnection", head: Http1Head, body: Buffer, began: int = 0) -> None:
        self._connection = connection
        self.head = head
        self.method = head.method
        self.target = head.target
        self.headers = head.headers
        self.body = body
        self.began = began
        self.gone = False
        self.on_gone: Callable[[], None] = _NO_GONE

    @property
    def peer(self) -> str:
        """The address of the client, without its port; empty for a Unix socket."""
        return self._connection.peer

    def hold(self, size: int) -> None:
        """Counts bytes that were made from the body, such as those of a compressed one, until this is answered."""
        self._connection.hold(self, size)

    @property
    def memory_is_short(self) -> bool:
        """Whether the server held as many bytes as it may when it last looked. Any thread."""
        return self._connection.memory_is_short

    @property
    def buffered(self) -> BufferedBytes:
        """The bytes that the server holds for all clients."""
        return self._connection.buffered

    def respond(self, status: int, fields: bytes, body: Sequence[Buffer]) -> None:
        """Answers with a whole body. Later answers are ignored. `fields` are complete header lines, written before
        Content-Length; without any, the answer has the content type text/plain. `body` is written without being copied
        together."""
        self._connection.answer(self, status, fields, body)

    def begin(self, status: int, fields: bytes) -> "Http1AnswerStream":
        """Answers in parts, which the caller gives to the returned stream. `fields` are complete header lines."""
        return self._connection.begin(self, status, fields)

    def fail(self) -> None:
        """Answers with status 500, for a failure of the server. If the answer has begun, the connection is cut off. If
        the request was answered, nothing happens."""
        self._connection.fail(self)

    def leave(self) -> None:
        """The connection calls this if the client has gone. An error of `on_gone` is logged here, since no other
        request must suffer from it."""
        self.gone = True
        try:
            self.on_gone()
        except Exception:
            log.exception("failed to cancel %s after its client disconnected", self.target)


class AnsweringConnection(Protocol):
    """What an exchange needs of its connection."""

    @property
    def peer(self) -> str: ...
    @property
    def memory_is_short(self) -> bool: ...
    @property
    def buffered(self) -> BufferedBytes: ...

    def hold(self, exchange: Http1Exchange, size: int) -> None: ...

    def answer(self, exchange: Http1Exchange, status: int, fields: bytes, body: Sequence[Buffer]) -> None: ...

    def begin(self, exchange: Http1Exchange, status: int, fields: bytes) -> "Http1AnswerStream": ...

    def fail(self, exchange: Http1Exchange) -> None: ...


class Writer(Protocol):
    """Takes the bytes of an answer: the transport, or `HalfClosed`."""

    def write(self, data: Buffer | memoryview, /) -> None: ...

    def writelines(self, list_of_data: Iterable[Buffer | memoryview], /) -> None: ...


class Http1AnswerStream:
    """An answer in parts. Each part is a chunk; an HTTP/1.0 client gets the bytes as they are, and the connection ends.

    The head is written with the first part. No method raises, also after the client has gone.
    """

    __slots__ = ("_chunked", "_ended", "_exchange", "_head", "_over", "_resumes", "_write_paused", "writer")

    def __init__(
        self,
        writer: Writer,
        exchange: Http1Exchange,
        head: bytes,
        ended: Callable[[], None],
        write_paused: bool = False,
    ) -> None:
        self.writer = writer
        self._exchange = exchange
        self._chunked = not exchange.head.http10
        self._head = head
        self._ended = ended
        self._over = False
        self._write_paused = write_paused
        self._resumes: list[Callable[[], None]] = []

    # From the handler.

    def send(self, body: Sequence[Buffer], last: bool = False) -> bool:
        """Writes a part. The transport keeps what the client does not read. Returns False if the sender should wait for
        `on_writable`."""
        if self._over:
            return True
        size = sum(map(len, body))
        parts: list[Buffer] = [self._head]
        # An empty head means that it was written (`begun`).
        self._head = b""
        if not self._chunked:
            parts += body
        # A chunk of no bytes would end the answer.
        elif size:
            parts += (b"%x\r\n" % size, *body, b"\r\n")
        if last and self._chunked:
            parts.append(b"0\r\n\r\n")
        if size > JOIN_BYTES:
            self.writer.writelines(parts)
        # A part without bytes, and without a head, writes nothing.
        elif joined := b"".join(parts):
            self.writer.write(joined)
        if last:
            self._over = True
            self._resumes.clear()
            self._ended()
        return not self._write_paused

    def on_writable(self, resume: Callable[[], None]) -> None:
        """Calls `resume` once, when the client reads again. If it reads, that is at once."""
        # A sender whose answer is over need not wait.
        if self._write_paused and not self._over:
            self._resumes.append(resume)
        else:
            resume()

    # From the connection.

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        """The client has read what was written. A resumed sender may fill the transport again, or end the answer."""
        self._write_paused = False
        resumes, self._resumes = self._resumes, []
        for resume in resumes:
            resume()

    def leave(self) -> None:
        """The client has gone. Senders that wait are not resumed: `on_gone` tells them."""
        self.abandon()
        self._exchange.leave()

    def answers(self, exchange: Http1Exchange) -> bool:
        """Whether this is the answer of the exchange."""
        return exchange is self._exchange

    @property
    def begun(self) -> bool:
        """Whether the head was written."""
        return not self._head

    def abandon(self) -> None:
        """Ignores all later parts."""
        self._over = True
        self._resumes.clear()
