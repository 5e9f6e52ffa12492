"""How much of what has come is taken up in one turn of the event loop, for all calls of a server together.

Small messages cost their sender five bytes each, and a read brings tens of thousands of them. Knows no messages.
Event-loop thread only.
"""

from collections import deque
from collections.abc import Callable

from halimede.transport.event_loop import CallSoonLoop

MAX_MESSAGES_PER_TURN = 256
"""Messages in a turn: some milliseconds of them. It may be as few as half, see `MessageBudget.spend`."""


class MessageBudget:
    """Who has more than fits into a turn waits in a line for the next."""

    __slots__ = ("_due", "_left", "_line", "_loop")

    def __init__(self, loop: CallSoonLoop) -> None:
        self._loop = loop
        self._left = MAX_MESSAGES_PER_TURN
        self._due = False
        self._line: deque[Callable[[], None]] = deque()

    @property
    def left(self) -> bool:
        """Whether more may be taken up in this turn."""
        return self._left > 0

    def spend(self, count: int) -> None:
        """Notes so many messages. The loop is asked to tell of its next turn only once half of them are spent, which a
        client that waits for its answers does not often do."""
        self._left -= count
        if self._left <= MAX_MESSAGES_PER_TURN // 2 and not self._due:
            self._schedule()

    def wait(self, step: Callable[[], None]) -> None:
        """Calls `step`, which must not raise, in a later turn: the next, if those before it leave something of it."""
        self._line.append(step)
        if not self._due:
            self._schedule()

    def _schedule(self) -> None:
        self._due = True
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        self._left = MAX_MESSAGES_PER_TURN
        for _ in range(len(self._line)):
            if self._left <= 0:
                break
            self._line.popleft()()
        if self._line and not self._due:
            self._schedule()
