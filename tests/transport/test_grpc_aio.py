import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
import uvloop

from halimede.errors import Unavailable
from halimede.tensors import Buffer
from halimede.transport.grpc_aio import GrpcServer, Options
from halimede.transport.grpc_calls import Bidirectional, Call, Cancel, Unary

WAIT = 10


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 3 * WAIT)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


def unary(channel: grpc.aio.Channel, path: str, message: bytes, timeout: float = WAIT, **how: Any) -> Any:
    method: Any = channel.unary_unary
    return method(path)(message, timeout=timeout, **how)


def chat(channel: grpc.aio.Channel, messages: Iterable[bytes] | None = None, **how: Any) -> Any:
    method: Any = channel.stream_stream
    return method("/t/Chat")(messages, timeout=WAIT, **how)


@dataclass
class Echo:
    """A service: `/t/Echo` answers with the message, `/t/Fail` with status 5 and the message as text, `/t/Wait` keeps
    its call for the test, `/t/Chat` sends back every message, keeps its stream for the test, and ends with status 3
    when the client sends no more, unless it is `patient`."""

    patient: bool = False
    calls: list[Call] = field(default_factory=list)
    streams: list["Chat"] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def rpcs(self) -> dict[str, Unary | Bidirectional]:
        return {
            "/t/Echo": Unary(self.echo),
            "/t/Fail": Unary(self.fail),
            "/t/Wait": Unary(self.wait),
            "/t/Chat": Bidirectional(self.chat),
        }

    def echo(self, message: Buffer, call: Call) -> None:
        self.calls.append(call)
        call.send([b"<", memoryview(message), b">"])
        call.finish()

    def fail(self, message: Buffer, call: Call) -> None:
        call.finish(5, str(message, "utf-8"))

    def wait(self, message: Buffer, call: Call) -> Cancel:
        self.calls.append(call)
        self.arrived.set()
        return self.gone.set

    def chat(self, call: Call) -> "Chat":
        self.streams.append(Chat(call, self))
        return self.streams[-1]


class Chat:
    def __init__(self, call: Call, echo: Echo) -> None:
        self.call = call
        self.echo = echo
        self.ended: list[str] = []

    def message(self, message: Buffer) -> None:
        self.call.send([message])
        self.echo.arrived.set()

    def half_closed(self) -> None:
        self.ended.append("half closed")
        if not self.echo.patient:
            self.call.finish(3, "bye")

    def cancelled(self) -> None:
        self.ended.append("cancelled")
        self.echo.gone.set()


@asynccontextmanager
async def served(echo: Echo, **options: Any) -> AsyncIterator[grpc.aio.Channel]:
    server = GrpcServer(echo.rpcs())
    port = await server.start("127.0.0.1", 0)
    settings = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=settings, **options) as channel:
            yield channel
    finally:
        await server.stop(0)


def test_unary_answered_at_once() -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            call = unary(channel, "/t/Echo", b"abc", metadata=(("key", "value"),))
            assert await call == b"<abc>"
            assert ("key", "value") in echo.calls[0].metadata

    run(test)


def test_unary_answered_later() -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            answers = [asyncio.ensure_future(unary(channel, "/t/Wait", b"")) for _ in range(3)]
            while len(echo.calls) < 3:
                echo.arrived.clear()
                await echo.arrived.wait()
            for n, call in enumerate(echo.calls):
                call.send([b"%d" % n])
                call.finish()
            assert sorted(await asyncio.gather(*answers)) == [b"0", b"1", b"2"]
            assert not echo.gone.is_set()

    run(test)


def test_unary_error_text() -> None:
    text = "no such luck: é\n\nAt:\n  100 %"

    async def test() -> None:
        async with served(Echo()) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(channel, "/t/Fail", text.encode())
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, text)

    run(test)


@pytest.mark.parametrize("path", ["/t/Nothing", "/other/Echo"])
def test_unary_unknown_path(path: str) -> None:
    async def test() -> None:
        async with served(Echo()) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(channel, path, b"x")
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, "")

    run(test)


def test_unary_message_larger_than_the_defaults_of_grpc() -> None:
    async def test() -> None:
        async with served(Echo()) as channel:
            big = bytes(20_000_000)
            assert len(await unary(channel, "/t/Echo", big)) == len(big) + 2

    run(test)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_unary_compressed_request(compression: grpc.Compression) -> None:
    async def test() -> None:
        async with served(Echo(), compression=compression) as channel:
            assert await unary(channel, "/t/Echo", b"a" * 10_000) == b"<" + b"a" * 10_000 + b">"

    run(test)


