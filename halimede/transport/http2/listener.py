"""What the connections of one HTTP/2 port share, and how all of them end. Event-loop thread only."""

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
"""Streams that a client may have open at once (SETTINGS_MAX_CONCURRENT_STREAMS)."""
MAX_HEADER_LIST_BYTES = 1 << 14
"""Size of a header list that is accepted (SETTINGS_MAX_HEADER_LIST_SIZE)."""
CONNECTION_WINDOW_BYTES = 1 << 26
"""Bytes that a client may send ahead on all its streams."""

GREETING = settings_frame(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_CALLS,
        Setting.INITIAL_WINDOW_SIZE: RECEIVE_WINDOW_BYTES,
        Setting.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
        Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_BYTES,
    }
) + window_update(0, CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)
"""The first frames of every connection (section 3.4)."""

H = TypeVar("H")


class RequestOpener(Protocol[H]):
    """Opens the streams of requests. `H` is what it compiles a head to."""

    def compile(self, head: RequestHead) -> H:
        """Returns what it needs of the head of a request."""
        ...

    def is_cacheable(self, head: H) -> bool:
        """Whether a compiled head may be remembered: it takes no more memory than the fields that it was made of."""
        ...

    def open(self, out: FrameWriter, stream_id: int, head: H) -> Http2Stream:
        """Opens the stream of a new request. Raises StreamFault if the head is malformed."""
        ...


class OpenConnection(Protocol):
    """A connection as the listener sees it."""

    def drain(self) -> None: ...
    def abort_calls(self) -> None: ...
    def abort(self) -> None: ...


class Http2Listener(Generic[H]):
    """What the connections of one port share. `alpn`: a client must have agreed to `h2` by TLS. `on_empty` is called
    when the last connection has gone."""

    def __init__(self, opener: RequestOpener[H], loop: EventLoop, keepalive: Keepalive, alpn: bool = False) -> None:
        self.opener = opener
        self.loop = loop
        self.keepalive = keepalive
        self._alpn = alpn
        self.receive_buffer = ReceiveBuffer()
        self.connections: set[OpenConnection] = set()
        self.draining = False
        self.on_empty: Callable[[], None] = lambda: None

    def agrees(self, transport: asyncio.BaseTransport) -> bool:
        """Whether the client of a new connection uses HTTP/2, if TLS has negotiated a protocol."""
        # Without TLS there is no negotiation. The preface is checked instead.
        tls = transport.get_extra_info("ssl_object") if self._alpn else None
        return tls is None or tls.selected_alpn_protocol() == "h2"

    def drain(self) -> None:
        """Asks every client to open no more calls. A connection closes after its last call."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain()

    def abort_calls(self) -> None:
        """Resets the open calls, and closes the connections."""
        for connection in list(self.connections):
            connection.abort_calls()

    def abort(self) -> None:
        """Drops the connections that are left."""
        for connection in list(self.connections):
            connection.abort()

    def left(self, connection: OpenConnection) -> None:
        """A connection is lost."""
        self.connections.discard(connection)
        if not self.connections:
            self.on_empty()
