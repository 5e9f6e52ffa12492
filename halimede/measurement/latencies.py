"""How long inferences of a model version took lately: quantiles over a sliding window, and a histogram of the time to
the first response (contract M12 to M14, M17). There only where it was asked for. Event-loop thread only.

Counts and sums of the summaries are those of the statistics; only what these cannot say is kept here.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf, nan

from halimede.engine_port import Histogram

WINDOW_NS = 60_000_000_000
"""How far back quantiles look, as in the real server: so far at most, and at least four fifths of it."""
_STEPS = 5
_STEP_NS = WINDOW_NS // _STEPS

_BITS = 7
_EXACT = 2 << _BITS
"""Smaller numbers of microseconds have a bucket each; larger ones share one with those that differ by less than one in
128."""

FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
DEFAULT_BUCKETS = (100.0, 500.0, 2000.0, 5000.0)
"""Milliseconds (contract M12)."""


def bucket_of(micros: int) -> int:
    """The bucket of a duration: the numbers ascend with the durations."""
    if micros < _EXACT:
        return max(micros, 0)
    shift = micros.bit_length() - _BITS - 1
    return (shift << _BITS) + (micros >> shift)


def micros_of(bucket: int) -> float:
    """The middle of a bucket."""
    if bucket < _EXACT:
        return float(bucket)
    shift = (bucket >> _BITS) - 1
    lowest = (bucket - (shift << _BITS)) << shift
    return lowest + ((1 << shift) - 1) / 2


class Quantiles:
    """Durations of the last minute, in buckets, in five parts of which the oldest is forgotten every 12 seconds."""

    __slots__ = ("_current", "_ends", "_parts")

    def __init__(self) -> None:
        self._parts: deque[dict[int, int]] = deque([{}], _STEPS)
        self._current = self._parts[-1]
        self._ends = 0

    def observe(self, ns: int, now: int) -> None:
        if now >= self._ends:
            self._turn(now)
        micros = ns // 1000
        bucket = micros if 0 <= micros < _EXACT else bucket_of(micros)
        current = self._current
        current[bucket] = current.get(bucket, 0) + 1

    def read(self, quantiles: Sequence[float], now: int) -> tuple[float, ...]:
        """The microseconds at each quantile; not a number where nothing was observed in the window."""
        if now >= self._ends:
            self._turn(now)
        counts: dict[int, int] = {}
        for part in self._parts:
            for bucket, count in part.items():
                counts[bucket] = counts.get(bucket, 0) + count
        buckets = sorted(counts)
        if not buckets:
            return (nan,) * len(quantiles)
        upto = list(accumulate(counts[bucket] for bucket in buckets))
        ranks = (max(1, ceil(quantile * upto[-1])) for quantile in quantiles)
        return tuple(micros_of(buckets[bisect_left(upto, rank)]) for rank in ranks)

    def _turn(self, now: int) -> None:
        """Begins new parts until the present one is not over."""
        if not self._ends or now >= self._ends + WINDOW_NS:
            self._parts.clear()
            self._parts.append({})
            self._ends = now + _STEP_NS
        while now >= self._ends:
            self._parts.append({})
            self._ends += _STEP_NS
        self._current = self._parts[-1]


class Buckets:
    """A histogram of durations: how many were at most each of `bounds`, which are so many nanoseconds each."""

    __slots__ = ("_counts", "_ns", "_unit", "bounds")

    def __init__(self, bounds: Sequence[float], unit_ns: int = 1_000_000) -> None:
        self._unit = unit_ns
        self.bounds = tuple(bound for bound in bounds if bound != inf)
        self._counts = [0] * (len(self.bounds) + 1)
        self._ns = 0

    def observe(self, ns: int) -> None:
        self._counts[bisect_left(self.bounds, ns / self._unit)] += 1
        self._ns += ns

    def read(self) -> Histogram:
        return Histogram((*self.bounds, inf), tuple(accumulate(self._counts)), self._ns / self._unit)


@dataclass(frozen=True, slots=True)
class Recent:
    """Quantiles of each phase of the inferences. Of a model whose responses are kept, hits and misses too."""

    request: Quantiles
    queue: Quantiles
    compute_input: Quantiles
    compute_infer: Quantiles
    compute_output: Quantiles
    cache_hit: Quantiles
    cache_miss: Quantiles

    @classmethod
    def begin(cls) -> "Recent":
        return cls(*(Quantiles() for _ in range(7)))


@dataclass(frozen=True, slots=True)
class Latencies:
    """What is kept of a model version beside its statistics; None what was not asked for."""

    recent: Recent | None = None
    first_response: Buckets | None = None

    def going_on_as(self, previous: "Latencies") -> "Latencies":
        """What was observed before goes on; a histogram only where it has the same buckets."""
        mine, theirs = self.first_response, previous.first_response
        same = mine is not None and theirs is not None and mine.bounds == theirs.bounds
        return Latencies(previous.recent, theirs if same else mine)
