"""The event loop to run on: uvloop if it is installed, else that of the standard library."""

import asyncio
from collections.abc import Callable
from typing import Any


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def tls_protocol_of(loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    """The class of the protocol by which this loop does TLS. Neither loop lets others delay what a client sends before
    it is read, so `transport.tls_turns` makes the protocol itself."""
    if isinstance(loop, asyncio.BaseEventLoop):
        from asyncio.sslproto import SSLProtocol

        return SSLProtocol
    import uvloop.loop

    kind: Callable[..., Any] = uvloop.loop.SSLProtocol
    return kind
