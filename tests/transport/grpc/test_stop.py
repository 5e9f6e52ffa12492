"""Stopping a gRPC server, and how it keeps and ends the connections of grpcio's clients (G38)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from halimede.transport.grpc.server import GrpcServer, GrpcServerOptions
from halimede.transport.http2.limits import Keepalive
from tests.transport.grpc_fakes import WAIT, Echo, HeldTimers, chat, error_of, run, status_of, unary
from tests.transport.http2_bench import Clock
from tests.transport.http2_peer import Peer
from tests.transport.http2_wire import Code


class Counting(GrpcServer):
    """Counts its connections."""

    connections = 0

    def connect(self) -> Any:
        self.connections += 1
        return super().connect()


@asynccontextmanager
async def started(
    echo: Echo, keepalive: Keepalive | None = None, timers: HeldTimers | None = None, **settings: Any
) -> AsyncIterator[tuple[Counting, grpc.aio.Channel]]:
    """A server that the test may stop itself, and a channel with its own connection."""
    server = Counting(echo.rpcs(), GrpcServerOptions(keepalive=keepalive or Keepalive()), timers)
    port = await server.start("127.0.0.1", 0)
    options = {"grpc.use_local_subchannel_pool": 1, **{f"grpc.{key}": value for key, value in settings.items()}}
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=list(options.items())) as channel:
            yield server, channel
    finally:
        await server.stop(0)


async def opened(channel: grpc.aio.Channel, **how: Any) -> Any:
    call = chat(channel, **how)
    await call.write(b"x")
    assert await call.read() == b"x"
    return call


def test_stop_lets_calls_finish() -> None:
    async def test() -> None:
        async with started(echo := Echo()) as (server, channel):
            answer = asyncio.ensure_future(unary(channel, "/t/Wait", b""))
            await echo.until_calls(1)
            stopping = asyncio.create_task(server.stop(WAIT))
            await asyncio.sleep(0)
            echo.calls[0].send([b"in time"])
            echo.calls[0].finish()
            assert await answer == b"in time"
            await asyncio.wait_for(stopping, WAIT)

    run(test)


def test_stop_lets_streams_finish() -> None:
    """Messages still go both ways on a stream that was open."""

    async def test() -> None:
        async with started(echo := Echo()) as (server, channel):
            call = await opened(channel)
            stopping = asyncio.create_task(server.stop(WAIT))
            for n in range(20):
                await call.write(b"%d" % n)
                assert await call.read() == b"%d" % n
            assert not stopping.done()
            await call.done_writing()
            assert await status_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, "bye")
            await asyncio.wait_for(stopping, WAIT)
            assert echo.streams[0].ended == ["half closed"]

    run(test)


@pytest.mark.parametrize("grace", [0.05, 0, None])
def test_stop_cancels_calls_after_the_grace(grace: float | None) -> None:
    async def test() -> None:
        async with started(echo := Echo(patient=True)) as (server, channel):
            call = await opened(channel)
            waiting = asyncio.ensure_future(error_of(unary(channel, "/t/Wait", b"")))
            await echo.until_calls(1)
            await asyncio.wait_for(server.stop(grace), WAIT)
            assert echo.streams[0].ended[-1] == "cancelled"
            ended = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
            assert (await waiting)[0] in ended
            assert (await status_of(call))[0] in ended

    run(test)


def test_stop_accepts_no_more_calls() -> None:
    """The old connection accepts no call, and no new connection is accepted. The open call has its time."""

    async def test() -> None:
        async with started(echo := Echo()) as (server, channel):
            answer = asyncio.ensure_future(unary(channel, "/t/Wait", b""))
            await echo.until_calls(1)
            stopping = asyncio.create_task(server.stop(WAIT))
            code = grpc.StatusCode.OK
            while code is grpc.StatusCode.OK:  # until the client has heard of it
                try:
                    await unary(channel, "/t/Echo", b"x")
                except grpc.aio.AioRpcError as error:
                    code = error.code()
            assert code is grpc.StatusCode.UNAVAILABLE
            assert not stopping.done()
            echo.calls[0].finish()
            await answer
            await asyncio.wait_for(stopping, WAIT)

    run(test)


def test_leaving_server_serves_open_streams_and_new_connections() -> None:
    """The client's next call is on a connection of its own, because the first one takes no more."""

    async def test() -> None:
        async with started(Echo()) as (server, channel):
            call = await opened(channel)
            server.ask_to_leave()
            while server.connections == 1:
                assert await unary(channel, "/t/Echo", b"x") == b"<x>"
            await call.write(b"y")
            assert await call.read() == b"y"
            await call.done_writing()
            assert await status_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, "bye")
            assert await unary(channel, "/t/Echo", b"z") == b"<z>"

    run(test)


