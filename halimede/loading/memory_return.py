"""Gives free memory back to the system after models were closed (contract D7). On the event loop; the work itself, for
which the C library holds up whoever asks for memory meanwhile, on a thread.
"""

import asyncio
from collections.abc import Callable

SECONDS = 1.0
"""Between two times at least: where many models go, once for all that went meanwhile."""


class MemoryReturn:
    """`give` begins to give back."""

    def __init__(self, loop: asyncio.AbstractEventLoop, give: Callable[[], None]) -> None:
        self._loop = loop
        self._give = give
        self._earliest = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """A model was closed: at once, or as soon as it may be."""
        if self._timer is None:
            self._timer = self._loop.call_at(max(self._earliest, self._loop.time()), self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._earliest = self._loop.time() + SECONDS
        self._give()

    def end(self) -> None:
        """Not any more."""
        self._earliest = float("inf")
        if self._timer is not None:
            self._timer.cancel()
