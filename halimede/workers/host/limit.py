"""The time limit of a batch in a worker.

Event-loop thread only. There is one timer per instance, not one per batch: `begin` and `end` only store a time.
"""

from collections.abc import Callable
from typing import Final, Protocol

LATE: Final = 0.1
"""Seconds by which the timer may be late. If it is later, the loop itself was blocked, and the end of the batch may lie
unread in the socket: the batch gets this much time more, once."""


class Clock(Protocol):
    """The part of an event loop that this module needs."""

    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[[], None], /) -> object: ...


class ExecutionLimit:
    """Calls `exceeded` when a batch has run for `seconds`. Time does not count while `excused()` is True."""

    def __init__(
        self, clock: Clock, seconds: float, exceeded: Callable[[], None], excused: Callable[[], bool] = lambda: False
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._exceeded = exceeded
        self._excused = excused
        self._since: float | None = None
        self._armed = False
        self._due = 0.0
        self._spared = False

    def begin(self) -> None:
        """A batch began, or its time starts anew."""
        self._since = self._clock.time()
        self._spared = False
        if not self._armed:
            self._arm(self._seconds)

    def end(self) -> None:
        """No batch runs."""
        self._since = None

    def _arm(self, delay: float) -> None:
        self._armed = True
        self._due = self._clock.time() + delay
        self._clock.call_later(delay, self._look)

    def _look(self) -> None:
        self._armed = False
        if self._since is None:
            return
        if self._excused():
            self.begin()
            return
        now = self._clock.time()
        left = self._since + self._seconds - now
        if left > 0:
            self._arm(left)
        elif now - self._due > LATE and not self._spared:
            self._spared = True
            self._arm(LATE)
        else:
            self._since = None
            self._exceeded()
