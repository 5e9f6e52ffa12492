"""How long a candidate is measured."""

import math

import numpy as np
import pytest

from halimede.analyze.noise import Question, half_width, stop_rule
from halimede.perf.statistics import ClientStats, Window

SECOND = 1_000_000_000


def windows(*rates: int, p99_ms: float = 1.0, seconds: float = 0.2) -> list[Window]:
    """Windows with so many requests per second, whose latencies are all the same."""
    found = []
    for rate in rates:
        count = round(rate * seconds)
        latencies = np.full(count, round(p99_ms * 1e6), np.int64)
        found.append(Window(ClientStats(count, duration=round(seconds * SECOND), latencies=latencies), None, 0.0, 0.0))
    return found


def test_half_width_is_that_of_students_distribution() -> None:
    assert half_width([100]) == math.inf
    assert half_width([90, 100, 110]) == pytest.approx(4.30 * 10 / math.sqrt(3) / 100)
    assert half_width([0, 0]) == math.inf


@pytest.mark.parametrize(
    ("question", "found", "expected"),
    [
        (Question(), windows(1000), False),
        (Question(), windows(1000, 1000), False),
        (Question(), windows(1000, 1001, 999), True),
        (Question(), windows(1000, 1400, 700), False),
        (Question(), windows(*[1000, 1400] * 5), True),  # long enough
        (Question(rival=2000), windows(1000, 1400), True),  # cannot be better
        (Question(rival=1500), windows(1000, 1400), False),
        (Question(rival=900), windows(1000, 1400, 1200), True),  # better, by how much is seen in the end
        (Question(rival=1100), windows(1000, 1400, 1200), False),
        (Question(rival=900), windows(1000, 1400), False),
        (Question(limit=1e6), windows(1000, 1400, p99_ms=2.0), True),  # far too slow
        (Question(limit=1.1e6), windows(1000, 1001, 999), True),  # near the limit, and even
        (Question(), windows(10, 10, 10), False),  # too few requests
        (Question(), windows(*[2] * 75), True),  # a slow model
    ],
)
def test_windows_are_enough(question: Question, found: list[Window], expected: bool) -> None:
    assert stop_rule(question)(found) is expected
