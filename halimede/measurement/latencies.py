"""Recent latencies of a model version: quantiles over a sliding window, and a histogram of the time to the first
response (M12 to M14, M17). Kept only if the options ask for them. Event-loop thread only.

The counts and sums of summaries come from the statistics; only what these lack is kept here.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf, nan

from halimede.engine_port import Histogram

WINDOW_NS = 60_000_000_000
"""Length of the window, as in the real server. It advances in steps, so it covers at least four fifths of this."""
_STEPS = 5
_STEP_NS = WINDOW_NS // _STEPS

_BITS = 7
_EXACT = 2 << _BITS
"""Fewer microseconds than this have a bucket each. Larger values share buckets with a relative width of 1/128."""

FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
DEFAULT_BUCKETS = (100.0, 500.0, 2000.0, 5000.0)
"""Upper bounds in milliseconds (M12)."""


def bucket_of(micros: int) -> int:
    """The number of the bucket of a duration. Longer durations have higher numbers."""
    if micros < _EXACT:
        return max(micros, 0)
    shift = micros.bit_length() - _BITS - 1
    return (shift << _BITS) + (micros >> shift)


def micros_of(bucket: int) -> float:
    """The middle of a bucket, in microseconds."""
    if bucket < _EXACT:
        return float(bucket)
    shift = (bucket >> _BITS) - 1
    lowest = (bucket - (shift << _BITS)) << shift
    return lowest + ((1 << shift) - 1) / 2


class Quantiles:
    """Durations of the last minute, in buckets. There are five parts; every 12 seconds the oldest is dropped."""

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
        """The microseconds at each quantile, or NaN if the window is empty."""
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
        """Adds parts until the current one covers `now`."""
        if not self._ends or now >= self._ends + WINDOW_NS:
            self._parts.clear()
            self._parts.append({})
            self._ends = now + _STEP_NS
        while now >= self._ends:
            self._parts.append({})
            self._ends += _STEP_NS
        self._current = self._parts[-1]


MILLISECOND_NS = 1_000_000


class Buckets:
    """A histogram of durations. `bounds` are upper bounds in units of `unit_ns` nanoseconds, and `step_ns` is the
    precision: shorter parts of a duration are cut off."""

    __slots__ = ("_counts", "_ns", "_step", "_unit", "bounds")

    def __init__(self, bounds: Sequence[float], unit_ns: int = MILLISECOND_NS, step_ns: int = 1) -> None:
        self._unit, self._step = unit_ns, step_ns
        self.bounds = tuple(bound for bound in bounds if bound != inf)
        self._counts = [0] * (len(self.bounds) + 1)
        self._ns = 0

    def observe(self, ns: int) -> None:
        ns -= ns % self._step
        self._counts[bisect_left(self.bounds, ns / self._unit)] += 1
        self._ns += ns

    def read(self) -> Histogram:
        return Histogram((*self.bounds, inf), tuple(accumulate(self._counts)), self._ns / self._unit)


def first_response_buckets(bounds: Sequence[float]) -> Buckets:
    """A histogram of the time to the first response, in whole milliseconds like Triton's (M12)."""
    return Buckets(bounds, MILLISECOND_NS, MILLISECOND_NS)


@dataclass(frozen=True, slots=True)
class Recent:
    """The quantiles of each phase of inferences, and of cache hits and misses."""

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
    """The latencies of a model version. A field is None if the options do not ask for it."""

    recent: Recent | None = None
    first_response: Buckets | None = None

    def going_on_as(self, previous: "Latencies") -> "Latencies":
        """Continues the observations of a replaced version; its histogram only if the buckets are equal."""
        mine, theirs = self.first_response, previous.first_response
        same = mine is not None and theirs is not None and mine.bounds == theirs.bounds
        return Latencies(previous.recent, theirs if same else mine)
