"""Whether the event loop and the workers of Python models keep to one core, or run wherever they may.

Where they take turns, waking another core for each turn takes longer than a small model does; where they have work at
the same time, one core is too few. Which of the two it is shows in how many requests are served, so both are tried
(docs/decisions/packing.md). `Packing` is pure and told the time; `Packer` does it, on the event loop.
"""

import asyncio
from contextlib import suppress
from statistics import median
from time import monotonic_ns

from halimede.platform.cores import ALL, current_core
from halimede.workers.child.berth import NOWHERE, Berth

SAMPLE_NS = 20_000_000
BUSY = 1000
"""Requests a second from where on a turn is so short that waking matters."""
SETTLES = 5
"""Samples after a change that say nothing: threads stay for a while where they were kept."""
SAMPLES = 8
"""How many say how much is served. Of them the median counts, since other programs come in between."""
GAIN = 1.05
"""How many times as many requests must be served on one core; it is kept to only for a reason."""
CHANGED = 0.4
"""A load that differs by this share from that of the trial is another load."""
KEPT_NS = 5_000_000_000
LONG_NS = 3_000_000
"""A worker whose batch took longer stays where it is: it would keep the loop from its core for as long."""
RESTS_NS = (500_000_000, 8_000_000_000)
"""Until the next trial: after one that was won, and after those that were lost, at first and at most."""


class Packing:
    """Is told every 20 ms or so how many requests were served, and says whether to keep to one core until the next."""

    def __init__(self) -> None:
        self.packed = False
        self._samples: list[float] = []
        self._spread = 0.0
        self._packed_rate = 0.0
        self._on_trial = False
        self._due = self._lost_at = 0
        self._rest = RESTS_NS[0]

    def sampled(self, now: int, rate: float) -> bool:
        """`rate` is in requests a second, since the last time."""
        if rate < BUSY:
            if self.packed:
                self._due = now
            self._change(False)
            return False
        self._samples.append(rate)
        if len(self._samples) < SETTLES + SAMPLES:
            return self.packed
        del self._samples[: -SETTLES - SAMPLES]
        usual = median(self._samples[SETTLES:])
        if not self.packed:
            if now >= self._due or (now >= self._lost_at + RESTS_NS[0] and _differs(usual, self._spread)):
                self._spread = usual
                self._change(True)
        elif self._on_trial:
            self._decide(now, usual)
        elif now >= self._due or _differs(usual, self._packed_rate):
            self._due = now
            self._change(False)
        return self.packed

    def _decide(self, now: int, rate: float) -> None:
        self._on_trial = False
        self._packed_rate = rate
        if rate > GAIN * self._spread:
            self._rest = RESTS_NS[0]
            self._due = now + KEPT_NS
        else:
            self._lost_at = now
            self._due = now + self._rest
            self._rest = min(2 * self._rest, RESTS_NS[1])
            self._change(False)

    def _change(self, packed: bool) -> None:
        self._samples.clear()
        self.packed = self._on_trial = packed


def _differs(rate: float, before: float) -> bool:
    return abs(rate - before) > CHANGED * before


class Packer:
    """Counts what is served, looks at it now and then while there is something, and keeps the loop to a core or not.
    Who works for the loop keeps to `core`. Without `packs` everybody runs anywhere. Event-loop thread only, but for
    `served`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, packs: bool = True) -> None:
        self.core = NOWHERE
        self._loop = loop
        self._berth = Berth()
        self._packing = Packing()
        self._served = 0
        self._last = 0
        self._looking = not packs or len(ALL) < 2
        """Whether it looks again by itself; for good where there is nothing to choose, or no more."""
        self._closed = False

    def served(self, requests: int) -> None:
        """An instance has run so many. Any thread: a count that is lost now and then does not matter."""
        self._served += requests
        if not self._looking:
            self._looking = True
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._begin)

    def close(self) -> None:
        """Lets go of the core: the loop may go on without this server."""
        self._closed = self._looking = True
        self._berth.keep_to(NOWHERE)
        self.core = NOWHERE

    def _begin(self) -> None:
        self._served = 0
        self._last = monotonic_ns()
        self._loop.call_later(SAMPLE_NS / 1e9, self._look)

    def _look(self) -> None:
        if self._closed:
            return
        now = monotonic_ns()
        packed = self._packing.sampled(now, self._served * 1e9 / (now - self._last))
        if not packed:
            self.core = NOWHERE
        elif self.core == NOWHERE:
            self.core = current_core()
        self._berth.keep_to(self.core)
        if self._served:
            self._begin()
        else:
            self._looking = False
