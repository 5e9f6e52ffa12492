"""Finds out whether a client that has ended its side still reads its answer, or is gone.

The kernel reports both cases alike. Only when bytes are sent does a client that is gone reply with a reset, and the
next write fails. So the bytes that every HTTP/1 answer begins with are sent ahead, one at a time, and are left out of
the answer. A client that reads gets the same bytes as without probing. Event-loop thread only.
"""

from asyncio import WriteTransport
from collections.abc import Iterable

from halimede.tensors import Buffer
from halimede.transport.event_loop import CallLater, TimerHandle

ANSWER_START = b"HTTP/1."
"""The first bytes of every answer. They can be sent before the answer is known."""
FIRST_PROBE_SECONDS = 0.05
"""Delay before the first probe. Each later delay is twice the one before, so a quick answer is not probed at all."""


class HalfClosed:
    """Takes the writes of answers, in place of the transport, after the client has ended its side. If a probe fails
    because the client is gone, the transport calls `connection_lost`."""

    def __init__(self, transport: WriteTransport, call_later: CallLater) -> None:
        self._transport = transport
        self._call_later = call_later
        self._sent = 0
        self._delay = FIRST_PROBE_SECONDS
        self._next: TimerHandle | None = None

    def probe(self) -> None:
        """Starts probing, until an answer begins. An answer must be due and must not have begun."""
        # Probes that were sent stay part of the answer, so a second start would repeat them.
        if self._next is None and not self._sent:
            self._delay = FIRST_PROBE_SECONDS
            self._next = self._call_later(self._delay, self._send_probe)

    def _send_probe(self) -> None:
        self._next = None
        # The connection may have been lost after the timer was set.
        if self._transport.is_closing():
            return
        self._transport.write(ANSWER_START[self._sent : self._sent + 1])
        self._sent += 1
        # All common bytes are sent. The next ones depend on the answer.
        if self._sent < len(ANSWER_START):
            self._delay *= 2
            self._next = self._call_later(self._delay, self._send_probe)

    def _begin(self) -> int:
        """Stops probing. Returns how many bytes of the answer were already sent."""
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
