"""Services of a few RPCs and a running server for them, for tests that call with grpcio."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio
import uvloop

from halimede.tensors import Buffer
from halimede.transport.grpc.calls import Bidirectional, Cancel, GrpcCall, Rpcs, Unary
from halimede.transport.grpc.server import GrpcServer, GrpcServerOptions

WAIT = 30
TIMES = (0.3, 3.0, WAIT)
"""Deadlines in seconds for a call that does not end. A test takes the next one if the deadline passed before the server
had the call."""
ANY_SIZE = {"grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1}

Settings = Mapping[str, Any]
Test = Callable[[], Coroutine[Any, Any, None]]


def run(test: Test, loop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 3 * WAIT)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(bounded())


def unary(channel: grpc.aio.Channel, path: str, message: bytes, timeout: float | None = WAIT, **how: Any) -> Any:
    method: Any = channel.unary_unary
    return method(path)(message, timeout=timeout, **how)


def chat(channel: grpc.aio.Channel, messages: Iterable[bytes] | None = None, path: str = "/t/Chat", **how: Any) -> Any:
    method: Any = channel.stream_stream
    return method(path)(messages, **{"timeout": WAIT, **how})


async def error_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """The status of a call that fails, and its text."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError(f"answered with {answer!r:.100}")


async def status_of(stream: Any) -> tuple[grpc.StatusCode, str]:
    """The status of a stream, once it has ended."""
    return await asyncio.wait_for(stream.code(), WAIT), await stream.details()


@dataclass
class Echo:
    """A service. `/t/Echo` answers with the message. `/t/Fail` ends with status 5 and the message as text. `/t/Wait`
    keeps its call for the test. `/t/Chat` sends every message back, keeps its stream for the test, and ends with status
    3 when the client ends its side, unless it is `patient`. `compressed`: answers may be compressed."""

    patient: bool = False
    compressed: bool = False
    calls: list[GrpcCall] = field(default_factory=list)
    streams: list["Chat"] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def rpcs(self) -> dict[str, Unary | Bidirectional]:
        return {
            "/t/Echo": Unary(self.echo, self.compressed),
            "/t/Fail": Unary(self.fail),
            "/t/Wait": Unary(self.wait, self.compressed),
            "/t/Chat": Bidirectional(self.chat, self.compressed),
        }

    def echo(self, message: Buffer, call: GrpcCall) -> None:
        self.calls.append(call)
        call.send([b"<", memoryview(message), b">"])
        call.finish()

    def fail(self, message: Buffer, call: GrpcCall) -> None:
        call.finish(5, str(message, "utf-8"))

    def wait(self, message: Buffer, call: GrpcCall) -> Cancel:
        self.calls.append(call)
        self.arrived.set()
        return self.gone.set

    def chat(self, call: GrpcCall) -> "Chat":
        self.streams.append(Chat(call, self))
        return self.streams[-1]

    async def until_calls(self, count: int) -> None:
        """Waits until `count` calls have arrived."""
        while len(self.calls) < count:
            self.arrived.clear()
            await asyncio.wait_for(self.arrived.wait(), WAIT)


class Chat:
    def __init__(self, call: GrpcCall, echo: Echo) -> None:
        self.call = call
        self.echo = echo
        self.messages: list[bytes] = []
        self.ended: list[str] = []

    def message(self, message: Buffer) -> None:
        self.messages.append(bytes(message))
        self.call.send([message])
        self.echo.arrived.set()

    def half_closed(self) -> None:
        self.ended.append("half closed")
        self.echo.arrived.set()
        if not self.echo.patient:
            self.call.finish(3, "bye")

    def held_bytes(self) -> int:
        return 0

    def cancelled(self) -> None:
        self.ended.append("cancelled")
        self.echo.gone.set()


class HeldTimer:
    """A timer that only the test fires."""

    def __init__(self, delay: float, callback: Callable[[], object]) -> None:
        self.delay = delay
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HeldTimers:
    """The running event loop for a server, with timers that the test fires. No test waits for time to pass, and none
    fails if the machine is slow. `asked` is set whenever the server asks for the time, as it does for each read."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers: list[HeldTimer] = []
        self.asked = asyncio.Event()

    def time(self) -> float:
        self.asked.set()
        return self._loop.time()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object:
        return self._loop.call_soon(callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> HeldTimer:
        self._timers.append(HeldTimer(delay, partial(callback, *args)))
        return self._timers[-1]

    def fire(self, shortest: float, longest: float) -> None:
        """Fires the one timer that was set for a delay in this range."""
        [timer] = [t for t in self._timers if not t.cancelled and shortest <= t.delay <= longest]
        self._timers.remove(timer)
        timer.callback()


@asynccontextmanager
async def running(rpcs: Rpcs, options: GrpcServerOptions | None = None) -> AsyncIterator[tuple[GrpcServer, str]]:
    """A server on a free port, and its `host:port`."""
    server = GrpcServer(rpcs, options)
    try:
        yield server, f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def served(
    echo: Echo, options: GrpcServerOptions | None = None, settings: Settings = MappingProxyType({}), **how: Any
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server for the service; `settings` are the channel's options."""
    async with (
        running(echo.rpcs(), options) as (_, target),
        grpc.aio.insecure_channel(target, options=list({**ANY_SIZE, **settings}.items()), **how) as channel,
    ):
        yield channel
