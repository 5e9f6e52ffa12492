"""What the connections of one HTTP/2 port share, and how all of them end. Event-loop thread only."""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Generic, Protocol, TypeVar

from halimede.transport.buffered_bytes import BufferedBytes
from halimede.transport.event_loop import EventLoop
from halimede.transport.http2 import huffman
from halimede.transport.http2.frames import (
    DEFAULT_WINDOW_BYTES,
    ConnectionFault,
    Setting,
    settings_frame,
    window_update,
)
from halimede.transport.http2.headers import RequestHead
from halimede.transport.http2.limits import Keepalive, TokenBucket
from halimede.transport.http2.reader import MAX_FRAME_BYTES, ReceiveBuffer
from halimede.transport.http2.stream import RECEIVE_WINDOW_BYTES, Http2Stream
from halimede.transport.http2.writer import FrameWriter
from halimede.transport.message_budget import MessageBudget
from halimede.transport.stalls import LookRounds, TimeLimits

log = logging.getLogger(__name__)

MAX_CALLS = 1024
"""Streams that a client may have open at once (SETTINGS_MAX_CONCURRENT_STREAMS)."""
MAX_HEADER_LIST_BYTES = 1 << 14
"""Size of a header list that is accepted (SETTINGS_MAX_HEADER_LIST_SIZE)."""
LOGGED_FAULTS_PER_SECOND = 1
"""Lines in the log for connections that the server ends because of their clients' faults. The others are counted."""
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
    def look(self, now: float) -> None: ...


class Http2Listener(Generic[H]):
    """What the connections of one port share. `alpn`: a client must have agreed to `h2` by TLS. `on_empty` is called
    when the last connection has gone."""

    def __init__(
        self,
        opener: RequestOpener[H],
        loop: EventLoop,
        keepalive: Keepalive,
        turns: MessageBudget,
        times: TimeLimits | None = None,
        buffered: BufferedBytes | None = None,
        alpn: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.opener = opener
        self.loop = loop
        self.keepalive = keepalive
        self.turns = turns
        self.times = times or TimeLimits()
        self.buffered = buffered or BufferedBytes()
        self.clock = clock
        """The time in seconds. The loop's own clock stands still within a turn."""
        self._alpn = alpn
        # Here, because it would take too long within the first call.
        huffman.prepare()
        self.receive_buffer = ReceiveBuffer()
        self.connections: set[OpenConnection] = set()
        self.draining = False
        self._lines = TokenBucket(1, LOGGED_FAULTS_PER_SECOND)
        self._unlogged = 0
        self.on_empty: Callable[[], None] = lambda: None
        self.rounds = LookRounds(self.connections, clock, loop.call_later)

    def agrees(self, transport: asyncio.BaseTransport) -> bool:
        """Whether the client of a new connection uses HTTP/2, if TLS has negotiated a protocol."""
        # Without TLS there is no negotiation. The preface is checked instead.
        tls = transport.get_extra_info("ssl_object") if self._alpn else None
        return tls is None or tls.selected_alpn_protocol() == "h2"

    def drain(self) -> None:
        """Asks every client to open no more calls, those of new connections too. A connection closes after its last
        call."""
        self.draining = True
        self.ask_to_leave()

    def ask_to_leave(self) -> None:
        """Asks the clients of the open connections to open no more calls on them."""
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

    def log_fault(self, fault: ConnectionFault) -> None:
        """Logs why a connection was ended. A client can cause any number of such lines, so most are only counted."""
        if not self._lines.take(self.clock()):
            self._unlogged += 1
            return
        unlogged, self._unlogged = self._unlogged, 0
        more = f" ({unlogged} more since the last such line)" if unlogged else ""
        log.info("gRPC connection ended by the server: %s: %s%s", fault.code.name, fault.text, more)

    def left(self, connection: OpenConnection) -> None:
        """A connection is lost."""
        self.connections.discard(connection)
        if not self.connections:
            self.on_empty()
