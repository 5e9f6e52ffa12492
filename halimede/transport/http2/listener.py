"""What the connections of one port share, and how all of them end. Event-loop thread only."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from halimede.transport.event_loop import EventLoop
from halimede.transport.http2.frames import DEFAULT_WINDOW_BYTES, Setting, settings_frame, window_update
from halimede.transport.http2.headers import RequestHead
from halimede.transport.http2.limits import Keepalive
from halimede.transport.http2.reader import MAX_FRAME_BYTES, ReceiveBuffer
from halimede.transport.http2.stream import RECEIVE_WINDOW_BYTES, Http2Stream
from halimede.transport.http2.writer import FrameWriter

MAX_CALLS = 1024
MAX_HEADER_LIST_BYTES = 1 << 14
CONNECTION_WINDOW_BYTES = 1 << 26

GREETING = settings_frame(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_CALLS,
        Setting.INITIAL_WINDOW_SIZE: RECEIVE_WINDOW_BYTES,
        Setting.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
        Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_BYTES,
    }
) + window_update(0, CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)
"""What every connection begins with (3.4)."""

H = TypeVar("H")


class RequestOpener(Protocol[H]):
    """Who makes something of the streams."""

    def compile(self, head: RequestHead) -> H:
        """What it wants to know of the head of a request."""
        ...

    def is_cacheable(self, head: H) -> bool:
        """Whether that may be remembered for heads that repeat: it is no larger than the fields it was made of."""
        ...

    def open(self, out: FrameWriter, stream_id: int, head: H) -> Http2Stream:
        """A request has begun. Raises StreamFault for a malformed one."""
        ...


class OpenConnection(Protocol):
    """A connection as the listener sees it."""

    def drain(self) -> None: ...
    def abort_calls(self) -> None: ...
    def abort(self) -> None: ...


class Http2Listener(Generic[H]):
    """`alpn`: a client must have agreed to `h2` (TLS). `on_empty` is called when the last connection has gone."""

    def __init__(self, opener: RequestOpener[H], loop: EventLoop, keepalive: Keepalive, alpn: bool = False) -> None:
        self.opener = opener
        self.loop = loop
        self.keepalive = keepalive
        self._alpn = alpn
        self.scratch = ReceiveBuffer()
        self.connections: set[OpenConnection] = set()
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

    def left(self, connection: OpenConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.on_empty()
