"""Tells systemd, or what else started this process as a service, that it is ready or ends. Any thread."""

import os
import socket
from contextlib import suppress

VARIABLE = "NOTIFY_SOCKET"


def notify(state: str) -> None:
    """Sends a state such as READY=1 to the socket that the environment names (sd_notify(3)). Nothing without one.

    A manager that does not listen is no reason not to serve.
    """
    address = os.environ.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.setblocking(False)
        channel.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
