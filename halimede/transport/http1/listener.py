"""What the connections of one HTTP/1 port share, and how all of them end. Event-loop thread only."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from halimede.transport.buffered_bytes import BufferedBytes
from halimede.transport.buffers import Buffers
from halimede.transport.event_loop import CallLater, call_later_on_running_loop
from halimede.transport.http1.exchange import Http1Exchange, Http1Head
from halimede.transport.message_budget import MessageBudget
from halimede.transport.stalls import LookRounds, TimeLimits

MAX_KNOWN_HEADS = 256
"""Number of heads whose parsed form is remembered."""
MAX_KNOWN_HEAD_BYTES = 2048
"""Length of a head whose parsed form is remembered."""
STALLED_REQUEST_SECONDS = 1.0
"""While the server stops, a request of which nothing has arrived for this long is refused."""
RECEIVE_BUFFER_BYTES = 1 << 16
"""Bytes per read if a head may come. At most this much of a large body is copied to its place afterwards."""

MAX_HEAD_BYTES = 1 << 17
"""Bytes of a head, of trailers, and of anything else that brings no part of a body (`--http-max-header-bytes`). Beyond
it the client gets status 431. Heads of real clients have at most about 12 KB."""
MAX_FIELDS = 512
"""Header fields of a request. Beyond it the client gets status 431. Real clients send at most about 50."""

Handler = Callable[[Http1Exchange], None]


@dataclass(frozen=True, slots=True)
class Http1Limits:
    """What a client may do on a connection."""

    head_bytes: int = MAX_HEAD_BYTES
    times: TimeLimits = field(default_factory=TimeLimits)


class _CallLaterLoop:
    """The `CallSoonLoop` of a `CallLater`."""

    def __init__(self, call_later: CallLater) -> None:
        self._call_later = call_later

    def call_soon(self, callback: Callable[..., object]) -> object:
        return self._call_later(0.0, callback)


class OpenConnection(Protocol):
    """A connection as the listener sees it."""

    def close_if_idle(self) -> bool: ...
    def abort(self) -> None: ...
    def look(self, now: float) -> None: ...


class Http1Listener:
    """What the connections of one port share: the handler, the receive buffers, the open connections, and known heads.

    A client sends the same head again and again, so most heads are looked up and not parsed. `handler` receives each
    request. `clock` is the time in seconds; the loop's own stands still within a turn.
    """

    def __init__(
        self,
        handler: Handler,
        call_later: CallLater = call_later_on_running_loop,
        limits: Http1Limits | None = None,
        buffered: BufferedBytes | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.handler = handler
        self.call_later = call_later
        self.limits = limits or Http1Limits()
        self.clock = clock
        self.turns = MessageBudget(_CallLaterLoop(call_later))
        self.connections: set[OpenConnection] = set()
        self.draining = False
        """Whether answers announce the end of their connections."""
        self.closing_idle = False
        """Whether a connection without a request is closed at once."""
        self.received = bytearray(RECEIVE_BUFFER_BYTES)
        self.scratch = memoryview(self.received)
        self.buffers = Buffers(buffered)
        self.heads: dict[bytes, Http1Head] = {}
        self._empty: asyncio.Event | None = None
        self.rounds = LookRounds(self.connections, clock, call_later)

    def announce_end(self) -> None:
        """From now on each answer says that its connection ends. Idle connections and new ones are kept until then."""
        self.draining = True

    def drain(self, idle_seconds: float = 0.0) -> None:
        """Ends each connection after its next answer, which says so, or when it has been idle for `idle_seconds`.

        A client that keeps connections may send a request at any moment, and cannot tell whether the server took one
        whose connection just ends.
        """
        self.announce_end()
        if idle_seconds > 0:
            self.call_later(idle_seconds, self._close_idle)
        else:
            self._close_idle()

    def _close_idle(self) -> None:
        self.closing_idle = True
        # A request that is arriving is waited for while more of it comes.
        arriving = [connection for connection in list(self.connections) if not connection.close_if_idle()]
        if arriving:
            self.call_later(STALLED_REQUEST_SECONDS, self._close_idle)

    def learn(self, text: bytes, head: Http1Head) -> None:
        """Remembers the parsed form of a head, in bounded memory, if the text is that head and nothing else."""
        if len(text) <= MAX_KNOWN_HEAD_BYTES and _is_head(text, head):
            # Emptied, not evicted one by one: the few heads in use are back after one request each.
            if len(self.heads) >= MAX_KNOWN_HEADS:
                self.heads.clear()
            self.heads[text] = head

    def add(self, connection: OpenConnection) -> None:
        self.connections.add(connection)
        if self._empty is not None:
            self._empty.clear()

    def remove(self, connection: OpenConnection) -> None:
        self.connections.discard(connection)
        if not self.connections and self._empty is not None:
            self._empty.set()

    async def wait_closed(
        self, timeout: float, waiting: Callable[[float, int], None] = lambda left, count: None
    ) -> None:
        """Waits until no connection is left, for at most `timeout` seconds.

        `waiting` is called at once, and each second after that, with the seconds and the connections that are left.
        """
        self._empty = asyncio.Event()
        # A wait of a second takes longer while threads hold the interpreter.
        now = asyncio.get_running_loop().time
        end = now() + timeout
        while self.connections and (left := end - now()) > 0:
            waiting(left, len(self.connections))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), min(left, 1.0))

    def abort(self) -> None:
        for connection in list(self.connections):
            connection.abort()


def _is_head(text: bytes, head: Http1Head) -> bool:
    """Whether a text, which ends with its first empty line, is exactly what the parser read as this head.

    All connections look heads up, so a wrong entry would change the meaning of other clients' requests. The parser
    skips empty lines before a request: a text of empty lines only would be remembered as the request that came after
    it. If every line ends with CRLF, the first line is the request line, and there is one line per header, then the
    parser began and ended where the text does.
    """
    lines = len(head.headers.sent) + 2
    return (
        text.startswith(b"%b %b HTTP/1." % (head.method, head.target))
        and text.count(b"\r\n") == text.count(b"\n") == text.count(b"\r") == lines
    )
