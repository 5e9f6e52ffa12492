"""Asks versions or instances whether they are ready, and combines their answers (P9). Event-loop thread only."""

from collections.abc import Callable, Sequence
from typing import Protocol


class ReportsReadiness(Protocol):
    """A version or an instance that reports its readiness."""

    def ask_ready(self, done: Callable[[bool], None], /) -> None: ...


def ask_all(those: Sequence[ReportsReadiness], done: Callable[[bool], None]) -> None:
    """Calls `done` once, possibly before this returns: with False at the first no, with True if all say yes."""
    _Poll(len(those), done).ask(those)


class _Poll:
    def __init__(self, missing: int, done: Callable[[bool], None]) -> None:
        self._missing = missing
        self._done: Callable[[bool], None] | None = done

    def ask(self, those: Sequence[ReportsReadiness]) -> None:
        if not those:
            self._tell(True)
        for each in those:
            each.ask_ready(self._said)

    def _said(self, ready: bool) -> None:
        self._missing -= 1
        if not ready or not self._missing:
            self._tell(ready)

    def _tell(self, ready: bool) -> None:
        # The first no decides. The answers after it come too late to count.
        done, self._done = self._done, None
        if done is not None:
            done(ready)
