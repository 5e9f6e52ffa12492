"""`halimede console`: the console beside a server that runs elsewhere, until Ctrl-C. Main thread."""

import asyncio
import secrets
import signal
from functools import partial

from halimede import __version__
from halimede.cli.arguments import Console
from halimede.cli.terminal import say_error
from halimede.console.gate import Gate, TokenKeys, is_loopback
from halimede.console.remote import RemoteTarget
from halimede.console.service import ConsoleService
from halimede.errors import Error
from halimede.platform.loops import new_event_loop
from halimede.serving.console import TOKEN_BYTES, hosts_of, link
from halimede.transport.http1.connection import Http1Connection
from halimede.transport.http1.listener import Http1Listener
from halimede.transport.sockets import place, serve_at

END_SECONDS = 2.0
"""Seconds for calls in progress after Ctrl-C."""


def run(order: Console) -> int:
    """Returns 0 after Ctrl-C, 1 if the port could not be opened. The server may be away: the page says so."""
    try:
        target = RemoteTarget(order.url, order.metrics_url)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(order, target))
    except Error as error:
        say_error(str(error))
        return 1
    return 0


async def _serve(order: Console, target: RemoteTarget) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    gate = Gate(TokenKeys(token, is_loopback(order.address)), hosts_of(order.address, order.hosts))
    service = ConsoleService(target, gate, __version__)
    listener = Http1Listener(service.handle)
    server = await serve_at(order.address, order.port, partial(Http1Connection, listener))
    listener.rounds.begin()
    print(f"The console of {order.url}: {link(place(order.address, server.port), token)}", flush=True)
    await ended.wait()
    server.close()
    service.close()
    listener.drain(0.0)
    await listener.wait_closed(END_SECONDS, lambda left, count: None)
    listener.abort()
    listener.rounds.end()
