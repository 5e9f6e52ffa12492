"""What clients send over TLS takes turns: each turn of the loop has some milliseconds for the handshakes of a port, and
some for its records.

The answer to a client's first message takes 0.3 ms, with an RSA key 1 to 5 ms. A record costs microseconds even if it
brings one byte or none (KeyUpdate). The loop reads all sockets that are ready in one turn, which are hundreds after a
break of the network or in an attack. So a protocol of our own stands before the loop's protocol of TLS. It reads a few
kilobytes at a time, measures what they cost, and stops reading when the turn has had its share:

    transport <-> _Records <-> SSLProtocol of the loop <-> _Application <-> the application's protocol

The application pauses the reading of the transport itself (`_Transport`). SSLProtocol, which would collect records
meanwhile and decrypt them in one turn, knows of no pause. This module knows no protocol beside TLS. Event-loop thread
only.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from halimede.platform.loops import tls_protocol_of

HANDSHAKE_SECONDS = 0.002
"""Time of a turn for handshakes. The last may exceed it."""
RECORD_SECONDS = 0.004
"""Time of a turn for records, with what the application does with their data at once. The last read may exceed it."""
FIRST_READ_BYTES = 1 << 14
"""TLS bytes that are read at once. KeyUpdates, which cost most, take 4 ms of it."""
READ_BYTES = 1 << 16
"""The same after a read with `LARGE_BYTES` of data: reads of fewer bytes make uploads half as dear again. KeyUpdates
after it take 15 ms once."""
LARGE_BYTES = 1 << 13
"""Data of a client that sends a large message, not thousands of tiny records."""
ROOM_BYTES = READ_BYTES + (1 << 15)
"""More than the data of a read and of a record of 16 KiB that began before it."""
SECONDS_PER_BYTE = 0.25e-6
"""What a TLS byte may cost: a KeyUpdate has 27 bytes, and takes 6 us."""

_TURN = 1
"""The received bytes wait for a later turn of the loop."""
_PAUSED = 2
"""The application has paused, or has not got all data from before its pause."""


class TurnTime:
    """The time that each turn of the loop has for steps of a kind. `clock` is in seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self._loop, self._seconds, self._clock = loop, seconds, clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._left = seconds
        self._due = False

    def run(self, step: Callable[[], None]) -> bool:
        """Runs a step, or lets it wait for a later turn. Returns whether it has run."""
        if self._left <= 0:
            self.put_off(step)
            return False
        self._run(step)
        return True

    def put_off(self, step: Callable[[], None]) -> None:
        """Runs a step in a later turn."""
        self._waiting.append(step)
        self._renew()

    def spend(self, seconds: float) -> None:
        """Counts what a step leaves to the loop."""
        self._left -= seconds

    def _run(self, step: Callable[[], None]) -> None:
        began = self._clock()
        try:
            step()
        finally:
            self._left -= self._clock() - began
            # Most turns need little, and a callback in each would cost more than it is worth.
            if self._left <= self._seconds / 2 or self._waiting:
                self._renew()

    def _renew(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._due, self._left = False, self._seconds
        while self._waiting and self._left > 0:
            self._run(self._waiting.popleft())


class TlsPort:
    """What the connections of a port with TLS share. `connect` makes the application's protocol of a connection, a
    BufferedProtocol. Its `connection_made` is called after the handshake."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLContext, connect: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._loop, self._tls, self._connect = loop, tls, connect
        self._kind = tls_protocol_of(loop)
        self.handshakes = TurnTime(loop, HANDSHAKE_SECONDS)
        self.records = TurnTime(loop, RECORD_SECONDS)
        self.room = memoryview(bytearray(ROOM_BYTES))
        """For data that have no room at the application. All connections use it, one after the other."""

    def connect(self) -> asyncio.BaseProtocol:
        """Returns the protocol of a new connection, which begins with the handshake."""
        protocol = self._connect()
        assert isinstance(protocol, asyncio.BufferedProtocol)
        application = _Application(self, protocol)
        tls = self._kind(self._loop, application, self._tls, None, server_side=True)
        return _Records(self, tls, application)


class _Records(asyncio.BufferedProtocol):
    """Stands between the transport and SSLProtocol, and lets the bytes that the client has sent wait for their turn."""

    def __init__(self, port: TlsPort, tls: Any, application: "_Application") -> None:
        self._port, self._tls = port, tls
        self._application: _Application | None = application
        self._turns = port.handshakes
        # SSLProtocol keeps this buffer unless it is asked for a larger one.
        self._whole = tls.get_buffer(READ_BYTES)
        self._buffer = self._whole[:FIRST_READ_BYTES]
        self._received = 0
        self._holds = 0
        self._transport: asyncio.Transport | None = None
        """None before the connection, and after its loss."""
        application.records = self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream transport, which the base type cannot say
        self._tls.connection_made(transport)

    def get_buffer(self, sizehint: int) -> Any:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received = nbytes
        if not self._turns.run(self._read):
            # The bytes lie in the buffer, which must not be written to before they are read.
            self.hold(_TURN)

    def _read(self) -> None:
        transport, application = self._transport, self._application
        if transport is None or transport.is_closing() or application is None:
            return
        application.received = 0
        self._tls.buffer_updated(self._received)
        size = READ_BYTES if application.received >= LARGE_BYTES else FIRST_READ_BYTES
        if size != len(self._buffer):
            self._buffer = self._whole[:size]
        if application.made is not None and self._turns is not self._port.records:
            self._turns = self._port.records
            # SSLProtocol reads in the next turn what came with the end of the handshake.
            self._turns.spend(application.made.tls.get_read_buffer_size() * SECONDS_PER_BYTE)
        if self._holds & _TURN:
            self.unhold(_TURN)

    def hold(self, reason: int) -> None:
        """Stops reading for a reason."""
        if not self._holds and self._transport is not None:
            self._transport.pause_reading()
        self._holds |= reason

    def unhold(self, reason: int) -> None:
        """Reads on if there is no other reason not to."""
        if self._holds & reason:
            self._holds &= ~reason
            if not self._holds and self._transport is not None:
                self._transport.resume_reading()

    def eof_received(self) -> bool | None:
        ended: bool | None = self._tls.eof_received()
        return ended

    def connection_lost(self, exc: Exception | None) -> None:
        # The two refer to each other, which would keep their memory until the garbage collector runs.
        self._transport = self._application = None
        self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        self._tls.resume_writing()


class _Application(asyncio.BufferedProtocol):
    """Stands between SSLProtocol and the application's protocol.

    SSLProtocol puts off what does not fit into the application's buffer, and reads it in the next turn without asking.
    So it always gets room enough, and what comes during a pause is kept. That is at most one read.
    """

    records: _Records

    def __init__(self, port: TlsPort, protocol: asyncio.BufferedProtocol) -> None:
        self._port = port
        self.protocol = protocol
        self.made: _Transport | None = None
        """None before the end of the handshake."""
        self.paused = False
        self.received = 0
        """Bytes of data that came with a read."""
        self._closed = False
        self._kept = b""
        self._direct = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made = _Transport(transport, self)
        self.protocol.connection_made(self.made)

    def get_buffer(self, sizehint: int) -> Any:
        self._direct = False
        if not self.paused:
            room: memoryview = self.protocol.get_buffer(sizehint)  # type: ignore[assignment]  # all have it
            # The usual case: the data need no copy.
            if len(room) >= ROOM_BYTES:
                self._direct = True
                return room
        return self._port.room

    def buffer_updated(self, nbytes: int) -> None:
        self.received += nbytes
        if self._direct:
            self.protocol.buffer_updated(nbytes)
        else:
            self._deliver(self._port.room[:nbytes])

    def _deliver(self, data: memoryview) -> None:
        """Gives the application data until it pauses."""
        at = 0
        while at < len(data) and not self.paused:
            room: memoryview = self.protocol.get_buffer(len(data) - at)  # type: ignore[assignment]  # all have it
            step = min(len(room), len(data) - at)
            room[:step] = data[at : at + step]
            at += step
            self.protocol.buffer_updated(step)
        if at < len(data) and not self._closed:
            self._kept += bytes(data[at:])

    def pause_reading(self) -> None:
        self.paused = True
        self.records.hold(_PAUSED)

    def resume_reading(self) -> None:
        if self.paused and not self._closed:
            self.paused = False
            if self._kept:
                self._port.records.put_off(self._go_on)
            else:
                self.records.unhold(_PAUSED)

    def _go_on(self) -> None:
        """Gives the application what was kept, and reads on."""
        if not self.paused:
            kept, self._kept = self._kept, b""
            self._deliver(memoryview(kept))
        if not self.paused:
            self.records.unhold(_PAUSED)

    def closing(self) -> None:
        """The application gets no more data. The end of the connection must be read."""
        self.paused = self._closed = True
        self._kept = b""
        self.records.unhold(_PAUSED)

    def eof_received(self) -> bool | None:
        self._kept = b""
        return self.protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._kept = b""
        self.protocol.connection_lost(exc)
        # It refers to this object by its transport.
        self.made = None
        del self.protocol

    def pause_writing(self) -> None:
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        self.protocol.resume_writing()


class _Transport(asyncio.Transport):
    """The transport of TLS as the application sees it. Its pauses are those of the transport below."""

    def __init__(self, tls: Any, application: _Application) -> None:
        self.tls: Any = tls
        """The transport that SSLProtocol makes."""
        self._application = application
        # Without a call between: they are called for each answer.
        self.write = tls.write  # type: ignore[method-assign]  # the same type
        self.writelines = tls.writelines  # type: ignore[method-assign]  # the same type

    def pause_reading(self) -> None:
        self._application.pause_reading()

    def resume_reading(self) -> None:
        self._application.resume_reading()

    def is_reading(self) -> bool:
        return not self._application.paused

    def close(self) -> None:
        self.tls.close()
        self._application.closing()

    def abort(self) -> None:
        self.tls.abort()
        self._application.closing()

    def is_closing(self) -> bool:
        closing: bool = self.tls.is_closing()
        return closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.tls.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.tls.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        size: int = self.tls.get_write_buffer_size()
        return size

    def can_write_eof(self) -> bool:
        return False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._application.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.BufferedProtocol)
        self._application.protocol = protocol
