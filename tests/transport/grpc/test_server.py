"""The gRPC server as grpcio sees it: unary calls and streams, sizes, many calls at once, starting."""

import asyncio
import hashlib
import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import uvloop

from halimede.errors import Unavailable
from halimede.tensors import Buffer
from halimede.transport.grpc.calls import Bidirectional, GrpcCall, Unary
from halimede.transport.grpc.messages import LARGE_MESSAGE_BYTES
from halimede.transport.grpc.server import GrpcServer, GrpcServerOptions
from tests.transport.grpc_fakes import ANY_SIZE, WAIT, Chat, Echo, chat, error_of, run, running, served, unary

LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]


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
            await echo.until_calls(3)
            for n, call in enumerate(echo.calls):
                call.send([b"%d" % n])
                call.finish()
            assert sorted(await asyncio.gather(*answers)) == [b"0", b"1", b"2"]
            assert not echo.gone.is_set()

    run(test)


@pytest.mark.parametrize("path", ["/t/Nothing", "/other/Echo", "/t/echo", "/t/Echo/", "/"])
def test_unary_unknown_path(path: str) -> None:
    async def test() -> None:
        async with served(Echo()) as channel:
            assert await error_of(unary(channel, path, b"x")) == (grpc.StatusCode.UNIMPLEMENTED, "")
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"

    run(test)


