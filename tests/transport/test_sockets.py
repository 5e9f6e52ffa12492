"""Listening sockets: free ports, taken ports, reuse, IPv6, Unix sockets."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc.aio
import pytest
import uvloop

from halimede.errors import Unavailable
from halimede.transport.grpc.server import GrpcServer
from halimede.transport.sockets import MAX_ACCEPTED_PER_TURN, Listening, listening_socket, place, serve_at, unix_path
from tests.transport.grpc_fakes import WAIT, Echo, run, unary

log = logging.getLogger("halimede.transport.sockets")

LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]


def test_port_zero_lets_the_system_choose() -> None:
    with listening_socket("127.0.0.1", 0) as sock:
        host, port = sock.getsockname()
        assert host == "127.0.0.1"
        assert port > 0
        assert sock.getblocking() is False
        with socket.create_connection((host, port), 5):
            pass


def test_port_in_use_is_refused_with_tritons_text() -> None:
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(Unavailable, match=f"^Socket '127.0.0.1:{port}' already in use $"):
            listening_socket("127.0.0.1", port)


def test_port_is_held_as_soon_as_it_is_opened() -> None:
    """Two servers that start at once: the second must get the error when it binds."""
    with listening_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(Unavailable, match=r"already in use $"):
            listening_socket("127.0.0.1", port).close()


def test_port_left_a_moment_ago_is_free() -> None:
    """A restarted server must not wait until the kernel has forgotten the connections of the old one."""
    with listening_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            first.setblocking(True)
            first.settimeout(5)
            accepted, _ = first.accept()
            accepted.close()
            assert client.recv(1) == b""
    with listening_socket("127.0.0.1", port) as second:
        assert second.getsockname()[1] == port


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="the system has no SO_REUSEPORT")
def test_reused_port_is_shared_by_those_that_ask_for_it() -> None:
    with listening_socket("127.0.0.1", 0, reuse_port=True) as first:
        port = first.getsockname()[1]
        with listening_socket("127.0.0.1", port, reuse_port=True) as second:
            assert second.getsockname()[1] == port
        with pytest.raises(Unavailable):
            listening_socket("127.0.0.1", port)


def test_address_that_is_not_ours_is_an_error_of_its_kind() -> None:
    with pytest.raises(Unavailable, match=r"^cannot listen at '203.0.113.1:0': "):
        listening_socket("203.0.113.1", 0)


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="the system has no IPv6")
def test_ipv6_address_is_bound() -> None:
    with listening_socket("::1", 0) as sock:
        assert sock.family is socket.AF_INET6


@pytest.mark.skipif(not _has_ipv6(), reason="the system has no IPv6")
def test_ipv6_address_is_served() -> None:
    async def test() -> None:
        server = GrpcServer(Echo().rpcs())
        port = await server.start("::1", 0)
        async with grpc.aio.insecure_channel(f"[::1]:{port}") as channel:
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"
        await server.stop(0)

    run(test)


# Unix sockets


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: that of a Unix socket has at most 107 bytes."""
    with TemporaryDirectory(prefix="h") as name:
        yield Path(name)