def test_stop_again_and_without_a_start() -> None:
    async def test() -> None:
        server = GrpcServer({})
        await server.stop(None)
        await server.start("127.0.0.1", 0)
        await server.stop(1)
        await server.stop(1)

    run(test)


def test_connection_made_while_draining_is_asked_to_go() -> None:
    """The connection was on its way when the port was closed."""
    clock = Clock()
    server = GrpcServer(Echo().rpcs(), None, clock)
    run(lambda: server.stop(0))
    peer = Peer(server, clock).greet()
    assert peer.goaway is not None
    assert peer.goaway.code == Code.NO_ERROR


# Keep-alive


async def _outcome_of_pings(keepalive: Keepalive, seconds: float) -> tuple[grpc.StatusCode, str, int]:
    """Returns how a stream ends whose client pings each second (grpcio does not ping more often), and the number of
    connections."""
    settings: dict[str, Any] = {"keepalive_time_ms": 1, "http2.max_pings_without_data": 0}
    async with started(echo := Echo(patient=True), keepalive, **settings) as (server, channel):
        call = await opened(channel, timeout=seconds)
        code, text = await status_of(call)
        await asyncio.wait_for(echo.gone.wait(), WAIT)
        return code, text, server.connections


@pytest.mark.rows("G38")
def test_client_that_pings_too_often_is_disconnected() -> None:
    """With the default limits the client is disconnected after three seconds. Limits that permit more keep it."""

    async def test() -> None:
        outcomes = await asyncio.gather(
            _outcome_of_pings(Keepalive(), WAIT),
            _outcome_of_pings(Keepalive(min_ping_interval=0.01, max_ping_strikes=1), 3.5),
            _outcome_of_pings(Keepalive(max_ping_strikes=0), 3.5),
        )
        (code, text, _), *kept = outcomes
        assert (code, "too_many_pings" in text) == (grpc.StatusCode.UNAVAILABLE, True)
        assert [(code, count) for code, _, count in kept] == [(grpc.StatusCode.DEADLINE_EXCEEDED, 1)] * 2

    run(test)


def test_server_that_pings_keeps_the_clients_that_answer() -> None:
    """Each ping is answered by the client before the timer that would end the connection fires."""
    silence, answer = 0.0, 1_000.0
    keepalive = Keepalive(time=silence, timeout=answer, permit_without_calls=True, max_pings_without_data=0)

    async def test() -> None:
        timers = HeldTimers()
        async with started(Echo(patient=True), keepalive, timers) as (server, channel):
            call = await opened(channel)
            for _ in range(5):
                timers.fire(silence, silence)
                timers.asked.clear()
                await asyncio.wait_for(timers.asked.wait(), WAIT)
                timers.fire(answer, answer)
            assert not call.done()
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"
            assert server.connections == 1
            call.cancel()

    run(test)


# Age

AGE, GRACE = 1_000.0, 5_000.0


def reach_the_age(timers: HeldTimers) -> None:
    """The age of a connection is spread by a tenth."""
    timers.fire(AGE * 0.9, AGE * 1.1)


def test_old_connections_are_replaced_without_an_error() -> None:
    async def test() -> None:
        timers = HeldTimers()
        async with started(Echo(), Keepalive(max_age=AGE), timers) as (server, channel):
            for connections in range(1, 4):
                assert await unary(channel, "/t/Echo", b"x") == b"<x>"
                assert server.connections == connections
                reach_the_age(timers)
                while server.connections == connections:
                    assert await unary(channel, "/t/Echo", b"x") == b"<x>"

    run(test)


def test_old_connection_lets_its_call_finish() -> None:
    async def test() -> None:
        timers = HeldTimers()
        async with started(Echo(), Keepalive(max_age=AGE), timers) as (server, channel):
            call = await opened(channel)
            reach_the_age(timers)
            while server.connections < 2:
                assert await unary(channel, "/t/Echo", b"x") == b"<x>"
            await call.write(b"still here")
            assert await call.read() == b"still here"
            await call.done_writing()
            assert await status_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, "bye")

    run(test)


def test_old_connection_ends_its_call_after_the_grace() -> None:
    async def test() -> None:
        timers = HeldTimers()
        keepalive = Keepalive(max_age=AGE, max_age_grace=GRACE)
        async with started(echo := Echo(patient=True), keepalive, timers) as (_, channel):
            call = await opened(channel)
            reach_the_age(timers)
            timers.fire(GRACE, GRACE)
            assert (await status_of(call))[0] in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
            assert echo.streams[0].ended == ["cancelled"]
            assert await unary(channel, "/t/Echo", b"x", wait_for_ready=True) == b"<x>"

    run(test)
