"""What the connections of one HTTP/1 port share, and how all of them end. Event-loop thread only."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from halimede.transport.buffers import Buffers
from halimede.transport.event_loop import CallLater, call_later_on_running_loop
from halimede.transport.http1.exchange import Http1Exchange, Http1Head

MAX_KNOWN_HEADS = 256
"""Number of heads whose parsed form is remembered."""
MAX_KNOWN_HEAD_BYTES = 2048
"""Length of a head whose parsed form is remembered."""
RECEIVE_BUFFER_BYTES = 1 << 16
"""Bytes per read if a head may come. At most this much of a large body is copied to its place afterwards."""

Handler = Callable[[Http1Exchange], None]


class OpenConnection(Protocol):
    """A connection as the listener sees it."""

    def close_if_idle(self) -> None: ...
    def abort(self) -> None: ...


class Http1Listener:
    """What the connections of one port share: the handler, the receive buffers, the open connections, and known heads.

    A client sends the same head again and again, so most heads are looked up and not parsed. `handler` receives each
    request.
    """

    def __init__(self, handler: Handler, call_later: CallLater = call_later_on_running_loop) -> None:
        self.handler = handler
        self.call_later = call_later
        self.connections: set[OpenConnection] = set()
        self.draining = False
        self.received = bytearray(RECEIVE_BUFFER_BYTES)
        self.scratch = memoryview(self.received)
        self.buffers = Buffers()
        self.heads: dict[bytes, Http1Head] = {}
        self._empty: asyncio.Event | None = None

    def drain(self) -> None:
        """Accepts no more requests. Closes idle connections now, and the others after the answer that they wait for."""
        self.draining = True
        for connection in list(self.connections):
            connection.close_if_idle()

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
        left = timeout
        while self.connections and left > 0:
            waiting(left, len(self.connections))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), min(left, 1.0))
            left -= 1.0

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
