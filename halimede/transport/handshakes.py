"""Handshakes of TLS take turns: each turn of the loop has a few milliseconds for those of a port.

The answer to a client's first message takes 0.3 ms, with an RSA key 1 to 5 ms. Thousands of clients may send theirs in
one moment, as after a break of the network, and the loop would read all of them in one turn. This module knows no
protocol beside TLS. Event-loop thread only.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from halimede.platform.loops import tls_protocol_of

SLICE_SECONDS = 0.002
"""Time of a turn for handshakes. The last may exceed it."""


class Handshakes:
    """Those of one port. `connect` makes the protocol of a connection whose handshake is done. `clock` is in
    seconds."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tls: ssl.SSLContext,
        connect: Callable[[], asyncio.BaseProtocol],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._loop, self._tls, self._connect, self._clock = loop, tls, connect, clock
        self._kind = tls_protocol_of(loop)
        self._waiting: deque[Callable[[], None]] = deque()
        self._left = SLICE_SECONDS
        self._due = False

    def connect(self) -> asyncio.BaseProtocol:
        """Returns the protocol of a new connection, which begins with the handshake."""
        return _Handshake(self, self._kind(self._loop, self._connect(), self._tls, None, server_side=True))

    def run(self, step: Callable[[], None]) -> bool:
        """Runs a step of a handshake, or lets it wait for a later turn. Returns whether it has run."""
        if self._left <= 0:
            self._waiting.append(step)
            self._renew()
            return False
        self._run(step)
        return True

    def _run(self, step: Callable[[], None]) -> None:
        began = self._clock()
        step()
        self._left -= self._clock() - began
        self._renew()

    def _renew(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._due, self._left = False, SLICE_SECONDS
        while self._waiting and self._left > 0:
            self._run(self._waiting.popleft())
        if self._waiting:
            self._renew()


class _Handshake(asyncio.BufferedProtocol):
    """The protocol of a connection until its handshake is done. It stands before the one of TLS, which then takes its
    place."""

    def __init__(self, turns: Handshakes, tls: Any) -> None:
        self._turns = turns
        self._tls = tls
        self._received = 0
        self._held = False
        self._transport: asyncio.Transport | None = None
        """None before the connection, and after its loss."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream transport, which the base type cannot say
        self._tls.connection_made(transport)

    def get_buffer(self, sizehint: int) -> Any:
        return self._tls.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._received = nbytes
        if not self._turns.run(self._go_on) and self._transport is not None:
            # The bytes lie in the buffer, which must not be written to before they are read.
            self._held = True
            self._transport.pause_reading()

    def _go_on(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._tls.buffer_updated(self._received)
        if self._tls._get_app_transport().get_extra_info("ssl_object") is not None:
            transport.set_protocol(self._tls)
        if self._held and not transport.is_closing():
            self._held = False
            transport.resume_reading()

    def eof_received(self) -> bool | None:
        ended: bool | None = self._tls.eof_received()
        return ended

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        self._tls.resume_writing()
