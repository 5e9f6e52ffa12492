"""A client that sends no more: has it ended its own side only, and reads its answer, or is it gone?

Its system says the same in both cases until it is sent something: one that is gone answers with a reset, and the next
write fails. So what every answer of HTTP/1 begins with is sent ahead of it, a letter at a time, and left out of the
answer then: who reads gets the bytes that it would have got. Event-loop thread only.
"""

import asyncio
from collections.abc import Iterable

from halimede.tensors import Buffer
from halimede.transport.lingering import Handle, Later

BEGINNING = b"HTTP/1."
FIRST_SECONDS = 0.05
"""Until the first letter, then twice as long each time: a quick answer comes whole."""


class HalfClosed(asyncio.Transport):
    """Stands for the transport of a connection whose client has ended its side, while an answer is due that has not
    begun. The transport calls `connection_lost` when a letter finds nobody."""

    def __init__(self, transport: asyncio.Transport, later: Later) -> None:
        super().__init__()
        self._transport = transport
        self._later = later
        self._sent = 0
        self._delay = FIRST_SECONDS
        self._next: Handle | None = later(self._delay, self._send_letter)

    def _send_letter(self) -> None:
        self._next = None
        if self._transport.is_closing():
            return
        self._transport.write(BEGINNING[self._sent : self._sent + 1])
        self._sent += 1
        if self._sent < len(BEGINNING):
            self._delay *= 2
            self._next = self._later(self._delay, self._send_letter)

    def _begin(self) -> int:
        """An answer begins; how much of it was sent."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        sent, self._sent = self._sent, 0
        return sent

    def write(self, data: Buffer | memoryview) -> None:
        self._transport.write(memoryview(data)[self._begin() :])

    def writelines(self, list_of_data: Iterable[Buffer | memoryview]) -> None:
        first, *others = list_of_data
        self._transport.writelines([memoryview(first)[self._begin() :], *others])

    def close(self) -> None:
        self._begin()
        self._transport.close()

    def abort(self) -> None:
        self._begin()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def can_write_eof(self) -> bool:
        """There is nothing to wait for once all is written."""
        return False

    def pause_reading(self) -> None:
        """Nothing comes any more."""

    def resume_reading(self) -> None:
        """Nothing comes any more."""
