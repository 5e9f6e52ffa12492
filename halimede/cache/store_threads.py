"""Threads that carry lookups and insertions to a store which may be slow, several in one journey.

The threads share one queue and know nothing of inferences; the loop is told what came of each journey.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

from halimede.cache.api import Found, Loop

MOST_TOGETHER = 64
"""In one journey."""


@dataclass(slots=True, eq=False)
class Errand:
    """A lookup, or with an `entry` an insertion. `found` is None once nobody waits any more; the loop sets it so."""

    key: bytes
    entry: bytes | None = None
    found: Found | None = None

    @property
    def stale(self) -> bool:
        return self.entry is None and self.found is None


class Store(Protocol):
    """On the thread of one courier."""

    def carry(self, errands: Sequence[Errand]) -> Sequence[bytes | Exception | None]:
        """For each what was found, None for nothing and for an insertion, or why it failed. Blocks, within limits.
        Raises Exception where the store cannot be reached at all."""
        ...

    def close(self) -> None: ...


Back = Callable[[Sequence[Errand], Sequence[bytes | Exception | None]], None]


class Couriers:
    """So many threads, each with a store of its own. `back` is told on the event loop."""

    def __init__(self, number: int, open_store: Callable[[], Store], loop: Loop, back: Back) -> None:
        self._queue: SimpleQueue[Errand | None] = SimpleQueue()
        self._open_store = open_store
        self._loop = loop
        self._back = back
        self._number = number
        for index in range(number):
            Thread(target=self._run, name=f"cache #{index}", daemon=True).start()

    def send(self, errand: Errand) -> None:
        self._queue.put(errand)

    def close(self) -> None:
        """They end after what they were given; nobody waits for it."""
        for _ in range(self._number):
            self._queue.put(None)

    def _run(self) -> None:
        store = self._open_store()
        ends = False
        while not ends:
            errands, ends = self._next()
            errands = [errand for errand in errands if not errand.stale]
            if errands:
                self._journey(store, errands)
        store.close()

    def _next(self) -> tuple[list[Errand], bool]:
        """What there is to carry, one errand at least, and whether this was the last."""
        errands: list[Errand] = []
        errand = self._queue.get()
        while errand is not None:
            errands.append(errand)
            if len(errands) == MOST_TOGETHER:
                return errands, False
            try:
                errand = self._queue.get_nowait()
            except Empty:
                return errands, False
        return errands, True

    def _journey(self, store: Store, errands: Sequence[Errand]) -> None:
        results: Sequence[bytes | Exception | None]
        try:
            results = store.carry(errands)
        except Exception as error:  # of the library, or its answer's: the owner of each errand says what it means
            results = [error] * len(errands)
        try:
            self._loop.call_soon_threadsafe(self._back, errands, results)
        except RuntimeError:
            """The loop is closed: the server has ended."""