def test_unary_empty_messages() -> None:
    def nothing(message: Buffer, call: GrpcCall) -> None:
        assert len(message) == 0
        call.send([])
        call.finish()

    async def test() -> None:
        async with running({"/t/Nothing": Unary(nothing)}) as (_, target), grpc.aio.insecure_channel(target) as channel:
            assert await unary(channel, "/t/Nothing", b"") == b""

    run(test)


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_stream_messages_both_ways(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
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

    run(test, loop_factory)


# The client of threads


def threaded(target: str, **options: int) -> Any:
    """A channel of grpcio's threaded client. It is untyped, because its stubs require serializers."""
    return grpc.insecure_channel(target, options=[(f"grpc.{key}", value) for key, value in options.items()])


def _sync_calls(target: str) -> None:
    with threaded(target) as channel:
        call = channel.unary_unary("/t/Echo")
        assert call(b"1", timeout=WAIT) == b"<1>"
        assert call.future(b"2", timeout=WAIT).result() == b"<2>"
        answer, outcome = call.with_call(b"3", timeout=WAIT)
        assert (answer, outcome.code(), outcome.details()) == (b"<3>", grpc.StatusCode.OK, "")
        stream = channel.stream_stream("/t/Chat")
        messages = [b"%d" % n for n in range(100)]
        answers = stream(iter(messages), timeout=WAIT)
        assert [next(answers) for _ in messages] == messages
        assert answers.code() is grpc.StatusCode.INVALID_ARGUMENT
        # Other arities of client calls are the same on the wire.
        assert next(iter(channel.unary_stream("/t/Echo")(b"4", timeout=WAIT))) == b"<4>"
        assert channel.stream_unary("/t/Echo")(iter([b"5"]), timeout=WAIT) == b"<5>"
        waiting = channel.unary_unary("/t/Wait").future(b"", timeout=WAIT)
        waiting.cancel()
        with pytest.raises(grpc.FutureCancelledError):
            waiting.result()


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_client_of_threads(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test() -> None:
        async with running(Echo().rpcs()) as (_, target):
            await asyncio.to_thread(_sync_calls, target)

    run(test, loop_factory)


# Sizes


def content(size: int) -> bytes:
    """Bytes that do not repeat, so that a misplaced part is noticed."""
    return random.Random(size).randbytes(size)


@pytest.mark.rows("G15")
@pytest.mark.parametrize("loop_factory", LOOPS)
@pytest.mark.parametrize("size", [1 << 20, 16_000_003, 1 << 26])
def test_unary_large_message(size: int, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    big = content(size)

    async def test() -> None:
        async with served(Echo()) as channel:
            answer = await unary(channel, "/t/Echo", big)
            assert (len(answer), answer[:1], answer[-1:]) == (size + 2, b"<", b">")
            assert hashlib.sha256(memoryview(answer)[1:-1]).digest() == hashlib.sha256(big).digest()

    run(test, loop_factory)


@pytest.mark.rows("G15")
@pytest.mark.parametrize("size", [1 << 20, 16_000_003])
def test_stream_large_messages(size: int) -> None:
    """Each message returns while the next is on its way, between small ones."""
    messages = [content(size), b"small", content(size + 1), b"", content(size + 2)]

    async def test() -> None:
        async with served(Echo()) as channel:
            call = chat(channel, messages)
            assert [await call.read() for _ in messages] == messages
            assert await call.details() == "bye"

    run(test)


def test_message_size_around_every_border() -> None:
    """Sizes around those of frames (16 kB), of windows (64 kB, 1 MB, 4 MB), and of direct receiving."""
    borders = [1 << 14, 65_535, 1 << 16, 1 << 18, 1 << 20, 1 << 22]
    sizes = [border + more for border in borders for more in (-6, -5, -1, 0, 1)]

    async def test() -> None:
        async with served(Echo()) as channel:
            for size in sizes:
                message = content(size)
                assert await unary(channel, "/t/Echo", message) == b"<" + message + b">", size

    run(test)


@pytest.mark.parametrize("limit", [100, 100_000, 1 << 20])
def test_message_larger_than_the_server_takes(limit: int) -> None:
    exhausted, text = grpc.StatusCode.RESOURCE_EXHAUSTED, f"Received message larger than max ({limit + 1} vs. {limit})"

    async def test() -> None:
        async with served(echo := Echo(), GrpcServerOptions(max_receive_bytes=limit)) as channel:
            assert len(await unary(channel, "/t/Echo", bytes(limit))) == limit + 2
            assert await error_of(unary(channel, "/t/Echo", bytes(limit + 1))) == (exhausted, text)
            assert len(echo.calls) == 1
            call = chat(channel)
            await call.write(bytes(limit))
            assert len(await call.read()) == limit
            await call.write(bytes(limit + 1))
            assert (await call.code(), await call.details()) == (exhausted, text)
            assert echo.streams[0].ended == ["cancelled"]

    run(test)


def test_message_larger_than_the_client_takes() -> None:
    async def test() -> None:
        async with served(Echo(patient=True), settings={"grpc.max_receive_message_length": 1000}) as channel:
            code, text = await error_of(unary(channel, "/t/Echo", bytes(1000)))
            assert (code, "1002 vs. 1000" in text) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"

    run(test)


@pytest.mark.parametrize("offset", [0, 1, 37, 64, 1000])
@pytest.mark.parametrize("size", [LARGE_MESSAGE_BYTES, 5_000_000])
def test_large_message_has_its_first_tensor_aligned(offset: int, size: int) -> None:
    places: list[tuple[int, bool]] = []
    message = content(size)

    def first_tensor(start: Buffer) -> int:
        """The message begins as it was sent, however little of it has come."""
        assert message.startswith(bytes(start))
        return offset

    def note(received: Buffer) -> None:
        place = np.frombuffer(received, np.uint8)[offset:].ctypes.data
        places.append((place % 64, bytes(received) == message))

    def whole(received: Buffer, call: GrpcCall) -> None:
        note(received)
        call.finish()

    class Noting(Chat):
        def message(self, message: Buffer) -> None:
            note(message)
            self.call.finish()

    rpcs: dict[str, Unary | Bidirectional] = {
        "/t/Unary": Unary(whole, first_tensor=first_tensor),
        "/t/Chat": Bidirectional(lambda call: Noting(call, Echo()), first_tensor=first_tensor),
    }

    async def test() -> None:
        async with (
            running(rpcs) as (_, target),
            grpc.aio.insecure_channel(target, options=list(ANY_SIZE.items())) as channel,
        ):
            await unary(channel, "/t/Unary", message)
            call = chat(channel)
            await call.write(message)
            assert await call.code() is grpc.StatusCode.OK

    run(test)
    assert places == [(0, True)] * 2


# Many at once


def test_many_calls_at_once() -> None:
    """2,000 calls on one connection, which is more than it may have open, so some wait in the client."""

    async def test() -> None:
        async with served(echo := Echo()) as channel:
            answers = [asyncio.ensure_future(unary(channel, "/t/Echo", b"%d" % n)) for n in range(2000)]
            assert await asyncio.gather(*answers) == [b"<%d>" % n for n in range(2000)]
            waiting = [asyncio.ensure_future(unary(channel, "/t/Wait", b"")) for _ in range(2000)]
            for n in range(2000):
                await echo.until_calls(2000 + n + 1)
                echo.calls[2000 + n].send([b"%d" % n])
                echo.calls[2000 + n].finish()
            assert len(set(await asyncio.gather(*waiting))) == 2000

    run(test)


def test_many_streams_at_once() -> None:
    async def one(channel: grpc.aio.Channel, n: int) -> bool:
        messages = [b"%d %d" % (n, m) for m in range(10)]
        call = chat(channel, messages)
        return [await call.read() for _ in messages] == messages and await call.details() == "bye"

    async def test() -> None:
        async with served(Echo()) as channel:
            assert all(await asyncio.gather(*(one(channel, n) for n in range(200))))

    run(test)


def test_many_clients_at_once() -> None:
    def one(target: str, n: int) -> bool:
        # A connection of its own: channels with equal options share theirs.
        with threaded(target, use_local_subchannel_pool=1) as channel:
            call = channel.unary_unary("/t/Echo")
            return bool(call(b"%d" % n, timeout=WAIT) == b"<%d>" % n)

    async def test() -> None:
        async with running(Echo().rpcs()) as (_, target):
            assert all(await asyncio.gather(*(asyncio.to_thread(one, target, n) for n in range(20))))

    run(test)


# Starting


def _taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


taken = pytest.fixture(_taken, name="taken")


@pytest.mark.rows("G39")
def test_start_on_a_port_in_use(taken: int) -> None:
    async def test() -> None:
        with pytest.raises(Unavailable) as caught:
            await GrpcServer({}).start("127.0.0.1", taken)
        assert caught.value.message == f"Socket '127.0.0.1:{taken}' already in use "

    run(test)


def test_start_twice_on_one_port_with_reuse() -> None:
    async def test() -> None:
        first, second = (GrpcServer(Echo().rpcs(), GrpcServerOptions(reuse_port=True)) for _ in range(2))
        port = await first.start("127.0.0.1", 0)
        try:
            assert await second.start("127.0.0.1", port) == port
        finally:
            await first.stop(0)
            await second.stop(0)

    run(test)
