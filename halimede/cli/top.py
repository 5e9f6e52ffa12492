"""`halimede top`: samples a server again and again, until Ctrl-C. Main thread."""

import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from halimede.cli.arguments import Top
from halimede.cli.terminal import say_error
from halimede.errors import Unavailable
from halimede.top.rates import document, rates
from halimede.top.sample import Snapshot
from halimede.top.server import Server

if TYPE_CHECKING:  # rich is an extra, and --json does without it
    from rich.console import Console, RenderableType


def run(order: Top) -> int:
    """Returns 0, or 1 if the first sample failed or a library is missing."""
    try:
        server = Server(order.url, order.metrics_url)
    except ValueError as error:  # such as http://[
        say_error(f"'{order.url}' is not a URL: {error}")
        return 1
    try:
        first = server.snapshot()
        if order.once:
            time.sleep(order.interval)
            return _once(order, server, first, server.snapshot())
        return _watch(order, server, first)
    except Unavailable as error:
        say_error(str(error))
        return 1
    # Only the table needs rich, and it is imported when the first table is drawn.
    except ImportError:
        say_error("the table needs a library: pip install 'halimede[top]' (--once --json does not)")
        return 1
    except KeyboardInterrupt:
        return 0


def _once(order: Top, server: Server, before: Snapshot, snapshot: Snapshot) -> int:
    models = rates(before, snapshot)
    if order.json:
        print(json.dumps(document(server.url, before, snapshot, models), indent=1))
        return 0
    from halimede.top.screen import screen

    console = _console()
    console.print(screen(server.url, snapshot, models, console.width))
    return 0


def _console() -> "Console":
    from rich.console import Console

    from halimede.top.screen import UNLIMITED

    console = Console()
    # A terminal has a width, and what has none is taken by rich to have 80 columns.
    if console.is_terminal or os.environ.get("COLUMNS"):
        return console
    return Console(width=UNLIMITED)


def _watch(order: Top, server: Server, snapshot: Snapshot) -> int:
    """Shows samples until Ctrl-C. Without a terminal, the tables follow each other."""
    from rich.live import Live

    console = _console()
    if not console.is_terminal:  # a file or a pipe keeps every table
        return _follow(order, server, snapshot, console, console.print)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        return _follow(order, server, snapshot, console, lambda view: live.update(view, refresh=True))


def _follow(
    order: Top, server: Server, snapshot: Snapshot, console: "Console", show: "Callable[[RenderableType], None]"
) -> int:
    """While the server is away, its last figures stay on the screen, with the reason."""
    from halimede.top.screen import screen

    models, trouble = rates(snapshot, snapshot), ""
    while True:
        show(screen(server.url, snapshot, models, console.width, trouble))
        time.sleep(order.interval)
        # The server answers again, or the next lines say why not.
        trouble = ""
        try:
            before, snapshot = snapshot, server.snapshot()
            models = rates(before, snapshot)
        except Unavailable as error:
            trouble = error.message
