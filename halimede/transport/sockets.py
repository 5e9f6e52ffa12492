"""Listening sockets on TCP ports and Unix paths.

A socket is bound before anything else is done with it, so that a port in use gives one clear error. Event-loop thread
only.
"""

import asyncio
import errno
import fcntl
import logging
import select
import socket
import ssl
import stat
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from halimede.errors import Unavailable
from halimede.transport.tls_turns import TlsPort

log = logging.getLogger(__name__)

LISTEN_BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted."""
MAX_ACCEPTED_PER_TURN = 32
"""Connections accepted in one turn, in addition to the one that the loop accepts."""
UNIX_PREFIX = "unix:"
"""Prefix of an address that is the path of a Unix socket."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A served port, or the path of a served Unix socket (then `port` is 0)."""

    server: asyncio.Server
    port: int
    path: Path | None

    def close(self) -> None:
        """Accepts no more connections. Open connections stay open."""
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
    """Serves an address on the running loop: a host name, an IP address, or `unix:PATH`. Raises Unavailable with the
    texts of `listening_socket`."""
    loop = asyncio.get_running_loop()
    sock = listening_socket(address, port, reuse_port)
    if tls is not None:
        connect = TlsPort(loop, tls, connect).connect
    # asyncio's own loop accepts all waiting connections in one turn. uvloop accepts one.
    if not isinstance(loop, asyncio.BaseEventLoop):
        connect = _BurstAcceptor(loop, sock, connect).connect
    if address.startswith(UNIX_PREFIX):
        server = await loop.create_unix_server(connect, sock=sock, backlog=LISTEN_BACKLOG)
        return Listening(server, 0, unix_path(address))
    server = await loop.create_server(connect, sock=sock, backlog=LISTEN_BACKLOG)
    return Listening(server, sock.getsockname()[1], None)


class _BurstAcceptor:
    """Accepts all waiting connections when one has arrived.

    uvloop accepts one connection per turn, and a turn under load takes several milliseconds. Of hundreds of connections
    that arrive together, the last, perhaps a health check, would wait for hundreds of turns.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, connect: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._loop, self._sock, self._connect = loop, sock, connect
        self._opening: set[asyncio.Task[object]] = set()
        # A poll that finds nothing costs 0.7 us, an `accept` that finds nothing 10 us.
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def connect(self) -> asyncio.BaseProtocol:
        """Returns the protocol of the connection that the loop has accepted, after accepting the others."""
        left = MAX_ACCEPTED_PER_TURN
        while left and self._poll.poll(0):
            left -= 1
            try:
                other, _ = self._sock.accept()
            except OSError:
                # No file descriptor is left. The loop meets the same error and handles it.
                break
            self._open(other)
        return self._connect()

    def _open(self, other: socket.socket) -> None:
        other.setblocking(False)
        opening = self._loop.create_task(self._loop.connect_accepted_socket(self._connect, other))
        self._opening.add(opening)
        opening.add_done_callback(self._opened)

    def _opened(self, opening: "asyncio.Task[object]") -> None:
        """Logs an unexpected error. A client that has gone raises an OSError, which is its own affair."""
        self._opening.discard(opening)
        error = None if opening.cancelled() else opening.exception()
        if error is not None and not isinstance(error, OSError):
            log.error("failed to accept a connection", exc_info=error)


def unsent_bytes(transport: asyncio.WriteTransport) -> int:
    """Returns the bytes that the client has not taken: those in the transport's buffer, and if there are any, those in
    the kernel's. A slow client takes from the kernel's buffer for a long time before the transport's shrinks."""
    size = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket") if size else None
    if sock is None:
        return size
    try:
        return size + int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        # The connection is lost, or this kind of socket cannot tell.
        return size


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Returns the address of a client, without its port; empty for a Unix socket."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) and name else ""


def place(address: str, port: int) -> str:
    """Returns an address and port as clients write them."""
    if address.startswith(UNIX_PREFIX):
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def unix_path(address: str) -> Path:
    """Returns the path in `unix:PATH` or `unix://PATH`, the two forms that gRPC clients write."""
    return Path(address.removeprefix(UNIX_PREFIX).removeprefix("//"))


def listening_socket(address: str, port: int, reuse_port: bool = False) -> socket.socket:
    """Returns a socket that listens at the address. With port 0 the system chooses the port.

    Raises Unavailable, with Triton's text if the port is in use (H23, G39), otherwise with the system's reason.
    """
    unix = address.startswith(UNIX_PREFIX)
    family = socket.AF_UNIX if unix else socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if unix:
            _bind_path(sock, unix_path(address))
        else:
            # Connections of an earlier server that still linger in the kernel must not block the port.
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
    """Binds to a path, and first removes a socket file that an earlier server left behind."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode) and not _answers(path):
            path.unlink()
    sock.bind(str(path))


def _answers(path: Path) -> bool:
    """Whether a server listens at the path."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        # The file exists and no process listens: a server was killed before it removed the file.
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True
