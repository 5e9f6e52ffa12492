"""`halimede top`: looks at a server again and again, until Ctrl-C. Runs on the main thread."""

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from halimede.cli.arguments import Top
from halimede.errors import Unavailable
from halimede.top.document import document
from halimede.top.rates import rates
from halimede.top.sample import Look
from halimede.top.server import Server

if TYPE_CHECKING:  # without the library there is a document all the same
    from rich.console import Console, RenderableType


def run(order: Top) -> int:
    """0, or 1 where the server could not be looked at once."""
    server = Server(order.url, order.metrics_url)
    try:
        first = server.look()
        if order.once:
            time.sleep(order.interval)
            return _once(order, server, first, server.look())
        return _watch(order, server, first)
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ImportError:
        print("error: the table needs a library: pip install 'halimede[top]' (--once --json does not)", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _once(order: Top, server: Server, before: Look, look: Look) -> int:
    models = rates(before, look)
    if order.json:
        print(json.dumps(document(server.url, before, look, models), indent=1))
        return 0
    from rich.console import Console

    from halimede.top.screen import screen

    console = Console()
    console.print(screen(server.url, look, models, console.width))
    return 0


def _watch(order: Top, server: Server, look: Look) -> int:
    """A server that goes away is waited for; what it did last stays on the screen, with the reason. Where there is no
    screen, one table follows the other."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal:
        return _follow(order, server, look, console, console.print)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        return _follow(order, server, look, console, lambda view: live.update(view, refresh=True))


def _follow(
    order: Top, server: Server, look: Look, console: "Console", show: "Callable[[RenderableType], None]"
) -> int:
    from halimede.top.screen import screen

    models, trouble = rates(look, look), ""
    while True:
        show(screen(server.url, look, models, console.width, trouble))
        time.sleep(order.interval)
        trouble = ""
        try:
            before, look = look, server.look()
            models = rates(before, look)
        except Unavailable as error:
            trouble = error.message
