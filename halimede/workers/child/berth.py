"""The core that a thread keeps to while it takes turns with another one (docs/decisions/packing.md)."""

from __future__ import annotations

import os
from contextlib import suppress

NOWHERE = -1
_TASKS = "/proc/self/task"


class Berth:
    """Of the one thread that calls `keep_to`. Where somebody else moves it meanwhile (a model that sets its own cores)
    it stays where it was put."""

    def __init__(self) -> None:
        self._core = self._kept = NOWHERE
        self._home: set[int] = set()
        self._older: set[int] = set()

    def keep_to(self, core: int) -> None:
        """Runs on this core from now on; with NOWHERE wherever it could before. A core that it could not run on before
        changes nothing. Does not raise."""
        if core == self._core:
            return
        self._core = core
        with suppress(OSError):
            self._leave()
            home = os.sched_getaffinity(0) if core >= 0 else set()
            if core in home and len(home) > 1:
                self._older = _threads()
                os.sched_setaffinity(0, (core,))
                self._home, self._kept = home, core

    def _leave(self) -> None:
        """Threads that were begun meanwhile were begun on that core: they leave it, too."""
        if not self._home:
            return
        here, home, self._home = {self._kept}, self._home, set()
        if os.sched_getaffinity(0) == here:
            os.sched_setaffinity(0, home)
        for thread in _threads() - self._older:
            with suppress(OSError):  # it is over
                if os.sched_getaffinity(thread) == here:
                    os.sched_setaffinity(thread, home)


def _threads() -> set[int]:
    return set(map(int, os.listdir(_TASKS)))
