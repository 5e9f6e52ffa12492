"""How gRPC calls end: status codes and their texts, and services that raise."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from halimede.tensors import Buffer
from halimede.transport.grpc.calls import Bidirectional, Cancel, GrpcCall, Unary
from tests.transport.grpc_fakes import TIMES, WAIT, Echo, chat, error_of, run, running, served, status_of, unary

BROKEN = (grpc.StatusCode.UNKNOWN, "internal error")
LARGE_HEADERS = {"grpc.max_metadata_size": 1 << 20, "grpc.absolute_max_metadata_size": 1 << 20}
ERRORS = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


def ending(code: int, text: str, after: int = 0) -> dict[str, Unary | Bidirectional]:
    """`/t/Unary` and `/t/Chat` end with this status, the second after some messages."""

    def answer(message: Buffer, call: GrpcCall) -> None:
        call.finish(code, text)

    class Ending:
        def __init__(self, call: GrpcCall) -> None:
            for n in range(after):
                call.send([b"%d" % n])
            call.finish(code, text)

        def message(self, message: Buffer) -> None: ...
        def half_closed(self) -> None: ...
        def held_bytes(self) -> int:
            return 0

        def cancelled(self) -> None: ...

    return {"/t/Unary": Unary(answer), "/t/Chat": Bidirectional(Ending)}


@pytest.mark.parametrize("code", ERRORS, ids=lambda code: code.name)
def test_status_code(code: grpc.StatusCode) -> None:
    async def test() -> None:
        async with (
            running(ending(code.value[0], "why", after=2)) as (_, target),
            grpc.aio.insecure_channel(target) as channel,
        ):
            assert await error_of(unary(channel, "/t/Unary", b"x")) == (code, "why")
            call = chat(channel)
            assert [await call.read() for _ in range(2)] == [b"0", b"1"]
            assert await status_of(call) == (code, "why")

    run(test)


TEXTS = [
    "",
    "plain words",
    "no such luck: é\n\nAt:\n  100 %",
    "%41 %zz %",
    "日本語 🎉 \u0301",
    "tab\tnul\0 del\x7f\r\n end",
    ' quoted "x" and \\ with a blank at both ends ',
    "é" * 5000,
    "\N{REPLACEMENT CHARACTER}" * 20_000,
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_status_text_arrives_as_it_was(text: str) -> None:
    async def test() -> None:
        async with (
            running(ending(3, text)) as (_, target),
            grpc.aio.insecure_channel(target, options=list(LARGE_HEADERS.items())) as channel,
        ):
            invalid = grpc.StatusCode.INVALID_ARGUMENT
            assert await error_of(unary(channel, "/t/Unary", b"x")) == (invalid, text)
            assert await status_of(chat(channel)) == (invalid, text)

    run(test)


def test_status_text_that_no_encoding_takes() -> None:
    """A lone surrogate, which a file name may bring into a text, becomes one replacement character."""

    async def test() -> None:
        async with running(ending(3, "a\ud800b")) as (_, target), grpc.aio.insecure_channel(target) as channel:
            assert (await error_of(unary(channel, "/t/Unary", b"x")))[1] == "a?b"

    run(test)


def test_status_without_a_message_has_no_initial_metadata() -> None:
    """The answer is one header block, so that clients and proxies see the status at once."""

    async def test() -> None:
        async with running(ending(9, "x")) as (_, target), grpc.aio.insecure_channel(target) as channel:
            call = unary(channel, "/t/Unary", b"x")
            assert (await call.code(), tuple(await call.initial_metadata())) == (
                grpc.StatusCode.FAILED_PRECONDITION,
                (),
            )

    run(test)


def test_unary_ok_without_a_message() -> None:
    """A call that ends OK without a message has sent an empty one."""

    async def test() -> None:
        async with running(ending(0, "")) as (_, target), grpc.aio.insecure_channel(target) as channel:
            assert await unary(channel, "/t/Unary", b"x") == b""
            assert await status_of(chat(channel)) == (grpc.StatusCode.OK, "")

    run(test)


def test_second_finish_and_late_calls_have_no_effect() -> None:
    async def test() -> None:
        async with served(echo := Echo()) as channel:
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"
            call = echo.calls[0]
            call.finish(13, "again")
            assert call.send([b"late"]) in (True, False)
            resumed: list[int] = []
            call.on_writable(lambda: resumed.append(1))
            stream = chat(channel, [b"x"])
            assert await stream.read() == b"x"
            assert (await status_of(stream))[1] == "bye"
            echo.streams[0].call.send([b"late"])
            echo.streams[0].call.finish(13, "again")
            assert await unary(channel, "/t/Echo", b"y") == b"<y>"

    run(test)


# Services that break


class Broken:
    """A service that raises in one of its steps and otherwise echoes."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.calls = 0
        self.gone = asyncio.Event()

    def rpcs(self) -> dict[str, Unary | Bidirectional]:
        return {"/t/Unary": Unary(self.unary), "/t/Chat": Bidirectional(self.open), "/t/Echo": Unary(Echo().echo)}

    def breaks(self, step: str) -> None:
        if step == self.step:
            raise ZeroDivisionError("broken on purpose")

    def unary(self, message: Buffer, call: GrpcCall) -> Cancel:
        self.calls += 1
        self.breaks("handler")
        return self.cancelled

    def open(self, call: GrpcCall) -> "BrokenStream":
        self.breaks("open")
        return BrokenStream(self, call)

    def held_bytes(self) -> int:
        return 0

    def cancelled(self) -> None:
        self.gone.set()
        raise ZeroDivisionError("broken on purpose")


