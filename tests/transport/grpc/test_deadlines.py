"""Deadlines of gRPC calls, and calls that their client cancels."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from halimede.tensors import Buffer
from halimede.transport.grpc.calls import Cancel, GrpcCall, Unary
from halimede.transport.grpc.server import GrpcServer
from tests.transport.grpc_fakes import TIMES, WAIT, Echo, chat, error_of, run, running, served, status_of, unary

LATE = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


def test_deadline_of_a_unary_call_cancels_its_service() -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            await channel.channel_ready()
            for timeout in TIMES:
                code, _ = await error_of(unary(channel, "/t/Wait", b"", timeout=timeout))
                assert code is grpc.StatusCode.DEADLINE_EXCEEDED
                if echo.calls:
                    break
            await asyncio.wait_for(echo.gone.wait(), WAIT)
            echo.calls[0].send([b"late"])
            echo.calls[0].finish()
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"

    run(test)


def test_deadline_of_a_stream_cancels_its_service() -> None:
    async def test() -> None:
        async with served(echo := Echo(patient=True)) as channel:
            await channel.channel_ready()
            for timeout in TIMES:
                call, answer = chat(channel, timeout=timeout), b""
                with suppress(grpc.aio.AioRpcError):
                    await call.write(b"x")
                    answer = await call.read()
                assert (await status_of(call))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
                if answer == b"x":
                    break
            await asyncio.wait_for(echo.gone.wait(), WAIT)
            assert echo.streams[-1].ended == ["cancelled"]
            echo.streams[-1].call.send([b"late"])

    run(test)


@pytest.mark.parametrize("timeout", ["0H", "0S", "50m", "50000u", "50000000n"])
def test_deadline_kept_by_the_server_alone(timeout: str) -> None:
    """The client has no deadline of its own, so the text is the server's."""
    metadata = (("grpc-timeout", timeout),)

    async def test() -> None:
        async with served(echo := Echo(patient=True)) as channel:
            assert await error_of(unary(channel, "/t/Wait", b"", timeout=None, metadata=metadata)) == LATE
            assert await status_of(chat(channel, timeout=None, metadata=metadata)) == LATE
            assert echo.streams[0].ended == ["cancelled"]

    run(test)


@pytest.mark.parametrize("timeout", ["1H", "1M", "8S", "8000m", "8000000u", "99999999H"])
def test_deadline_that_is_far_away(timeout: str) -> None:
    async def test() -> None:
        async with served(Echo()) as channel:
            answer = unary(channel, "/t/Echo", b"x", timeout=None, metadata=(("grpc-timeout", timeout),))
            assert await answer == b"<x>"

    run(test)


def test_deadline_is_forgotten_with_its_call() -> None:
    """Calls with long deadlines leave no timer behind, however they end."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        handles: list[asyncio.TimerHandle] = []

        class Watched:
            time = staticmethod(loop.time)
            call_soon = staticmethod(loop.call_soon)

            @staticmethod
            def call_later(delay: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
                handles.append(loop.call_later(delay, callback, *args))
                return handles[-1]

        server = GrpcServer((echo := Echo()).rpcs(), loop=Watched())
        port = await server.start("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await asyncio.gather(*(unary(channel, "/t/Echo", b"", timeout=500) for _ in range(500)))
            for stream in [chat(channel, [b"x"], timeout=500) for _ in range(100)]:
                assert await stream.read() == b"x"
                assert (await status_of(stream))[1] == "bye"
            taken_back = [unary(channel, "/t/Wait", b"", timeout=500) for _ in range(100)]
            await echo.until_calls(600)
            for call in taken_back:
                call.cancel()
            await asyncio.wait_for(echo.gone.wait(), WAIT)
            await unary(channel, "/t/Echo", b"", timeout=500)  # after the resets, on the same connection
            deadlines = [handle for handle in handles if handle.when() - loop.time() > 400 and not handle.cancelled()]
            assert len(handles) > 700
            assert len(deadlines) <= 1, "only the connection's own keep-alive"
        await server.stop(0)

    run(test)


# Calls taken back


def test_cancelled_unary_call_tells_its_service_once() -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            call = unary(channel, "/t/Wait", b"")
            await echo.until_calls(1)
            call.cancel()
            await asyncio.wait_for(echo.gone.wait(), WAIT)
            echo.gone.clear()
            echo.calls[0].send([b"late"])
            echo.calls[0].finish()
            assert await unary(channel, "/t/Echo", b"still here") == b"<still here>"
            assert not echo.gone.is_set()

    run(test)


def test_cancelled_stream_tells_its_service() -> None:
    async def test() -> None:
        async with served(echo := Echo(patient=True)) as channel:
            call = chat(channel)
            await call.write(b"x")
            assert await call.read() == b"x"
            call.cancel()
            await asyncio.wait_for(echo.gone.wait(), WAIT)
            assert echo.streams[0].ended[-1] == "cancelled"
            echo.streams[0].call.send([b"late"])
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"

    run(test)


def test_cancelled_stream_after_its_half_close() -> None:
    async def test() -> None:
        async with served(echo := Echo(patient=True)) as channel:
            call = chat(channel)
            await call.write(b"x")
            assert await call.read() == b"x"
            await call.done_writing()
            while not echo.streams[0].ended:
                echo.arrived.clear()
                await asyncio.wait_for(echo.arrived.wait(), WAIT)
            call.cancel()
            await asyncio.wait_for(echo.gone.wait(), WAIT)
            assert echo.streams[0].ended == ["half closed", "cancelled"]

    run(test)


def test_cancelled_call_is_not_told_after_its_answer() -> None:
    cancels: list[int] = []

    def answer(message: Buffer, call: GrpcCall) -> Cancel:
        call.send([message])
        call.finish()
        return lambda: cancels.append(1)

    async def test() -> None:
        async with running({"/t/Answer": Unary(answer)}) as (_, target), grpc.aio.insecure_channel(target) as channel:
            for _ in range(20):
                call = unary(channel, "/t/Answer", b"x")
                assert await call == b"x"
                call.cancel()

    run(test)
    assert cancels == []


def test_cancelled_before_the_message_is_whole() -> None:
    """The service gets the whole message or none, whenever the call is cancelled, and the connection stays open."""
    big = bytes(8_000_000)

    async def test() -> None:
        async with served(echo := Echo()) as channel:
            for turns in range(0, 60, 3):
                call = unary(channel, "/t/Echo", big)
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
                assert await unary(channel, "/t/Echo", b"x") == b"<x>"
            assert len(await unary(channel, "/t/Echo", big)) == len(big) + 2
            assert echo.calls

    run(test)


def test_connection_lost_cancels_all_its_calls() -> None:
    async def test() -> None:
        echo = Echo(patient=True)
        async with running(echo.rpcs()) as (_, target):
            channel = grpc.aio.insecure_channel(target)
            waiting = [asyncio.ensure_future(unary(channel, "/t/Wait", b"")) for _ in range(3)]
            call = chat(channel)
            await call.write(b"x")
            assert await call.read() == b"x"
            await echo.until_calls(3)
            await channel.close(0)
            await asyncio.gather(*waiting, return_exceptions=True)
            await asyncio.wait_for(echo.gone.wait(), WAIT)
            async with grpc.aio.insecure_channel(target) as another:
                assert await unary(another, "/t/Echo", b"x") == b"<x>"
            assert echo.streams[0].ended == ["cancelled"]

    run(test)
