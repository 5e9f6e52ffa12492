#!/usr/bin/env python3
"""Compares dynamic batching with and without regrouping, in a simulation with the scheduler's policy.

    python -m bench.regrouping [--held-out 120] [--seed 2] [--processes N]

The loads are those of `bench.adaptive`. For clients that wait for their answers and for requests that arrive
independently, it prints how throughput and latencies change: each figure is the one with regrouping divided by the one
without.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from bench.adaptive_cases import held_out, is_open, tuning
from bench.adaptive_simulation import Case, Outcome, Simulation
from halimede.scheduling.dynamic import DynamicPolicy
from halimede.scheduling.regrouping import Regrouping


def outcomes(case: Case) -> tuple[Outcome, Outcome]:
    """With regrouping, and without."""
    with_it, without = (_run(case, each) for each in (Regrouping(case.max_batch), None))
    return with_it, without


def _run(case: Case, regrouping: Regrouping | None) -> Outcome:
    simulation = Simulation(DynamicPolicy(case.max_batch, (case.max_batch,), 0, 0, regrouping), case)
    simulation.run()
    return simulation.outcome("regrouping" if regrouping else "at once")


def described(name: str, pairs: Sequence[tuple[float, float]]) -> str:
    """The distribution of the ratios of a figure."""
    ratios = sorted(with_it / max(without, 1e-9) for with_it, without in pairs)
    places = {"least": 0, "a tenth below": len(ratios) // 10, "median": len(ratios) // 2}
    places |= {"a tenth above": len(ratios) * 9 // 10, "most": -1}
    quantiles = ", ".join(f"{words} {ratios[place]:.3f}" for words, place in places.items())
    less, more = sum(ratio < 0.97 for ratio in ratios), sum(ratio > 1.03 for ratio in ratios)
    return f"  {name:10} {quantiles}; below 0.97: {less}, above 1.03: {more}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--held-out", type=int, default=120)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--processes", type=int)
    options = parser.parse_args()
    cases = tuning() + held_out(options.held_out, options.seed)
    with ProcessPoolExecutor(options.processes) as pool:
        found = list(zip(cases, pool.map(outcomes, cases), strict=True))
    for name, is_random in (("clients that wait for answers", False), ("requests at random", True)):
        pairs = [pair for case, pair in found if is_open(case) is is_random]
        print(f"{name}: {len(pairs)} loads")
        print(described("throughput", [(ours.per_second, other.per_second) for ours, other in pairs]))
        print(described("p50", [(ours.p50_ms, other.p50_ms) for ours, other in pairs]))
        print(described("p99", [(ours.p99_ms, other.p99_ms) for ours, other in pairs]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
