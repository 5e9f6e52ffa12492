"""A client of one `Http1Connection` without a loop and without a socket. It passes bytes in as a loop would."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from halimede.tensors import Buffer
from halimede.transport.http1.connection import Http1Connection
from halimede.transport.http1.exchange import Http1Exchange
from halimede.transport.http1.listener import Http1Listener
from tests.transport.http2_bench import Clock


class FakeTransport(asyncio.Transport):
    """Records what is written and requested. `Client` decides what `close` and `abort` lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[Buffer]] = []
        self.closed = False
        self.aborted = False
        self.reading = True
        self.half_closes = False
        """Not so with TLS; ending one side alone has tests of its own."""
        self.unread = 0
        """Bytes that were written and that the client has not read."""
        self.misused: list[str] = []
        """What no connection may do; kept here since an error raised within the parser is taken for bad input."""

    @property
    def written(self) -> bytes:
        return b"".join(bytes(part) for call in self.calls for part in call)

    def write(self, data: Buffer | memoryview) -> None:
        self._check(not self.ended, "written after the end")
        self.calls.append([data])

    def writelines(self, list_of_data: Iterable[Buffer | memoryview]) -> None:
        self._check(not self.ended, "written after the end")
        self.calls.append(list(list_of_data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.ended

    def can_write_eof(self) -> bool:
        return self.half_closes

    def get_write_buffer_size(self) -> int:
        return 0 if self.aborted else self.unread

    def pause_reading(self) -> None:
        self._check(self.reading and not self.ended, "paused twice or after the end")
        self.reading = False

    def resume_reading(self) -> None:
        self._check(not self.reading and not self.ended, "resumed twice or after the end")
        self.reading = True

    def _check(self, right: bool, what: str) -> None:
        if not right:
            self.misused.append(what)

    @property
    def ended(self) -> bool:
        return self.closed or self.aborted


@dataclass(frozen=True, slots=True)
class Response:
    """One answer: the status line, the header fields in their order, the body."""

    line: str
    fields: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def status(self) -> int:
        return int(self.line.split(" ")[1])

    def field(self, name: str) -> str | None:
        return dict(self.fields).get(name)


def responses(data: bytes, *, heads_only: bool = False) -> list[Response]:
    """The answers that `data` consists of, all of it."""
    found = []
    while data:
        head, blank, data = data.partition(b"\r\n\r\n")
        assert blank, f"no whole answer: {head!r}"
        line, *rows = head.decode("latin-1").split("\r\n")
        fields = tuple((name, value) for name, _, value in (row.partition(": ") for row in rows))
        size = 0 if heads_only else int(dict(fields).get("Content-Length", "0"))
        assert len(data) >= size, "an answer is shorter than it says"
        found.append(Response(line, fields, data[:size]))
        data = data[size:]
    return found


class Client:
    """The loop's part for one connection. Bytes that come while reading is paused wait, as in a socket's buffer."""

    def __init__(
        self, handler: Callable[[Http1Exchange], None] | None = None, listener: Http1Listener | None = None
    ) -> None:
        self.exchanges: list[Http1Exchange] = []
        self.clock = Clock()
        self.listener = listener or Http1Listener(
            handler or self.exchanges.append, self.clock.call_later, clock=self.clock.time
        )
        self.transport = FakeTransport()
        self.connection = Http1Connection(self.listener)
        self.connection.connection_made(self.transport)
        self._unread = b""

    @property
    def answers(self) -> list[Response]:
        assert self.transport.misused == []
        return responses(self.transport.written)

    def send(self, data: bytes, size: int | None = None) -> "Client":
        """Sends the bytes, at most `size` in one read."""
        self._unread += data
        self.deliver(size)
        return self

    def deliver(self, size: int | None = None) -> None:
        """Hands over what waits, as long as the connection reads."""
        at, data = 0, memoryview(self._unread)
        while at < len(data) and self.transport.reading and not self.transport.ended:
            room = self.connection.get_buffer(-1)
            assert len(room) > 0
            part = data[at : at + min(len(room), size or len(room))]
            room[: len(part)] = part
            self.connection.buffer_updated(len(part))
            at += len(part)
        self._unread = bytes(data[at:])
        assert self.transport.misused == []

    def send_parts(self, parts: Iterable[bytes]) -> "Client":
        for part in parts:
            self.send(part)
        return self

    def end(self) -> None:
        """The client sends no more."""
        if not self.transport.ended and not self.connection.eof_received():
            self.transport.close()
        assert self.transport.misused == []

    def lose(self, error: Exception | None = None) -> None:
        """The connection is gone."""
        self.connection.connection_lost(error)


def request(
    method: str = "GET", target: str = "/", body: bytes | None = None, *fields: str, version: str = "1.1"
) -> bytes:
    """A request as a well-behaved client sends it; with a body also its Content-Length."""
    length = () if body is None else (f"Content-Length: {len(body)}",)
    rows = (f"{method} {target} HTTP/{version}", "Host: x", *fields, *length)
    return "".join(f"{row}\r\n" for row in rows).encode() + b"\r\n" + (body or b"")


def chunked(target: str, parts: Iterable[bytes], *fields: str, end: bytes = b"0\r\n\r\n") -> bytes:
    """A POST whose body comes in these chunks."""
    head = request("POST", target, None, "Transfer-Encoding: chunked", *fields)
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


def echo(exchange: Http1Exchange) -> None:
    """Answers at once with the request: `METHOD target` and the body."""
    exchange.respond(200, b"", [b"%b %b\n" % (exchange.method, exchange.target), exchange.body])
