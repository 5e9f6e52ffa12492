"""Ports for servers of tests."""

import contextlib
import random
import socket

LOWEST, HIGHEST = 20_000, 32_000
"""Below those that Linux gives to clients (32,768 and up), who could take one while a server loads its models."""


def free_ports(count: int) -> list[int]:
    """Drawn by lot, since other tests may run beside these; nobody listens on them now."""
    lot = random.SystemRandom()
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port = lot.randrange(LOWEST, HIGHEST)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
    return found
