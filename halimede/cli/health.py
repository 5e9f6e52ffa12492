"""`halimede health`: whether a server is ready, as an exit status. Main thread."""

from halimede.cli.arguments import Health
from halimede.cli.terminal import say_error
from halimede.errors import Unavailable
from halimede.http_client import fetch, with_scheme

LIMIT = 3.0
"""Seconds. An image's health check ends after 5."""


def run(order: Health) -> int:
    """Returns 0 if the server says so, else 1."""
    wanted = "live" if order.live else "ready"
    try:
        fetch(with_scheme(order.url).rstrip("/"), f"/v2/health/{wanted}", LIMIT)
    except Unavailable as error:
        say_error(f"not {wanted}: {error}")
        return 1
    print(wanted)
    return 0
