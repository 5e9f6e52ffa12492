"""The end of a connection that the server closes: what it wrote must arrive, be the client still sending or not.

To close a socket while bytes of the client are unread, or come later, resets the connection, and the client's system
throws away what it had received. So the server ends its own side, reads on for a while without looking, and closes then
(RFC 9112, section 9.6). Knows no protocol. Event-loop thread only.
"""

import asyncio
from collections.abc import Callable

from halimede.transport.event_loop import CallLater

QUIET_SECONDS = 2.0
"""A client that has sent nothing for so long is taken to know."""
MAX_LINGER_SECONDS = 30.0
MAX_LINGER_BYTES = 1 << 26
"""Of what a client sends to nobody, for how long and how much is read."""
STALLED_SECONDS = 60.0
"""A client that has read nothing of its last answer for so long is dropped."""


def close_flushing(transport: asyncio.Transport, call_later: CallLater) -> None:
    """Closes after what was written is read, or nobody has read on for long."""
    transport.close()
    _Flushing(transport, call_later)


def close_lingering(
    transport: asyncio.Transport, scratch: memoryview, call_later: CallLater, lost: Callable[[Exception | None], None]
) -> None:
    """Closes once the client has had time to read what was written. The protocol of the transport is not called any
    more: `lost` is, as its `connection_lost`. What the client sends is read into `scratch`.

    Where a side cannot be ended alone (TLS, or a client that has ended its own), it closes after what was written.
    """
    if transport.is_closing():
        return  # asyncio's transports for TLS lose what they know when they are closed again
    if not transport.can_write_eof():
        close_flushing(transport, call_later)
        return
    transport.set_protocol(_Lingering(transport, scratch, call_later, lost))
    try:
        transport.write_eof()
    except OSError:  # it was reset, which the transport has not seen yet
        transport.abort()
        return
    if not transport.is_reading():
        transport.resume_reading()


class _Lingering(asyncio.BufferedProtocol):
    """What is left of a connection: it waits for the client to end its side."""

    def __init__(
        self,
        transport: asyncio.Transport,
        scratch: memoryview,
        call_later: CallLater,
        lost: Callable[[Exception | None], None],
    ) -> None:
        self._transport = transport
        self._scratch = scratch
        self._call_later = call_later
        self._lost = lost
        self._heard = False
        self._bytes_left = MAX_LINGER_BYTES
        self._seconds_left = MAX_LINGER_SECONDS
        self._unsent = transport.get_write_buffer_size()
        self._stalled_seconds = 0.0
        self._look = call_later(QUIET_SECONDS, self._looked)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        self._bytes_left -= nbytes
        if self._bytes_left < 0:
            self._transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        self._lost(exc)

    def _looked(self) -> None:
        """Waits on for a client that sends, and for one that reads as long as it does."""
        unsent, before = self._transport.get_write_buffer_size(), self._unsent
        self._unsent = unsent
        self._stalled_seconds = 0.0 if unsent != before else self._stalled_seconds + QUIET_SECONDS
        if unsent and self._stalled_seconds < STALLED_SECONDS:
            self._seconds_left = MAX_LINGER_SECONDS
        elif unsent or not self._heard or self._seconds_left <= 0:
            self._transport.abort()
            return
        self._heard = False
        self._seconds_left -= QUIET_SECONDS
        self._look = self._call_later(QUIET_SECONDS, self._looked)


class _Flushing:
    """Looks now and then whether the client of a closing transport still reads."""

    def __init__(self, transport: asyncio.Transport, call_later: CallLater) -> None:
        self._transport = transport
        self._call_later = call_later
        self._unsent = 0
        self._look()

    def _look(self) -> None:
        unsent, before = self._transport.get_write_buffer_size(), self._unsent
        self._unsent = unsent
        if unsent and unsent == before:
            self._transport.abort()
        elif unsent:
            self._call_later(STALLED_SECONDS, self._look)
