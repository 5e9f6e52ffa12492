"""`halimede perf` against a server of which queueing theory knows the latencies: fixed service time, k places."""

import heapq
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from halimede.perf.schedules import SECOND, poisson
from tests.perf.stand_in import stand_in

pytestmark = pytest.mark.perf

SERVICE = 0.1
PLACES = 2
REQUESTS = 120
LIMIT = 120.0
CLOSE = 0.05
"""How close the figures must be to the theory, as a share."""
MACHINE = 0.01
"""Seconds that a busy machine may add to a latency."""


def responses(arrivals: Sequence[float], service: float, places: int) -> np.ndarray:
    """Waiting and service of each request: whoever comes first takes the place that is free first."""
    free = [0.0] * places
    found = []
    for at in arrivals:
        begin = max(at, heapq.heappop(free))
        heapq.heappush(free, begin + service)
        found.append(begin + service - at)
    return np.array(found)


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95])
def test_model_of_the_queue_is_that_of_theory(load: float) -> None:
    """For one place the mean wait is known in closed form (Pollaczek and Khinchine)."""
    rate = load / SERVICE
    arrivals = [each / SECOND for each in islice(poisson(rate, random.Random(5)), 400_000)]
    wait = responses(arrivals, SERVICE, 1).mean() - SERVICE
    assert wait == pytest.approx(load * SERVICE / (2 * (1 - load)), rel=CLOSE)


def measured(url: str, tmp_path: Path, *words: str) -> dict[str, float]:
    """The throughput per second and the latencies in seconds that a run reports."""
    file = tmp_path / "result.json"
    command = [sys.executable, "-m", "halimede", "perf", "-m", "m", "-u", url, *words, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    (level,) = json.loads(file.read_text())["levels"]
    (result,) = level["rounds"]
    assert result["requests"] == REQUESTS
    return {"throughput": result["throughput"]} | {name: us / 1e6 for name, us in result["latency_us"].items()}


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95])
def test_open_loop_reports_the_latencies_of_theory(load: float, tmp_path: Path) -> None:
    rate = round(load * PLACES / SERVICE, 3)
    words = ["--request-rate-range", str(rate), "--request-distribution", "poisson", "--request-count", str(REQUESTS)]
    with stand_in(SERVICE, PLACES) as url:
        found = measured(url, tmp_path, *words)
    # The first schedule of a run is the same each time.
    arrivals = [each / SECOND for each in islice(poisson(rate, random.Random("1")), REQUESTS)]
    wanted = responses(arrivals, SERVICE, PLACES)
    assert found["mean"] == pytest.approx(wanted.mean(), rel=CLOSE, abs=MACHINE)
    for percentile in (50, 90):
        assert found[f"p{percentile}"] == pytest.approx(np.percentile(wanted, percentile), rel=CLOSE, abs=MACHINE)


@pytest.mark.rows("X3")
@pytest.mark.parametrize("clients", [1, 2, 8])
def test_closed_loop_reports_the_latencies_of_theory(clients: int, tmp_path: Path) -> None:
    with stand_in(SERVICE, PLACES) as url:
        found = measured(url, tmp_path, "--concurrency-range", str(clients), "--request-count", str(REQUESTS))
    places = min(clients, PLACES)
    assert found["throughput"] == pytest.approx(places / SERVICE, rel=CLOSE)
    assert found["mean"] == pytest.approx(clients * SERVICE / places, rel=CLOSE, abs=MACHINE)
