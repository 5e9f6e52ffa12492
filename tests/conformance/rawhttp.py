"""HTTP/1.1 as exact bytes over a plain socket: the case's bytes are sent unchanged, and the answer is kept unchanged.

A conversation is a list of steps: bytes to send, `READ` (wait for one response), `END` (close the sending half). So it
can have malformed, truncated and pipelined requests. Knows nothing of inference. Every wait is bounded.
"""

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self

TIMEOUT = 30.0  # seconds for one read
PROBE = b"GET /v2/health/live HTTP/1.1\r\nHost: probe\r\n\r\n"


class Wait(Enum):
    """A step that sends nothing."""

    READ = "read one response"
    END = "close the sending half"


READ, END = Wait.READ, Wait.END
Step = bytes | Wait


class Fate(Enum):
    """The end of the connection after the last expected answer."""

    OPEN = "open"  # a further request on it is answered
    CLOSED = "closed"
    SILENT = "silent"  # neither an answer nor an end within the time
    GARBLED = "garbled"  # what came next is no response


@dataclass(frozen=True, slots=True)
class Response:
    """One response as received. Header names are in lower case; `body` is without chunk framing."""

    status: int
    version: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """The value of the first header of that (lower-case) name, or None."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass(frozen=True, slots=True)
class Conversation:
    """All responses in their order, and the fate of the connection."""

    responses: tuple[Response, ...]
    fate: Fate


class ClosedError(Exception):
    """The peer closed or reset the connection before a whole response came."""


class Connection:
    """A client connection to 127.0.0.1, for one thread."""

    def __init__(self, port: int, timeout: float = TIMEOUT) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._held = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Sends all. If the peer has closed already, the next read finds out, and may still find its answer."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def end(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def read(self, *, head_only: bool = False) -> Response:
        """The next response. Raises ClosedError, TimeoutError, or ValueError for bytes that are no response."""
        while b"\r\n\r\n" not in self._held:
            self._more()
        head, self._held = self._held.split(b"\r\n\r\n", 1)
        line, *rows = head.decode("latin-1").split("\r\n")
        version, status, *_ = line.split(" ", 2)
        pairs = (row.partition(":") for row in rows)
        headers = tuple((name.lower(), value.strip()) for name, _, value in pairs)
        answer = Response(int(status), version, headers)
        if head_only or answer.status < 200:
            return answer
        return Response(answer.status, version, headers, self._body(answer))

    def _body(self, answer: Response) -> bytes:
        if answer.header("transfer-encoding") == "chunked":
            return b"".join(self._chunks())
        length = answer.header("content-length")
        return self._rest() if length is None else self._exactly(int(length))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._line().split(b";")[0], 16):
            yield self._exactly(size)
            self._line()
        while self._line():
            continue

    def _line(self) -> bytes:
        while b"\r\n" not in self._held:
            self._more()
        line, self._held = self._held.split(b"\r\n", 1)
        return line

    def _exactly(self, count: int) -> bytes:
        while len(self._held) < count:
            self._more()
        data, self._held = self._held[:count], self._held[count:]
        return data

    def _rest(self) -> bytes:
        try:
            while True:
                self._more()
        except ClosedError:
            data, self._held = self._held, b""
            return data

    def _more(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise ClosedError
        self._held += data


def converse(port: int, steps: Sequence[Step], answers: int = 1) -> Conversation:
    """Runs the steps on a new connection, reads `answers` more responses, and finds out the connection's fate."""
    responses: list[Response] = []
    head_only = False
    with Connection(port) as connection:
        try:
            for step in (*steps, *([READ] * answers)):
                if step is READ:
                    responses.append(connection.read(head_only=head_only))
                elif step is END:
                    connection.end()
                elif isinstance(step, bytes):
                    head_only = step.startswith(b"HEAD ")
                    connection.send(step)
            fate = _fate(connection, ended=END in steps)
        except ClosedError:
            fate = Fate.CLOSED
        except TimeoutError:
            fate = Fate.SILENT
        except ValueError:
            fate = Fate.GARBLED
    return Conversation(tuple(responses), fate)


def _fate(connection: Connection, *, ended: bool) -> Fate:
    """Finds out whether the peer closes the connection. Another response, such as a refusal, may come before that."""
    if not ended:
        connection.send(PROBE)
    if connection.read().status in (200, 403):  # 403 if health queries are restricted
        return Fate.OPEN
    connection.read()
    return Fate.GARBLED
