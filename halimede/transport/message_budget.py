"""Limits how many received messages are handled in one turn of the event loop, over all calls of a server.

A small message costs its sender five bytes, and one read brings tens of thousands of them. Without a limit one client
would hold the loop. This module knows no messages. Event-loop thread only.
"""

from collections import deque
from collections.abc import Callable

from halimede.transport.event_loop import CallSoonLoop

MAX_MESSAGES_PER_TURN = 256
"""Messages per turn, which take some milliseconds. A turn may end after half of them, see `MessageBudget.spend`."""


UNIT_SECONDS = 1 / 64_000
"""Time of the event loop that one unit stands for."""
MEASURED_BYTES = 1 << 10
"""Size from which on a request spends the time that it took, besides one unit. Most requests are smaller, and cost less
than a look at the clock would be worth."""


class MessageBudget:
    """A budget of messages per turn, and a queue of calls that wait for the next turn."""

    __slots__ = ("_due", "_left", "_loop", "_queue")

    def __init__(self, loop: CallSoonLoop) -> None:
        self._loop = loop
        self._left = MAX_MESSAGES_PER_TURN
        self._due = False
        self._queue: deque[Callable[[], None]] = deque()

    @property
    def left(self) -> bool:
        """Whether this turn may handle more messages."""
        return self._left > 0

    def spend(self, count: int) -> None:
        """Spends `count` messages. The loop is asked for a call in its next turn only after half of the budget is gone.
        A client that waits for its answers rarely gets there, and so costs no call."""
        self._left -= count
        # The call in the next turn gives the budget back. It must be scheduled before the budget is gone.
        if self._left <= MAX_MESSAGES_PER_TURN // 2 and not self._due:
            self._schedule()

    def spend_time(self, seconds: float) -> None:
        """Spends what work on the loop took."""
        self.spend(int(seconds / UNIT_SECONDS))

    def wait(self, step: Callable[[], None]) -> None:
        """Calls `step` in a later turn: in the next one if the calls queued before it leave any budget. `step` must not
        raise."""
        self._queue.append(step)
        if not self._due:
            self._schedule()

    def _schedule(self) -> None:
        self._due = True
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        self._left = MAX_MESSAGES_PER_TURN
        # A step may queue itself again. It then waits for the turn after this one.
        for _ in range(len(self._queue)):
            if self._left <= 0:
                break
            self._queue.popleft()()
        if self._queue and not self._due:
            self._schedule()