def test_unary_cancelled_by_the_client() -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            call = unary(channel, "/t/Wait", b"")
            await echo.arrived.wait()
            call.cancel()
            await asyncio.wait_for(echo.gone.wait(), WAIT)
            echo.calls[0].send([b"late"])
            echo.calls[0].finish()
            assert await unary(channel, "/t/Echo", b"still here") == b"<still here>"

    run(test)


def test_unary_deadline() -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            await channel.channel_ready()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                # Long enough for the call to reach the server: it is the server that is asked afterwards.
                await unary(channel, "/t/Wait", b"", timeout=1.0)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await asyncio.wait_for(echo.gone.wait(), WAIT)

    run(test)


def test_stream_messages_both_ways() -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            call = chat(channel, metadata=(("key", "value"),))
            for n in range(50):
                await call.write(b"%d" % n)
                assert await call.read() == b"%d" % n
            assert ("key", "value") in echo.streams[0].call.metadata
            await call.done_writing()
            assert (await call.code(), await call.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "bye")
            assert echo.streams[0].ended == ["half closed"]

    run(test)


def test_stream_answers_sent_before_the_end_arrive() -> None:
    async def test() -> None:
        async with served(Echo()) as channel:
            call = chat(channel, iter([b"%d" % n for n in range(200)]))
            assert [await call.read() for _ in range(200)] == [b"%d" % n for n in range(200)]
            assert await call.details() == "bye"

    run(test)


def test_stream_cancelled_by_the_client() -> None:
    async def test() -> None:
        async with served(echo := Echo(patient=True)) as channel:
            call = chat(channel)
            await call.write(b"x")
            await echo.arrived.wait()
            call.cancel()
            await asyncio.wait_for(echo.gone.wait(), WAIT)
            assert echo.streams[0].ended[-1] == "cancelled"
            echo.streams[0].call.send([b"late"])

    run(test)


def test_stream_connection_lost() -> None:
    async def test() -> None:
        echo = Echo(patient=True)
        async with served(echo) as channel:
            call = chat(channel)
            await call.write(b"x")
            await echo.arrived.wait()
            await channel.close(0)
            await asyncio.wait_for(echo.gone.wait(), WAIT)
            assert echo.streams[0].ended[-1] == "cancelled"

    run(test)


def test_stream_ended_by_the_server() -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            call = chat(channel)
            await call.write(b"x")
            assert await call.read() == b"x"
            echo.streams[0].call.finish(13, "enough")
            assert (await call.code(), await call.details()) == (grpc.StatusCode.INTERNAL, "enough")

    run(test)


def test_stream_slow_reader_makes_the_call_full_and_free_again() -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            call = chat(channel)
            await call.write(b"x")
            assert await call.read() == b"x"
            server, block, sent = echo.streams[0].call, bytes(100_000), 1
            while server.send([block]):
                sent += 1
                assert sent < 1000, "never full"
            free = asyncio.Event()
            server.on_writable(free.set)
            assert not free.is_set()
            for _ in range(sent):
                assert len(await call.read()) == len(block)
            await asyncio.wait_for(free.wait(), WAIT)
            server.on_writable(free.clear)
            assert not free.is_set(), "a free call resumes at once"

    run(test)


@pytest.mark.rows("G39")
def test_start_on_a_port_in_use() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(Unavailable) as caught:
                await GrpcServer({}).start("127.0.0.1", port)
            assert caught.value.message == f"Socket '127.0.0.1:{port}' already in use "

    run(test)


def test_start_twice_on_one_port_with_reuse() -> None:
    async def test() -> None:
        first, second = (GrpcServer(Echo().rpcs(), Options(reuse_port=True)) for _ in range(2))
        port = await first.start("127.0.0.1", 0)
        try:
            assert await second.start("127.0.0.1", port) == port
        finally:
            await first.stop(0)
            await second.stop(0)

    run(test)


def test_stop_lets_calls_finish() -> None:
    async def test() -> None:
        echo = Echo()
        server = GrpcServer(echo.rpcs())
        port = await server.start("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            answer = asyncio.ensure_future(unary(channel, "/t/Wait", b""))
            await echo.arrived.wait()
            stopping = asyncio.create_task(server.stop(WAIT))
            await asyncio.sleep(0)
            echo.calls[0].send([b"in time"])
            echo.calls[0].finish()
            assert await answer == b"in time"
            await asyncio.wait_for(stopping, WAIT)

    run(test)


def test_stop_ends_what_takes_too_long() -> None:
    async def test() -> None:
        echo = Echo(patient=True)
        server = GrpcServer(echo.rpcs())
        port = await server.start("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = chat(channel)
            await call.write(b"x")
            await echo.arrived.wait()
            await asyncio.wait_for(server.stop(0.05), WAIT)
            await asyncio.wait_for(echo.gone.wait(), WAIT)
            assert echo.streams[0].ended[-1] == "cancelled"

    run(test)
