"""How the server closes a connection: how long it reads on, and that its last bytes arrive."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from halimede.transport.event_loop import call_later_on_running_loop
from halimede.transport.lingering import (
    MAX_LINGER_BYTES,
    MAX_LINGER_SECONDS,
    QUIET_SECONDS,
    STALLED_SECONDS,
    close_flushing,
    close_lingering,
)
from tests.transport.http2_bench import Clock

LIMIT = 10.0
STILL_SENT = 20 << 20


class Transport(asyncio.Transport):
    """One whose side can be ended alone; keeps in their order what is asked of it."""

    def __init__(self, *, half_closes: bool = True, broken: bool = False, reading: bool = True) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.protocol: Any = None
        self.unsent = 0
        self._half_closes = half_closes
        self._broken = broken
        self._reading = reading

    def can_write_eof(self) -> bool:
        return self._half_closes

    def write_eof(self) -> None:
        if self._broken:
            raise OSError("not connected")
        self.asked.append("end")

    def is_reading(self) -> bool:
        return self._reading

    def resume_reading(self) -> None:
        self.asked.append("read")

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return "close" in self.asked or "abort" in self.asked

    def close(self) -> None:
        self.asked.append("close")

    def abort(self) -> None:
        self.asked.append("abort")


class Ending:
    """A connection that the server closes, and what its client does then."""

    def __init__(self, transport: Transport) -> None:
        self.clock = Clock()
        self.transport = transport
        self.lost: list[Exception | None] = []
        close_lingering(transport, memoryview(bytearray(16)), self.clock.call_later, self.lost.append)

    def sends(self, count: int) -> None:
        assert len(self.transport.protocol.get_buffer(-1)) == 16
        self.transport.protocol.buffer_updated(count)


def test_own_side_is_ended_and_the_clients_end_awaited() -> None:
    ending = Ending(Transport())
    assert ending.transport.asked == ["end"]
    assert not ending.transport.protocol.eof_received()  # the transport closes then
    ending.transport.protocol.connection_lost(None)
    assert ending.lost == [None]
    assert not ending.clock.waiting


def test_reading_goes_on_where_it_was_paused() -> None:
    assert Ending(Transport(reading=False)).transport.asked == ["end", "read"]


def test_silent_client_is_dropped_soon() -> None:
    ending = Ending(Transport())
    ending.clock.advance(QUIET_SECONDS * 0.9)
    assert not ending.transport.is_closing()
    ending.clock.advance(QUIET_SECONDS * 0.2)
    assert ending.transport.asked == ["end", "abort"]


def test_client_that_still_sends_is_read_within_the_time() -> None:
    ending = Ending(Transport())
    passed = 0.0
    while not ending.transport.is_closing():
        ending.sends(10)
        ending.clock.advance(1.0)
        passed += 1.0
        assert passed < 2 * MAX_LINGER_SECONDS
    assert passed >= MAX_LINGER_SECONDS


def test_client_that_sends_too_much_is_dropped() -> None:
    ending = Ending(Transport())
    ending.sends(MAX_LINGER_BYTES)
    assert not ending.transport.is_closing()
    ending.sends(1)
    assert ending.transport.is_closing()


def test_slow_reader_is_waited_for_and_then_given_its_time() -> None:
    ending = Ending(Transport())
    for unsent in range(20, 0, -1):
        ending.transport.unsent = unsent
        ending.clock.advance(STALLED_SECONDS * 0.9)
        assert not ending.transport.is_closing()
    ending.transport.unsent = 0
    ending.clock.advance(2 * QUIET_SECONDS)
    assert ending.transport.is_closing()


def test_client_that_never_reads_its_last_answer_is_dropped() -> None:
    ending = Ending(Transport())
    ending.transport.unsent = 7
    passed = 0.0
    while not ending.transport.is_closing():
        ending.sends(10)  # as much as it likes
        ending.clock.advance(1.0)
        passed += 1.0
        assert passed < 2 * STALLED_SECONDS
    assert passed >= STALLED_SECONDS


def test_flushing_goes_on_as_long_as_the_client_reads() -> None:
    clock, transport = Clock(), Transport()
    transport.unsent = 3
    close_flushing(transport, clock.call_later)
    for unsent in (2, 1):
        transport.unsent = unsent
        clock.advance(STALLED_SECONDS)
    assert transport.asked == ["close"]
    clock.advance(STALLED_SECONDS)
    assert transport.asked == ["close", "abort"]
    assert not clock.waiting


def test_flushing_waits_for_nothing_once_all_is_read() -> None:
    clock, transport = Clock(), Transport()
    transport.unsent = 3
    close_flushing(transport, clock.call_later)
    transport.unsent = 0
    clock.advance(STALLED_SECONDS)
    assert transport.asked == ["close"]
    assert not clock.waiting


@pytest.mark.parametrize(
    ("transport", "asked"),
    [(Transport(half_closes=False), ["close"]), (Transport(broken=True), ["abort"])],
    ids=["TLS", "reset already"],
)
def test_transport_without_half_close_is_closed(transport: Transport, asked: list[str]) -> None:
    ending = Ending(transport)
    assert ending.transport.asked == asked
    assert not ending.clock.waiting or transport.protocol is not None


# Over sockets.


class Answering(asyncio.BufferedProtocol):
    """Answers the first bytes at once, and ends."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._scratch = memoryview(bytearray(1 << 16))
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # which the base type cannot say

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._transport.write(self._answer)
        close_lingering(self._transport, self._scratch, call_later_on_running_loop, self._lost)

    def _lost(self, error: Exception | None) -> None:
        self.lost.set_result(None)


def send_all_then_read(port: int) -> bytes:
    """A client that reads nothing until it has sent everything, as most do."""
    with socket.create_connection(("127.0.0.1", port), LIMIT) as client:
        client.sendall(bytes(STILL_SENT))
        got = b""
        while part := client.recv(1 << 16):
            got += part
        return got


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("answer", [b"no", b"no" * 1_000_000], ids=["short", "long"])
def test_answer_reaches_a_client_that_still_sends(
    new_loop: Callable[[], asyncio.AbstractEventLoop], answer: bytes
) -> None:
    async def run() -> None:
        made: list[Answering] = []

        def connect() -> Answering:
            made.append(Answering(answer))
            return made[-1]

        server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert await asyncio.wait_for(asyncio.to_thread(send_all_then_read, port), LIMIT) == answer
        await asyncio.wait_for(made[0].lost, LIMIT)
        server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
