"""How long to measure: until the figures are sure enough for what they decide. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from halimede.perf.statistics import Window, merged_clients

WINDOW_SECONDS = 0.2
SETTLE_SECONDS = 0.15
"""What passes before the first window."""
LEAST_WINDOWS = 3
LEAST_REQUESTS = 30
SURE = 0.03
"""The half width of the confidence interval of a throughput, as a share, that is small enough."""
MOST_SECONDS = 2.0
"""The longest measurement, unless the user or a slow model wants more."""
HOPELESS = 0.85
"""A candidate that reaches only this share of the best one is not measured any longer."""
FAR = 1.5
"""A latency that many times over its limit needs no second look; one that many times below neither."""
PATIENCE_SECONDS = 15.0
"""How long a slow model may take for LEAST_REQUESTS."""
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Quantiles of Student's distribution for 95 %, from one degree of freedom; more degrees have the last."""


def half_width(rates: Sequence[float]) -> float:
    """Of the 95 % confidence interval of their mean, as a share of it."""
    if len(rates) < 2:
        return math.inf
    middle = fmean(rates)
    if not middle:
        return math.inf
    factor = _T95[min(len(rates) - 2, len(_T95) - 1)]
    return factor * stdev(rates) / math.sqrt(len(rates)) / middle


@dataclass(frozen=True, slots=True)
class Question:
    """What a measurement is to decide.

    `rival` is the throughput of the best candidate so far, 0 if throughput is not what counts. `limit` is the largest
    p99 in nanoseconds, 0 for none.
    """

    rival: float = 0.0
    limit: float = 0.0
    sure: float = SURE
    most_seconds: float = MOST_SECONDS


def stop_rule(question: Question) -> Callable[[Sequence[Window]], bool]:
    """Whether windows are enough to answer a question."""

    def is_enough(windows: Sequence[Window]) -> bool:
        client = merged_clients([each.client for each in windows])
        if client.seconds >= PATIENCE_SECONDS:
            return True
        if len(windows) < 2 or client.requests < LEAST_REQUESTS:
            return False
        rates = [each.client.infer_per_sec for each in windows]
        if question.rival and max(rates) < question.rival * HOPELESS:
            return True
        if question.limit and client.at(50) > question.limit * FAR:
            return True
        if client.seconds >= question.most_seconds:
            return True
        if len(windows) < LEAST_WINDOWS:
            return False
        # The best candidates are measured again in the end, so that one is better says enough.
        is_better = 0 < question.rival < min(rates)
        if not is_better and half_width(rates) > question.sure:
            return False
        return not question.limit or not question.limit / FAR < client.at(99) < question.limit * FAR or is_even(windows)

    return is_enough


def is_even(windows: Sequence[Window]) -> bool:
    """Whether the latencies of the two halves differ little."""
    middle = len(windows) // 2
    first, second = (
        merged_clients([each.client for each in part]).at(99) for part in (windows[:middle], windows[middle:])
    )
    return abs(first - second) <= 0.1 * max(first, second, 1)
