"""Listening sockets, made before anything else happens on them, so that a taken port is one clear error."""

import errno
import socket

from halimede.errors import Unavailable

BACKLOG = 1024


def listening_socket(address: str, port: int, reuse_port: bool = False) -> socket.socket:
    """A TCP socket that listens at the address; port 0 lets the system choose.

    Raises Unavailable: with the contract's text for a taken port (H23, G39), else with the system's reason."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((address, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(f"Socket '{address}:{port}' already in use ") from error
        raise Unavailable(f"cannot listen at '{address}:{port}': {error.strerror or error}") from error
    sock.setblocking(False)
    return sock
