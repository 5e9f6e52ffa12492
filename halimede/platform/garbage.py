"""Full garbage collections, once a minute and not while many requests are under way.

By itself, Python begins one whenever the number of objects has grown by a quarter. It looks at every object that is not
frozen, and nothing else runs meanwhile: 75 ms with 20,000 queued requests, and a client may queue many more. Requests
and answers form no cycles. Cycles of models are mostly young, and the collections of young objects go on as before.

Event-loop thread only.
"""

import gc
from collections.abc import Callable
from typing import Protocol

INTERVAL_SECONDS = 60.0
MAX_UNDER_WAY = 1000
"""Requests under way with which a full collection takes a few milliseconds."""
_NEVER = 1 << 30
"""Collections of young objects after which Python begins a full one."""


class Timer(Protocol):
    def cancel(self) -> object: ...


class FullCollections:
    """The full collections from `begin` to `end`. `under_way` counts the requests that have no answer yet."""

    def __init__(
        self,
        under_way: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], Timer],
        collect: Callable[[], object] = gc.collect,
    ) -> None:
        self._under_way = under_way
        self._call_later = call_later
        self._collect = collect
        self._before = gc.get_threshold()
        self._next: Timer | None = None

    def begin(self) -> None:
        young, middle, _ = self._before = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        self._wait()

    def end(self) -> None:
        if self._next is not None:
            self._next.cancel()
            gc.set_threshold(*self._before)

    def _wait(self) -> None:
        self._next = self._call_later(INTERVAL_SECONDS, self._look)

    def _look(self) -> None:
        if self._under_way() <= MAX_UNDER_WAY:
            self._collect()
        self._wait()
