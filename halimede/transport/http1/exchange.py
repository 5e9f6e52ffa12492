"""One request of an HTTP/1 connection and its answer: whole, or in parts as they come. No sockets but the transport
that a stream writes to, and nothing of parsing, order and keeping alive: that is the connection's. Event-loop thread
only.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from halimede.tensors import Buffer
from halimede.transport.http1.headers import Headers

log = logging.getLogger(__name__)

JOIN_BYTES = 1 << 16
"""Up to so many bytes, buffers are joined before they are written: one write is quicker than the copy."""

_REASONS = {
    200: b"200 OK",
    400: b"400 Bad Request",
    403: b"403 Forbidden",
    404: b"404 Not Found",
    405: b"405 Not Allowed",
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
    """What the head of a request says, apart from what it says to the connection only."""

    method: bytes
    target: bytes
    headers: Headers
    keep_alive: bool
    old: bool
    body_size: int


class Http1Exchange:
    """One request, whole, and the one answer to it.

    `method` and `target` as sent; `headers` by lower-case name, the first of equals; `body` all of it. When the client
    goes away before the answer, `gone` is set and `on_gone` called. `began` is when its body began to come, in
    monotonic nanoseconds, 0 for one that came with its head.
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

    def respond(self, status: int, fields: bytes, body: Sequence[Buffer]) -> None:
        """Answers, once. `fields` are whole header lines to stand before Content-Length; without any, the answer is
        marked as plain text. `body` is a list of buffers that are written as they are."""
        self._connection.answer(self, status, fields, body)

    def begin(self, status: int, fields: bytes) -> "Http1AnswerStream":
        """Answers in parts instead: they are given to the stream, the last of them as such. `fields` as above."""
        return self._connection.begin(self, status, fields)

    def fail(self) -> None:
        """The server broke over this request: it is answered so, or cut off where its answer has begun. Nothing
        happens where it was answered."""
        self._connection.fail(self)

    def leave(self) -> None:
        """From the connection: the client has gone. What breaks over that concerns nobody else."""
        self.gone = True
        try:
            self.on_gone()
        except Exception:
            log.exception("failed to cancel %s after its client disconnected", self.target)


class AnsweringConnection(Protocol):
    """What an exchange needs of its connection."""

    def answer(self, exchange: Http1Exchange, status: int, fields: bytes, body: Sequence[Buffer]) -> None: ...

    def begin(self, exchange: Http1Exchange, status: int, fields: bytes) -> "Http1AnswerStream": ...

    def fail(self, exchange: Http1Exchange) -> None: ...


class Writer(Protocol):
    """Where the bytes of an answer go."""

    def write(self, data: Buffer | memoryview, /) -> None: ...

    def writelines(self, list_of_data: Iterable[Buffer | memoryview], /) -> None: ...


class Http1AnswerStream:
    """An answer in parts, each a chunk of HTTP/1.1; an older client gets them as they are, and then the end.

    The head goes with the first part. Nothing here raises, also after the client has gone.
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
        self._chunked = not exchange.head.old
        self._head = head
        self._ended = ended
        self._over = False
        self._write_paused = write_paused
        self._resumes: list[Callable[[], None]] = []

    # From the handler.

    def send(self, body: Sequence[Buffer], last: bool = False) -> bool:
        """Writes a part, of which nothing is kept but what the client does not read. False asks the sender to wait for
        `on_writable`."""
        if self._over:
            return True
        size = sum(map(len, body))
        parts: list[Buffer] = [self._head]
        self._head = b""
        if not self._chunked:
            parts += body
        elif size:  # a chunk of no bytes would be the end
            parts += (b"%x\r\n" % size, *body, b"\r\n")
        if last and self._chunked:
            parts.append(b"0\r\n\r\n")
        if size > JOIN_BYTES:
            self.writer.writelines(parts)
        elif joined := b"".join(parts):
            self.writer.write(joined)
        if last:
            self._over = True
            self._resumes.clear()
            self._ended()
        return not self._write_paused

    def on_writable(self, resume: Callable[[], None]) -> None:
        """Calls `resume` once when the client reads again: at once where it does."""
        if self._write_paused and not self._over:
            self._resumes.append(resume)
        else:
            resume()

    # From the connection.

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        """The client has read what there was. Whoever is resumed may pause_writing it again, and end it."""
        self._write_paused = False
        resumes, self._resumes = self._resumes, []
        for resume in resumes:
            resume()

    def leave(self) -> None:
        """The client has gone. Who waits here is not resumed, but told by `on_gone`."""
        self.abandon()
        self._exchange.leave()

    def answers(self, exchange: Http1Exchange) -> bool:
        return exchange is self._exchange

    @property
    def begun(self) -> bool:
        """Whether anything was written."""
        return not self._head

    def abandon(self) -> None:
        """Nothing is written any more."""
        self._over = True
        self._resumes.clear()
