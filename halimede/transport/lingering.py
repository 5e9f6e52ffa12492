"""How the server closes a connection so that its last bytes arrive, even if the client is still sending.

If a socket is closed while bytes of the client are unread, or arrive later, the kernel sends a reset, and the client's
kernel discards what it had received. So the server ends its own side, reads on for a while without looking at the
bytes, and then closes (RFC 9112, section 9.6). This module knows no protocol. Event-loop thread only.

| state | event | then |
| --- | --- | --- |
| lingering | the client ends its side | closed |
| lingering | nothing arrived for `QUIET_SECONDS` and all was sent | aborted |
| lingering | `MAX_LINGER_BYTES` or `MAX_LINGER_SECONDS` passed after all was sent | aborted |
| lingering | the client has taken nothing for `STALLED_SECONDS` | aborted |
| flushing | the transport's buffer is empty | asyncio closes it |
| flushing | the client has taken nothing for `STALLED_SECONDS` | aborted |
"""

import asyncio
from collections.abc import Callable

from halimede.transport.event_loop import CallLater

QUIET_SECONDS = 2.0
"""A client that has sent nothing for this long is assumed to know that the connection ends."""
MAX_LINGER_SECONDS = 30.0
"""How long the server reads and discards what a client sends."""
MAX_LINGER_BYTES = 1 << 26
"""How many bytes the server reads and discards."""
STALLED_SECONDS = 60.0
"""A client that has read nothing of its last answer for this long is dropped."""


def close_flushing(transport: asyncio.Transport, call_later: CallLater) -> None:
    """Closes the transport after its buffer is written, or aborts it if the client stops reading."""
    transport.close()
    _Flushing(transport, call_later)


def close_lingering(
    transport: asyncio.Transport, scratch: memoryview, call_later: CallLater, lost: Callable[[Exception | None], None]
) -> None:
    """Closes the transport after the client has had time to read what was written.

    The transport's protocol is not called any more. `lost` is called instead of its `connection_lost`. Bytes of the
    client go to `scratch`. If one side alone cannot be ended (TLS, or the client has ended its own), the transport is
    closed after its buffer is written.
    """
    if transport.is_closing():
        # Closing a TLS transport of asyncio a second time loses its state.
        return
    if not transport.can_write_eof():
        close_flushing(transport, call_later)
        return
    transport.set_protocol(_Lingering(transport, scratch, call_later, lost))
    try:
        transport.write_eof()
    except OSError:
        # The kernel knows of a reset that the transport has not seen yet.
        transport.abort()
        return
    # Reading was paused if the client was too fast. The end of its side would go unnoticed.
    if not transport.is_reading():
        transport.resume_reading()


class _Lingering(asyncio.BufferedProtocol):
    """The protocol of a connection that waits for the client to end its side."""

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
        """Runs every `QUIET_SECONDS`. Waits longer for a client that still sends, and for one that still reads."""
        unsent, before = self._transport.get_write_buffer_size(), self._unsent
        self._unsent = unsent
        self._stalled_seconds = 0.0 if unsent != before else self._stalled_seconds + QUIET_SECONDS
        if unsent and self._stalled_seconds < STALLED_SECONDS:
            # The client still reads: its time to end its side begins when all was sent.
            self._seconds_left = MAX_LINGER_SECONDS
        elif unsent or not self._heard or self._seconds_left <= 0:
            self._transport.abort()
            return
        self._heard = False
        self._seconds_left -= QUIET_SECONDS
        self._look = self._call_later(QUIET_SECONDS, self._looked)


class _Flushing:
    """Checks every `STALLED_SECONDS` that the client of a closing transport has read something."""

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
