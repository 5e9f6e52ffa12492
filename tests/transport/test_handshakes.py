"""Steps of handshakes: which run at once, and which wait for a later turn."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from halimede.transport.handshakes import SLICE_SECONDS, Handshakes
from halimede.transport.sockets import serve_at
from halimede.transport.tls import server_context
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
        self.handshakes = Handshakes(loop, cast(ssl.SSLContext, None), asyncio.Protocol, lambda: self._now)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def run(self) -> bool:
        return self.handshakes.run(self._step)

    def _step(self) -> None:
        self._now += self._cost
        self.steps += 1

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


def test_steps_beyond_the_slice_wait_for_the_next_turns() -> None:
    turns = Turns(SLICE_SECONDS * 0.6)
    assert [turns.run() for _ in range(5)] == [True, True, False, False, False]
    for steps in (2, 4, 5):
        assert turns.steps == steps
        turns.turn()
    assert turns.run()


def test_steps_that_are_rare_never_wait() -> None:
    turns = Turns(SLICE_SECONDS * 3)
    for _ in range(5):
        assert turns.run()
        turns.turn()
    turns.turn()
    assert turns.due == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("certificates"))


class Greeter(asyncio.Protocol):
    """Says that the handshake is done, and returns what it receives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(b"hello")

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


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
