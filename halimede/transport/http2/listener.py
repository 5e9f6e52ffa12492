"""What the connections of one port share, and how all of them end. Event-loop thread only."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from halimede.transport.http2.frames import DEFAULT_WINDOW, Setting, settings_frame, window_update
from halimede.transport.http2.headers import RequestHead
from halimede.transport.http2.keeper import Loop
from halimede.transport.http2.limits import Keepalive
from halimede.transport.http2.outbox import Outbox
from halimede.transport.http2.reader import MAX_FRAME, Scratch
from halimede.transport.http2.stream import RECEIVE_WINDOW, Stream

MAX_CALLS = 1024
MAX_HEADER_LIST = 1 << 14
CONNECTION_WINDOW = 1 << 26

GREETING = settings_frame(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_CALLS,
        Setting.INITIAL_WINDOW_SIZE: RECEIVE_WINDOW,
        Setting.MAX_FRAME_SIZE: MAX_FRAME,
        Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST,
    }
) + window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)
"""What every connection begins with (3.4)."""

H = TypeVar("H")


class User(Protocol[H]):
    """Who makes something of the streams."""

    def compile(self, head: RequestHead) -> H:
        """What it wants to know of the head of a request."""
        ...

    def lasts(self, head: H) -> bool:
        """Whether that may be remembered for heads that repeat: it is no larger than the fields it was made of."""
        ...

    def open(self, out: Outbox, stream_id: int, head: H) -> Stream:
        """A request has begun. Raises StreamFault for a malformed one."""
        ...


class Member(Protocol):
    """A connection as the listener sees it."""

    def drain(self) -> None: ...
    def abort_calls(self) -> None: ...
    def abort(self) -> None: ...


class Listener(Generic[H]):
    """`alpn`: a client must have agreed to `h2` (TLS). `on_empty` is called when the last connection has gone."""

    def __init__(self, user: User[H], loop: Loop, keepalive: Keepalive, alpn: bool = False) -> None:
        self.user = user
        self.loop = loop
        self.keepalive = keepalive
        self._alpn = alpn
        self.scratch = Scratch()
        self.connections: set[Member] = set()
        self.draining = False
        self.on_empty: Callable[[], None] = lambda: None

    def agrees(self, transport: asyncio.BaseTransport) -> bool:
        """Whether the client of a new connection speaks HTTP/2, as far as TLS says so."""
        tls = transport.get_extra_info("ssl_object") if self._alpn else None
        return tls is None or tls.selected_alpn_protocol() == "h2"

    def drain(self) -> None:
        """Every client is asked to go: no new calls, and the connection closes after its last one."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain()

    def abort_calls(self) -> None:
        """Ends the calls that are still open, and the connections."""
        for connection in list(self.connections):
            connection.abort_calls()

    def abort(self) -> None:
        """Drops what is still there."""
        for connection in list(self.connections):
            connection.abort()

    def left(self, connection: Member) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.on_empty()
