"""The adaptive search of `halimede analyze` beside brute search, on servers of theory that nothing was tuned on.

`python -m bench.analyze_simulation --json bench/results/analyze_simulated.json`. A server has an execution time with a
fixed part and a part for each request, a number of cores, and a configuration to begin with, all drawn at random. Each
is searched without a latency budget and with one. No measurement has noise, so only the choice of candidates counts.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from halimede.analyze.ranking import Goal, Limits
from halimede.analyze.searches import Plan
from halimede.analyze.searches.adaptive import adaptive
from halimede.analyze.searches.brute import brute
from halimede.analyze.space import Bounds, Space, axes_of
from tests.analyze.simulated import CONFIG, Simulated

SERVERS = 150
SEED = 2026
ENOUGH = 0.95


def drawn(lot: random.Random) -> Simulated:
    return Simulated(
        base=10 ** lot.uniform(-4, -1.5),
        each=10 ** lot.uniform(-5, -2.3),
        cores=lot.choice((1, 2, 4, 8)),
        overhead=10 ** lot.uniform(-4, -2.5),
        config={
            **CONFIG,
            "max_batch_size": 2 ** lot.randrange(8),
            "instance_group": [{"kind": "KIND_CPU", "count": lot.randint(1, 5)}],
        },
    )


def compared(server: Simulated, goal: Goal) -> tuple[float, float]:
    """The throughput that the adaptive search finds, and its measurements, as shares of those of brute search. A
    throughput over the budget counts as none."""
    plan = Plan(Space(tuple(axes_of("m", server.config, Bounds())), {"m": server.config}), goal)
    results = []
    for search in (adaptive(plan), brute(plan)):
        server.asked.clear()
        best = goal.best(server.run(search))
        assert best is not None
        results.append((best, len(server.asked)))
    (found, asked), (everything, asked_by_brute) = results
    is_valid = goal.satisfies(found) or not goal.satisfies(everything)
    return (found.throughput / everything.throughput if is_valid else 0.0), asked / asked_by_brute


def run() -> Iterator[tuple[bool, float, float]]:
    """Whether there was a budget, and what `compared` returns."""
    lot = random.Random(SEED)
    for _ in range(SERVERS):
        server = drawn(lot)
        budget = (server.base + server.each) * 1000 * lot.uniform(3, 50)
        yield False, *compared(server, Goal())
        yield True, *compared(server, Goal(constraints={"perf_latency_p99": Limits(most=budget)}))


def summary(found: Sequence[tuple[float, float]]) -> dict[str, Any]:
    rates, costs = sorted(rate for rate, _ in found), sorted(cost for _, cost in found)
    return {
        "servers": len(found),
        "within_5_percent": round(sum(rate >= ENOUGH for rate in rates) / len(found), 3),
        "worst_throughput": round(rates[0], 3),
        "median_throughput": round(rates[len(rates) // 2], 3),
        "median_measurements": round(costs[len(costs) // 2], 3),
        "most_measurements": round(costs[-1], 3),
        "within_a_fifth_of_the_measurements": round(sum(cost <= 0.2 for cost in costs) / len(found), 3),
    }


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="the file for the results")
    options = parser.parse_args(words)
    found = list(run())
    document = {
        "seed": SEED,
        "what": "the adaptive search as shares of brute search, without noise",
        "without_a_budget": summary([(rate, cost) for has_budget, rate, cost in found if not has_budget]),
        "with_a_budget": summary([(rate, cost) for has_budget, rate, cost in found if has_budget]),
    }
    print(json.dumps(document, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
