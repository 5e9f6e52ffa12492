"""A few seconds with far more requests than a model can serve. `make soak` runs a minute, with stricter limits."""

import pytest

from tools.overload import CAPACITY, run
from tools.overload_health import Asked, health_of

LEAST_SHARE = 0.6
"""The share of the throughput just before the overload that must remain. On an idle machine it is above 0.9."""
TRIES = 5
"""Tries: other programs on the machine may spoil a time limit once."""


@pytest.mark.rows("S28")
def test_overloaded_model_serves_what_it_can_and_refuses_the_rest_at_once() -> None:
    for left in reversed(range(TRIES)):
        report = run(connections=200, queue=64, seconds=5.0)
        assert not report.odd
        assert report.most_waiting <= report.queue
        problems = report.problems(LEAST_SHARE * min(report.calm_per_second / CAPACITY, 1.0), alone=False)
        assert not problems or left, problems
        if not problems:
            break
    assert report.refused_ms["p50"] < report.served_ms["p50"] / 2, "the refused did not wait in the queue"
    assert report.requests_per_second > 4 * report.served_per_second, "there was no overload"


@pytest.mark.parametrize(
    ("ran", "server_waited", "asker_waited", "own"),
    [
        (0.01, 0.0, 0.0, 0.1),  # it waited for something else: that is its own
        (0.02, 0.07, 0.0, 0.03),
        (0.02, 0.05, 0.03, 0.02),
        (0.02, 0.5, 0.0, 0.02),  # the waiting began before the question
        (0.5, 0.0, 0.0, 0.1),  # so did the work
    ],
)
def test_time_without_a_core_does_not_count_for_the_server(
    ran: float, server_waited: float, asker_waited: float, own: float
) -> None:
    asked = Asked(0.0, False, 0.1, ran, server_waited, asker_waited)
    assert asked.own == pytest.approx(own)
    health = health_of([asked])
    assert health.server_ms["max"] + health.machine_ms["max"] == pytest.approx(health.all_ms["max"])
