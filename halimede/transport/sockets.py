"""Listening sockets, made before anything else happens on them, so that a taken port is one clear error."""

import asyncio
import errno
import logging
import select
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from halimede.errors import Unavailable

log = logging.getLogger(__name__)

LISTEN_BACKLOG = 1024
MAX_ACCEPTED_PER_TURN = 32
"""New connections, besides the one that the loop accepts by itself."""
UNIX_PREFIX = "unix:"
"""Before the path of a Unix socket that stands in place of an address."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A port that is served, or the path of a Unix socket (then `port` is 0)."""

    server: asyncio.Server
    port: int
    path: Path | None

    def close(self) -> None:
        """Takes no more connections; those that are there go on."""
        self.server.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


async def serve_at(
    address: str,
    port: int,
    connect: Callable[[], asyncio.BaseProtocol],
    reuse_port: bool = False,
    tls: ssl.SSLContext | None = None,
) -> Listening:
    """Serves an address on the running loop: a name or number of this machine, or `unix:PATH`. Raises Unavailable as
    `listening_socket` does."""
    loop = asyncio.get_running_loop()
    sock = listening_socket(address, port, reuse_port)
    if not isinstance(loop, asyncio.BaseEventLoop):  # the standard library's accepts until nobody is left
        connect = _BurstAcceptor(loop, sock, connect, tls).connect
    if address.startswith(UNIX_PREFIX):
        server = await loop.create_unix_server(connect, sock=sock, backlog=LISTEN_BACKLOG, ssl=tls)
        return Listening(server, 0, unix_path(address))
    server = await loop.create_server(connect, sock=sock, backlog=LISTEN_BACKLOG, ssl=tls)
    return Listening(server, sock.getsockname()[1], None)


class _BurstAcceptor:
    """Takes all who wait when one has come. uvloop accepts one connection in a turn, and a turn under load is several
    milliseconds: hundreds that come at once, and a health check behind them, would wait for as many turns."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        connect: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._loop, self._sock, self._connect, self._tls = loop, sock, connect, tls
        self._opening: set[asyncio.Task[object]] = set()
        self._poll = select.poll()  # a vain look costs 0.7 us, a vain accept 10
        self._poll.register(sock, select.POLLIN)

    def connect(self) -> asyncio.BaseProtocol:
        """For the one that the loop has accepted."""
        left = MAX_ACCEPTED_PER_TURN
        while left and self._poll.poll(0):
            left -= 1
            try:
                other, _ = self._sock.accept()
            except OSError:  # there is no descriptor, with which the loop deals
                break
            self._open(other)
        return self._connect()

    def _open(self, other: socket.socket) -> None:
        other.setblocking(False)
        opening = self._loop.create_task(self._loop.connect_accepted_socket(self._connect, other, ssl=self._tls))
        self._opening.add(opening)
        opening.add_done_callback(self._opened)

    def _opened(self, opening: "asyncio.Task[object]") -> None:
        """Or lost meanwhile, or it spoke no TLS (an OSError too): that is its own affair."""
        self._opening.discard(opening)
        error = None if opening.cancelled() else opening.exception()
        if error is not None and not isinstance(error, OSError):
            log.error("failed to accept a connection", exc_info=error)


def place(address: str, port: int) -> str:
    """Where something listens, as clients write it."""
    if address.startswith(UNIX_PREFIX):
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def unix_path(address: str) -> Path:
    """The path in `unix:PATH` or `unix://PATH`, as gRPC's clients write them."""
    return Path(address.removeprefix(UNIX_PREFIX).removeprefix("//"))


def listening_socket(address: str, port: int, reuse_port: bool = False) -> socket.socket:
    """A socket that listens at the address; port 0 lets the system choose.

    Raises Unavailable: with the contract's text for a taken port (H23, G39), else with the system's reason."""
    unix = address.startswith(UNIX_PREFIX)
    family = socket.AF_UNIX if unix else socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if unix:
            _bind_path(sock, unix_path(address))
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((address, port))
        sock.listen(LISTEN_BACKLOG)
    except OSError as error:
        sock.close()
        place = address if unix else f"{address}:{port}"
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(f"Socket '{place}' already in use ") from error
        raise Unavailable(f"cannot listen at '{place}': {error.strerror or error}") from error
    sock.setblocking(False)
    return sock


def _bind_path(sock: socket.socket, path: Path) -> None:
    """Binds to a path. A socket that a server has left behind, and nobody listens at, makes room."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode) and not _answers(path):
            path.unlink()
    sock.bind(str(path))


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True
