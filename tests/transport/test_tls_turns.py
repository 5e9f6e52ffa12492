"""TLS in turns: which steps run at once and which wait, and that nothing is lost meanwhile."""

import asyncio
import random
import select
import socket
import ssl
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from halimede.transport.sockets import listening_socket, serve_at
from halimede.transport.tls import server_context
from halimede.transport.tls_turns import HANDSHAKE_SECONDS, RECORD_SECONDS, ROOM_BYTES, TlsPort, TurnTime
from tests.transport.certificates import Certificates, certificates
from tests.transport.grpc_fakes import run

LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]


class Turns:
    """Each step takes `cost` seconds."""

    def __init__(self, cost: float) -> None:
        self._now, self._cost = 0.0, cost
        self.due: list[Callable[[], None]] = []
        self.steps = 0
        loop = cast(asyncio.AbstractEventLoop, self)
        self.time = TurnTime(loop, HANDSHAKE_SECONDS, lambda: self._now)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def run(self) -> bool:
        return self.time.run(self._step)

    def _step(self) -> None:
        self._now += self._cost
        self.steps += 1

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


def test_steps_beyond_the_slice_wait_for_the_next_turns() -> None:
    turns = Turns(HANDSHAKE_SECONDS * 0.6)
    assert [turns.run() for _ in range(5)] == [True, True, False, False, False]
    for steps in (2, 4, 5):
        assert turns.steps == steps
        turns.turn()
    assert turns.run()


def test_steps_that_are_rare_never_wait() -> None:
    turns = Turns(HANDSHAKE_SECONDS * 3)
    for _ in range(5):
        assert turns.run()
        turns.turn()
    turns.turn()
    assert turns.due == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("certificates"))


class Greeter(asyncio.BufferedProtocol):
    """Says that the handshake is done, and returns what it receives. After each part it pauses, if it is slow."""

    def __init__(self, room: int = 1 << 18, slow: bool = False) -> None:
        self._room = memoryview(bytearray(room))
        self._slow = slow
        self.lost = asyncio.Event()
        self.most = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(b"hello")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        assert self.transport.is_reading()
        self.most = max(self.most, nbytes)
        self.transport.write(bytes(self._room[:nbytes]))
        if self._slow:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self.transport.resume_reading)

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


def talk(port: int, root: Path, clients: int) -> list[bytes]:
    """What each client reads, after all of them have sent their first bytes."""
    context = ssl.create_default_context(cafile=str(root))
    with ExitStack() as stack:
        secured = []
        for _ in range(clients):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            client = stack.enter_context(
                context.wrap_socket(raw, server_hostname="localhost", do_handshake_on_connect=False)
            )
            client.setblocking(False)
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            secured.append(client)
        heard = []
        for client in secured:
            client.settimeout(60)
            client.do_handshake()
            client.sendall(b" again")
            got = b""
            while len(got) < len(b"hello again"):
                got += client.recv(100)
            heard.append(got)
        return heard


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_many_clients_that_come_at_once(made: Certificates, loop_factory: Callable[[], Any]) -> None:
    async def test() -> None:
        server, authority = made.server, str(made.authority.certificate)
        tls = server_context(str(server.certificate), str(server.key), authority, mutual=False)
        listening = await serve_at("127.0.0.1", 0, Greeter, tls=tls)
        try:
            heard = await asyncio.to_thread(talk, listening.port, made.authority.certificate, 40)
            assert heard == [b"hello again"] * 40
        finally:
            listening.close()

    run(test, loop_factory)


def echo(port: int, root: Path, size: int) -> bool:
    """Sends and reads at once, the reads slower than the writes. Returns whether it got what it sent."""
    context = ssl.create_default_context(cafile=str(root))
    sent = random.Random(size).randbytes(size)
    expected = b"hello" + sent
    with socket.create_connection(("127.0.0.1", port), 60) as raw:
        client = context.wrap_socket(raw, server_hostname="localhost")
        client.setblocking(False)
        got, at = bytearray(), 0
        while len(got) < len(expected):
            select.select([client], [client] if at < size else [], [], 60)
            with suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError):
                at += client.send(sent[at : at + (1 << 17)]) if at < size else 0
            with suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError):
                part = client.recv(1 << 14)
                assert part
                got += part
        client.settimeout(60)
        client.unwrap()
        return got == expected


@contextmanager
def served(made: Certificates, protocol: Greeter) -> Iterator[tuple[TlsPort, socket.socket]]:
    """A port with TLS, and the socket for a server of it."""
    server, authority = made.server, str(made.authority.certificate)
    tls = server_context(str(server.certificate), str(server.key), authority, mutual=False)
    with listening_socket("127.0.0.1", 0) as sock:
        yield TlsPort(asyncio.get_running_loop(), tls, lambda: protocol), sock


@pytest.mark.parametrize("loop_factory", LOOPS)
@pytest.mark.parametrize("seconds", [RECORD_SECONDS, 1e-9], ids=["at once", "each step waits"])
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("room", [1000, 1 << 18])
def test_an_application_gets_all_data(
    made: Certificates, loop_factory: Callable[[], Any], seconds: float, slow: bool, room: int
) -> None:
    async def test() -> None:
        greeter = Greeter(room, slow)
        with served(made, greeter) as (tls, sock):
            tls.records = TurnTime(asyncio.get_running_loop(), seconds)
            server = await asyncio.get_running_loop().create_server(tls.connect, sock=sock)
            assert await asyncio.to_thread(echo, sock.getsockname()[1], made.authority.certificate, 3_000_000)
            await asyncio.wait_for(greeter.lost.wait(), 60)
            assert greeter.most <= ROOM_BYTES
            server.close()

    run(test, loop_factory)


@pytest.mark.parametrize("loop_factory", LOOPS)
@pytest.mark.parametrize("paused", [False, True])
def test_a_connection_is_lost_while_its_bytes_wait(
    made: Certificates, loop_factory: Callable[[], Any], paused: bool
) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        greeter = Greeter()
        with served(made, greeter) as (tls, sock):
            # Its turns never come.
            tls.records = TurnTime(cast(asyncio.AbstractEventLoop, Turns(0)), -1)
            server = await loop.create_server(tls.connect, sock=sock)
            context = ssl.create_default_context(cafile=str(made.authority.certificate))
            with socket.create_connection(sock.getsockname(), 60) as raw:
                client = await asyncio.to_thread(context.wrap_socket, raw, server_hostname="localhost")
                assert await asyncio.to_thread(client.recv, 5) == b"hello"
                await asyncio.to_thread(client.sendall, b"again")
                if paused:
                    greeter.transport.pause_reading()
                gone = weakref.ref(greeter.transport)
                greeter.transport.abort()
                await asyncio.wait_for(greeter.lost.wait(), 60)
                client.close()
            assert greeter.most == 0
            server.close()
            del greeter.transport
            assert gone() is None

    run(test, loop_factory)
