"""A client that sends no more: has it ended its own side only, and reads its answer, or is it gone?

Its system says the same in both cases until it is sent something: one that is gone answers with a reset, and the next
write fails. So what every answer of HTTP/1 begins with is sent ahead of it, a letter at a time, and left out of the
answer then: who reads gets the bytes that it would have got. Event-loop thread only.
"""

from asyncio import WriteTransport
from collections.abc import Iterable

from halimede.tensors import Buffer
from halimede.transport.event_loop import CallLater, TimerHandle

ANSWER_START = b"HTTP/1."
FIRST_PROBE_SECONDS = 0.05
"""Until the first letter, then twice as long each time: a quick answer comes whole."""


class HalfClosed:
    """What answers are written to instead of the transport, once the client has ended its side. The transport calls
    `connection_lost` when a letter finds nobody."""

    def __init__(self, transport: WriteTransport, call_later: CallLater) -> None:
        self._transport = transport
        self._call_later = call_later
        self._sent = 0
        self._delay = FIRST_PROBE_SECONDS
        self._next: TimerHandle | None = None

    def probe(self) -> None:
        """Sends letters from now on until an answer begins, which must be due and not begun."""
        if self._next is None and not self._sent:
            self._delay = FIRST_PROBE_SECONDS
            self._next = self._call_later(self._delay, self._send_letter)

    def _send_letter(self) -> None:
        self._next = None
        if self._transport.is_closing():
            return
        self._transport.write(ANSWER_START[self._sent : self._sent + 1])
        self._sent += 1
        if self._sent < len(ANSWER_START):
            self._delay *= 2
            self._next = self._call_later(self._delay, self._send_letter)

    def _begin(self) -> int:
        """An answer begins, or goes on; how much of it was sent."""
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
