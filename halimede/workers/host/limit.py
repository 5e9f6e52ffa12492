"""How long a worker may have a batch before it counts as hanging.

Event-loop thread only. One timer for each instance and not one for each batch: what begins and ends only notes a time.
"""

from collections.abc import Callable
from typing import Final, Protocol

LATE: Final = 0.1
"""Seconds by which the loop may look too late at a batch. Beyond that it stood still itself, and reads for as long what
was said meanwhile before it judges: the end of the batch may be among it."""


class Clock(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[[], None], /) -> object: ...


class ExecutionLimit:
    """Calls `exceeded` once a batch has run for `seconds`. Time that passes while `excused` holds does not count."""

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
        """A batch runs, or there is a reason to begin counting again."""
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
