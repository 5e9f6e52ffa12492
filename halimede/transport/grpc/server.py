"""The gRPC server: a port, its connections, and their calls.

Knows the RPCs of a service by path, and no inference. A call watches its own deadline (`transport.grpc.streams`).
Event-loop thread only.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from halimede.transport.buffered_bytes import BufferedBytes
from halimede.transport.buffers import Buffers
from halimede.transport.event_loop import EventLoop
from halimede.transport.grpc.bidirectional import BidirectionalCall
from halimede.transport.grpc.calls import Bidirectional, Rpcs
from halimede.transport.grpc.heads import CallHead, HeadCompiler, Refusal
from halimede.transport.grpc.messages import INTERNAL, UNAVAILABLE, MessageFault
from halimede.transport.grpc.streams import RefusedCall, UnaryCall
from halimede.transport.http2.connection import Http2Connection
from halimede.transport.http2.frames import Code, StreamFault
from halimede.transport.http2.limits import Keepalive
from halimede.transport.http2.listener import Http2Listener
from halimede.transport.http2.stream import Http2Stream
from halimede.transport.http2.writer import FrameWriter
from halimede.transport.message_budget import MessageBudget
from halimede.transport.sockets import Listening, serve_at
from halimede.transport.stalls import LookRounds, TimeLimits

log = logging.getLogger(__name__)

ABORT_SECONDS = 1.0
"""Time for the last frames to leave if a server stops with open calls."""


@dataclass(frozen=True, slots=True)
class GrpcServerOptions:
    """`reuse_port`: several servers may share the port (`--reuse-grpc-port`). `max_receive_bytes` is the limit of one
    message (G15). `response_compression` is the level none, low, medium or high (G36). `buffered` counts the bytes that
    the server holds, over all its ports. `tls` is a context that offers `h2`, see `tls.server_context`."""

    reuse_port: bool = False
    max_receive_bytes: int = 2**31 - 1
    response_compression: str = "none"
    keepalive: Keepalive = field(default_factory=Keepalive)
    times: TimeLimits = field(default_factory=TimeLimits)
    buffered: BufferedBytes = field(default_factory=BufferedBytes, compare=False)
    tls: ssl.SSLContext | None = None


class GrpcServer:
    """A gRPC server for the RPCs of a service. A path without an RPC is answered UNIMPLEMENTED."""

    def __init__(
        self,
        rpcs: Rpcs,
        options: GrpcServerOptions | None = None,
        loop: EventLoop | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._options = options or GrpcServerOptions()
        self.max_receive_bytes = self._options.max_receive_bytes
        self.buffers = Buffers(self._options.buffered)
        self.compile = HeadCompiler(rpcs, self._options.response_compression).compile
        self.loop: EventLoop = asyncio.get_running_loop() if loop is None else loop
        self.message_budget = MessageBudget(self.loop)
        tls = self._options.tls is not None
        self._listener: Http2Listener[CallHead] = Http2Listener(
            self,
            self.loop,
            self._options.keepalive,
            self.message_budget,
            self._options.times,
            self._options.buffered,
            tls,
            clock,
        )
        self._server: Listening | None = None

    @property
    def rounds(self) -> LookRounds:
        """The looks at the connections, which `start` begins."""
        return self._listener.rounds

    def connect(self) -> Http2Connection[CallHead]:
        """Returns the protocol object of a new connection."""
        return Http2Connection(self._listener)

    async def start(self, address: str, port: int) -> int:
        """Listens. Returns the port, which the system chooses for port 0. Raises Unavailable if the port is in use
        (G39)."""
        options = self._options
        self.rounds.begin()
        self._server = await serve_at(address, port, self.connect, options.reuse_port, options.tls)
        return self._server.port

    def ask_to_leave(self) -> None:
        """Asks the clients of the open connections to open no more calls on them. New connections are served as
        before."""
        self._listener.ask_to_leave()

    async def stop(self, grace: float | None) -> None:
        """Accepts no more calls, lets the open ones finish for `grace` seconds, then cancels them."""
        if self._server is not None:
            self._server.close()
        listener = self._listener
        listener.drain()
        # Without a grace the calls are cancelled at once.
        if grace:
            await self._empty(grace)
        listener.abort_calls()
        await self._empty(ABORT_SECONDS)
        listener.abort()
        self.rounds.end()

    async def _empty(self, timeout: float) -> None:
        """Waits until no connection is left, for at most `timeout` seconds."""
        empty = asyncio.Event()
        self._listener.on_empty = empty.set
        if self._listener.connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(empty.wait(), timeout)

    def off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Runs `work` on a thread of asyncio's own pool, then `done` on the loop with its result, or the MessageFault
        that it raised. `work` compresses or decompresses a message."""
        loop = asyncio.get_running_loop()

        def run() -> None:
            result: Any
            try:
                result = work()
            except MessageFault as fault:
                result = fault
            except Exception:
                log.exception("failed to compress or decompress a gRPC message")
                result = MessageFault(INTERNAL, "internal error")
            # Not as the result of the executor's future: that future and the loop's refer to each other, which would
            # keep the message until the garbage collector runs.
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done, result)

        loop.run_in_executor(None, run)

    # For the connections.

    def is_cacheable(self, head: CallHead) -> bool:
        return head.is_cacheable

    def open(self, out: FrameWriter, stream_id: int, head: CallHead) -> Http2Stream:
        # The head breaks a rule of HTTP/2, so the answer is a reset and no gRPC status.
        if head.malformed:
            raise StreamFault(stream_id, Code.PROTOCOL_ERROR)
        if head.refusal is not None:
            refused = RefusedCall(out, stream_id)
            refused.refuse(head.refusal)
            return refused
        account = out.account
        # A call without a message has its price, and its client may never send one.
        if (account.full or account.of.full) and head.rpc is not None and not head.rpc.small and account.is_full():
            refused = RefusedCall(out, stream_id)
            refused.refuse(Refusal(200, UNAVAILABLE, account.complaint))
            return refused
        if isinstance(head.rpc, Bidirectional):
            stream = BidirectionalCall(self, out, stream_id, head)
            # After the constructor, because the service may answer while it opens its side.
            stream.begin()
            return stream
        return UnaryCall(self, out, stream_id, head)