class BrokenStream:
    def __init__(self, broken: Broken, call: GrpcCall) -> None:
        self.broken = broken
        self.call = call
        self.cancelled = broken.cancelled

    def message(self, message: Buffer) -> None:
        self.call.send([message])
        if message == b"before":
            return
        self.broken.breaks("message")
        if self.broken.step == "resume":
            while self.call.send([bytes(100_000)]):
                pass
            self.call.on_writable(lambda: self.broken.breaks("resume"))

    def half_closed(self) -> None:
        self.broken.breaks("half_closed")

    def held_bytes(self) -> int:
        return 0


async def _break_handler(channel: grpc.aio.Channel, broken: Broken) -> None:
    assert await error_of(unary(channel, "/t/Unary", b"x")) == BROKEN


async def _break_open(channel: grpc.aio.Channel, broken: Broken) -> None:
    assert await status_of(chat(channel)) == BROKEN


async def _break_message(channel: grpc.aio.Channel, broken: Broken) -> None:
    """What was sent before the error still arrives."""
    call = chat(channel)
    await call.write(b"x")
    assert await call.read() == b"x"
    assert await status_of(call) == BROKEN
    assert broken.gone.is_set()


async def _break_half_closed(channel: grpc.aio.Channel, broken: Broken) -> None:
    call = chat(channel)
    await call.done_writing()
    assert await status_of(call) == BROKEN


async def _break_resume(channel: grpc.aio.Channel, broken: Broken) -> None:
    call = chat(channel)
    await call.write(b"x")
    with suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    # What still waited to be sent is given up with the call, and its status then too.
    assert (await status_of(call))[0] in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)


async def _break_cancel(channel: grpc.aio.Channel, broken: Broken) -> None:
    await channel.channel_ready()
    for timeout in TIMES:
        code, _ = await error_of(unary(channel, "/t/Unary", b"x", timeout=timeout))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        if broken.calls:
            break
    await asyncio.wait_for(broken.gone.wait(), WAIT)


async def _break_cancelled(channel: grpc.aio.Channel, broken: Broken) -> None:
    call = chat(channel)
    await call.write(b"x")
    assert await call.read() == b"x"
    call.cancel()
    await asyncio.wait_for(broken.gone.wait(), WAIT)


STEPS: dict[str, Callable[[grpc.aio.Channel, Broken], Any]] = {
    "handler": _break_handler,
    "open": _break_open,
    "message": _break_message,
    "half_closed": _break_half_closed,
    "resume": _break_resume,
    "cancel": _break_cancel,
    "cancelled": _break_cancelled,
}


@pytest.mark.parametrize("step", STEPS)
def test_error_of_the_service_ends_its_call_only(step: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        broken = Broken(step)
        async with running(broken.rpcs()) as (_, target), grpc.aio.insecure_channel(target) as channel:
            other = chat(channel)  # a call of the same connection, open all the while
            if step != "open":
                await other.write(b"before")
                assert await other.read() == b"before"
            await STEPS[step](channel, broken)
            assert await unary(channel, "/t/Echo", b"still here") == b"<still here>"
            assert step == "open" or not other.done()
            other.cancel()

    run(test)
    assert "broken on purpose" in caplog.text
