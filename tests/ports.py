"""Ports for servers of tests."""

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import BinaryIO

LOWEST, HIGHEST = 20_000, 32_000
"""Below those that Linux gives to clients (32,768 and up), who could take one while a server loads its models."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, and that no other test is given while this process lives: a server listens
    only some seconds after its port was drawn, and meanwhile another one may be started."""
    lot = random.SystemRandom()
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port = lot.randrange(LOWEST, HIGHEST)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                if _is_ours(port):
                    found.append(port)
    return found


def _is_ours(port: int) -> bool:
    """Whether nobody was given it: neither this process nor, by a lock that ends with its holder, another one."""
    file, given = _register()
    if port in given:
        return False
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    given.add(port)
    return True


@cache
def _register() -> tuple[BinaryIO, set[int]]:
    """The file with a byte to lock for each port, one for all tests of a user; and the ports that were given here."""
    path = Path(tempfile.gettempdir()) / f"halimede-test-ports-{os.getuid()}"
    return path.open("ab"), set()
