"""gRPC streams: half-closed ones, slow readers, and which messages wait for what."""

import asyncio
from functools import partial
from typing import Any

import grpc
import grpc.aio

from halimede.transport.http2.stream import FULL_QUEUE_BYTES, RECEIVE_WINDOW_BYTES
from tests.transport.grpc_fakes import WAIT, Echo, chat, run, served, status_of, unary

BLOCK = bytes(100_000)
NARROW = {"grpc.http2.bdp_probe": 0, "grpc.http2.lookahead_bytes": 65_536}
"""For a client that does not take more and more before it is read."""


async def opened(channel: grpc.aio.Channel, echo: Echo) -> Any:
    """A stream that the service has seen."""
    call = chat(channel)
    await call.write(b"x")
    assert await call.read() == b"x"
    return call


def fill(server: Any) -> int:
    """Sends until the call is full. Returns how many blocks that took."""
    sent = 1
    while server.send([BLOCK]):
        sent += 1
        assert sent < 1000, "never full"
    return sent


def test_stream_answers_sent_before_the_end_arrive() -> None:
    async def test() -> None:
        async with served(Echo()) as channel:
            call = chat(channel, iter([b"%d" % n for n in range(200)]))
            assert [await call.read() for _ in range(200)] == [b"%d" % n for n in range(200)]
            assert await call.details() == "bye"

    run(test)


def test_stream_ended_by_the_server_while_the_client_still_sends() -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            call = await opened(channel, echo)
            echo.streams[0].call.finish(13, "enough")
            assert await status_of(call) == (grpc.StatusCode.INTERNAL, "enough")
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"
            assert echo.streams[0].ended == []

    run(test)


def test_stream_half_closed_is_answered_later() -> None:
    """The client has ended its side. The server goes on and ends the stream later."""

    async def test() -> None:
        async with served(echo := Echo(patient=True)) as channel:
            call = await opened(channel, echo)
            await call.done_writing()
            while not echo.streams[0].ended:
                echo.arrived.clear()
                await asyncio.wait_for(echo.arrived.wait(), WAIT)
            assert echo.streams[0].ended == ["half closed"]
            server = echo.streams[0].call
            for n in range(100):
                server.send([b"%d" % n])
                assert await call.read() == b"%d" % n
            server.finish(0)
            assert await status_of(call) == (grpc.StatusCode.OK, "")
            assert echo.streams[0].ended == ["half closed"]

    run(test)


def test_stream_of_no_messages() -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            call = chat(channel, [])
            assert await status_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, "bye")
            assert (echo.streams[0].messages, echo.streams[0].ended) == ([], ["half closed"])

    run(test)


def test_stream_slow_reader_makes_the_call_full_and_free_again() -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            call = await opened(channel, echo)
            server = echo.streams[0].call
            sent = fill(server)
            resumed: list[int] = []
            free = asyncio.Event()
            for n in range(3):
                server.on_writable(partial(resumed.append, n))
            server.on_writable(free.set)
            assert (resumed, free.is_set()) == ([], False)
            for _ in range(sent):
                assert len(await call.read()) == len(BLOCK)
            await asyncio.wait_for(free.wait(), WAIT)
            assert resumed == [0, 1, 2]
            server.on_writable(free.clear)
            assert not free.is_set(), "a free call resumes at once"

    run(test)


def test_stream_not_writable_gets_no_messages() -> None:
    """Messages wait, in order, until the client has taken its answers. So does its half-close."""
    sent = [b"%d" % n for n in range(5)]

    async def test() -> None:
        async with served(echo := Echo(), settings=NARROW) as channel:
            call = await opened(channel, echo)
            stream = echo.streams[0]
            blocks = fill(stream.call)
            for message in sent:
                await call.write(message)
            await call.done_writing()
            # Another call of the same connection, which was written later: so they have all come.
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"
            assert (stream.messages, stream.ended) == ([b"x"], [])
            for _ in range(blocks):
                assert await call.read() == BLOCK
            assert [await call.read() for _ in sent] == sent
            assert await status_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, "bye")
            assert (stream.messages, stream.ended) == ([b"x", *sent], ["half closed"])

    run(test)


def test_stream_not_writable_holds_its_client_back() -> None:
    """The window of a stream bounds what its client sends without reading. Other calls go on."""

    async def test() -> None:
        async with served(echo := Echo(), settings=NARROW) as channel:
            call = await opened(channel, echo)
            fill(echo.streams[0].call)
            written = 0

            async def write() -> None:
                nonlocal written
                for _ in range(200):
                    await call.write(BLOCK)
                    written += len(BLOCK)

            writing = asyncio.create_task(write())
            for _ in range(100):  # calls enough for the writer to come to its end, if it could
                assert await unary(channel, "/t/Echo", b"x") == b"<x>"
            assert not writing.done()
            assert written <= RECEIVE_WINDOW_BYTES + FULL_QUEUE_BYTES
            assert echo.streams[0].messages == [b"x"]
            while len(echo.streams[0].messages) < 201:
                assert await call.read() == BLOCK
            await writing
            call.cancel()

    run(test)


def test_streams_do_not_wait_for_each_other() -> None:
    """A stream that nobody reads does not affect the others of its connection."""

    async def test() -> None:
        async with served(echo := Echo()) as channel:
            slow = await opened(channel, echo)
            fill(echo.streams[0].call)
            quick = await opened(channel, echo)
            for n in range(100):
                await quick.write(b"%d" % n)
                assert await quick.read() == b"%d" % n
            assert len(await unary(channel, "/t/Echo", bytes(20_000_000))) == 20_000_002
            slow.cancel()
            quick.cancel()

    run(test)


def test_stream_cancelled_while_full_resumes_no_sender() -> None:
    async def test() -> None:
        async with served(echo := Echo(), settings=NARROW) as channel:
            call = await opened(channel, echo)
            fill(echo.streams[0].call)
            resumed: list[int] = []
            echo.streams[0].call.on_writable(lambda: resumed.append(1))
            call.cancel()
            await asyncio.wait_for(echo.gone.wait(), WAIT)
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"
            assert (resumed, echo.streams[0].ended) == ([], ["cancelled"])

    run(test)