@pytest.mark.parametrize("spelling", ["unix:{}", "unix://{}"])
@pytest.mark.parametrize("loop_factory", LOOPS)
def test_unix_socket_is_served(
    folder: Path, spelling: str, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    path = folder / "s"
    address = spelling.format(path)

    async def test() -> None:
        server = GrpcServer(Echo().rpcs())
        assert await server.start(address, 8001) == 0
        assert path.is_socket()
        async with grpc.aio.insecure_channel(address) as channel:
            assert await unary(channel, "/t/Echo", b"x") == b"<x>"
            await server.stop(0)
        assert not path.exists()

    run(test, loop_factory)


def test_unix_socket_that_was_left_behind_is_replaced(folder: Path) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()
    assert path.is_socket()
    with listening_socket(f"unix:{path}", 0), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_unix_socket_that_lives_is_taken(folder: Path) -> None:
    path = folder / "s"
    with listening_socket(f"unix:{path}", 0), socket.socket(socket.AF_UNIX) as client:
        with pytest.raises(Unavailable, match=rf"^Socket 'unix:{path}' already in use $"):
            listening_socket(f"unix:{path}", 0)
        client.connect(str(path))


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_unix_socket_in_place_of_something_else(folder: Path, kind: str) -> None:
    """A file that is no socket is never removed."""
    path = folder / "s"
    if kind == "file":
        path.write_text("kept")
    else:
        path.mkdir()
    with pytest.raises(Unavailable, match=r"already in use $"):
        listening_socket(f"unix:{path}", 0)
    assert path.is_dir() or path.read_text() == "kept"


@pytest.mark.parametrize("name", ["missing/s", "x" * 200, ""])
def test_unix_socket_that_cannot_be(folder: Path, name: str) -> None:
    with pytest.raises(Unavailable, match=r"^(cannot listen at|Socket) 'unix:"):
        listening_socket(f"unix:{folder / name}", 0)


def test_unix_socket_closes_only_its_own(folder: Path) -> None:
    """The path is removed with the server. It may have been removed before."""
    path = folder / "s"

    async def test() -> None:
        for removed in (False, True):
            listening: Listening = await serve_at(f"unix:{path}", 0, asyncio.Protocol)
            assert (listening.port, listening.path, path.is_socket()) == (0, path, True)
            if removed:
                path.unlink()
            listening.close()
            assert not path.exists()

    run(test)


def test_unix_address_is_a_path() -> None:
    spellings = ["unix:/a/b", "unix:///a/b", "unix:a/b", "unix:./a b"]
    assert [unix_path(address) for address in spellings] == [Path("/a/b"), Path("/a/b"), Path("a/b"), Path("a b")]


def test_place_is_written_as_clients_write_it() -> None:
    assert place("127.0.0.1", 80) == "127.0.0.1:80"
    assert place("::1", 80) == "[::1]:80"
    assert place("unix:/a", 80) == "unix:/a"


# Many connections at once


class _Counts(asyncio.Protocol):
    """Records in which turn of the loop each connection was made."""

    def __init__(self, made: list[int], turn: list[int]) -> None:
        self._made, self._turn = made, turn

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.append(self._turn[0])
        transport.close()


def _is_refused(family: socket.AddressFamily, to: str | tuple[str, int]) -> bool:
    with socket.socket(family) as late:
        return late.connect_ex(to) in (errno.ECONNREFUSED, errno.ENOENT)


@pytest.mark.parametrize("address", ["127.0.0.1", "unix:"])
@pytest.mark.parametrize("loop_factory", LOOPS)
def test_connections_that_arrive_together_are_accepted_in_few_turns(
    folder: Path, address: str, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    many = 4 * MAX_ACCEPTED_PER_TURN
    path = folder / "s"

    async def test() -> None:
        made: list[int] = []
        turn = [0]
        listening = await serve_at(f"unix:{path}" if address == "unix:" else address, 0, lambda: _Counts(made, turn))
        to: str | tuple[str, int] = str(path) if address == "unix:" else (address, listening.port)
        family = socket.AF_UNIX if address == "unix:" else socket.AF_INET
        with ExitStack() as stack:
            for _ in range(many):
                stack.enter_context(socket.socket(family)).connect(to)
            while len(made) < many:
                turn[0] += 1
                assert turn[0] <= many, "they are not taken"
                await asyncio.sleep(0)
        assert made[-1] - made[0] < 8, "a turn takes no more than a few of them"
        listening.close()
        # uvloop closes the socket in one of its next turns.
        while not _is_refused(family, to):
            await asyncio.sleep(0)

    run(test, loop_factory)


class _Watch(logging.Handler):
    """Sets an event when something is logged."""

    def __init__(self, told: asyncio.Event) -> None:
        super().__init__()
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        self._told.set()


def test_connection_whose_protocol_cannot_be_made_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Errors of the network are not, nor are those of connections that the loop accepts by itself."""

    def broken() -> asyncio.Protocol:
        raise ValueError("no protocol")

    async def test() -> None:
        # The loop tells of the connections that it accepts by itself in its own way.
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        told = asyncio.Event()
        watch = _Watch(told)
        log.addHandler(watch)
        listening = await serve_at("127.0.0.1", 0, broken)
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(socket.create_connection(("127.0.0.1", listening.port), 5))
            await asyncio.wait_for(told.wait(), WAIT)
        log.removeHandler(watch)
        listening.close()

    run(test)
    assert [(record.message, record.levelname) for record in caplog.records] == [
        ("failed to accept a connection", "ERROR")
    ]
    assert "no protocol" in caplog.text
