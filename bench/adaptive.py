#!/usr/bin/env python3
"""Compares adaptive batching with the best fixed delay for each load, in a simulation with the scheduler's policies.

    python -m bench.adaptive [--held-out 120] [--seed 2] [--json FILE]

There are two sets of loads: those that it was tuned on, and random ones. For each load, eleven fixed delays are tried.
The best one serves the most requests among those whose 99th percentile is within the target; if none is within it,
among all. Among equals, the one that keeps the model least busy is the best. So the best delay is chosen with knowledge
of the load.

For closed loads (clients that wait for their answers), the figure is the throughput relative to the best delay. For
open loads (requests that arrive independently), the figures are whether the target is kept and how busy the model is.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.adaptive_cases import held_out, is_open, tuning
from bench.adaptive_simulation import Case, Outcome, run

SHARES = (0.0, 0.003, 0.008, 0.02, 0.05, 0.1, 0.18, 0.3, 0.45, 0.6, 0.8)
"""The fixed delays, as shares of the target."""
OTHERS = 4
"""Repeated runs with other seeds if the target was missed."""
CLOSE = 0.97
"""Relative throughput that counts as equal to the best delay."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The outcomes of one load: with the adaptive delay, and with each fixed one."""

    case: Case
    ours: Outcome
    fixed: list[Outcome]

    @property
    def best(self) -> Outcome:
        """The outcome of the best fixed delay."""
        timely = [each for each in self.fixed if self.in_time(each)] or self.fixed
        most = max(each.per_second for each in timely)
        return min((each for each in timely if each.per_second >= 0.99 * most), key=lambda each: each.busy)

    def in_time(self, outcome: Outcome) -> bool:
        return outcome.p99_ms <= self.case.target_ms

    @property
    def ratio(self) -> float:
        """Throughput relative to the best fixed delay."""
        return self.ours.per_second / max(self.best.per_second, 0.1)

    @property
    def missed(self) -> bool:
        """Whether the adaptive delay misses the target although the best fixed delay keeps it."""
        return self.in_time(self.best) and not self.in_time(self.ours)


def compare(case: Case) -> Compared:
    ours = run(case)
    return Compared(case, ours, [run(case, case.target_ms * share) for share in SHARES])


def confirmed(compared: Compared) -> str:
    """Checks whether a missed target was chance: says how many runs with other seeds keep it, with the adaptive delay
    and with the best fixed one."""
    again = [replace(compared.case, seed=compared.case.seed + 1000 * i) for i in range(1, OTHERS + 1)]
    delay = float(compared.best.policy.split()[0])
    ours, fixed = (sum(compared.in_time(run(case, each)) for case in again) for each in (None, delay))
    return f"kept in {ours} of {OTHERS} other runs, by the best fixed delay in {fixed}"


def described(compared: Compared) -> str:
    case, ours, best = compared.case, compared.ours, compared.best
    named = f"{case.model.name:13} {case.load.name:26} {case.machine.name:8}"
    sizes = f"{case.max_batch:3} {case.instances} {case.target_ms:7.1f}"
    return f"{named} {sizes} | {_figures(ours)} | {_figures(best)}  {best.policy:9} {compared.ratio:6.3f}"


def _figures(outcome: Outcome) -> str:
    return f"{outcome.per_second:8.1f} {outcome.p99_ms:7.1f} {outcome.rows:5.1f} {outcome.busy:5.2f}"


def summary(name: str, found: Sequence[Compared]) -> dict[str, object]:
    """The figures of one set, by kind of load."""
    closed = [each for each in found if not is_open(each.case)]
    coming = [each for each in found if is_open(each.case)]
    ratios = sorted(each.ratio for each in closed) or [0.0]
    work = sorted(each.ours.busy / max(each.best.busy, 1e-9) for each in coming if not each.missed) or [0.0]
    return {
        "set": name,
        "clients that wait": len(closed),
        "close to the best": sum(ratio >= CLOSE for ratio in ratios),
        "better than the best": sum(ratio > 1 / CLOSE for ratio in ratios),
        "median": round(statistics.median(ratios), 3),
        "tenth": round(ratios[len(ratios) // 10], 3),
        "worst": round(ratios[0], 3),
        "target missed there": sum(each.missed for each in closed),
        "requests that come": len(coming),
        "target missed": sum(each.missed for each in coming),
        "work of the best, median": round(statistics.median(work), 3),
        "work of the best, ninth tenth": round(work[len(work) * 9 // 10], 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--held-out", type=int, default=120)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sets = {"tuned on": tuning(), f"held out, seed {options.seed}": held_out(options.held_out, options.seed)}
    summaries, rows = [], []
    with ProcessPoolExecutor(options.processes) as pool:
        for name, cases in sets.items():
            found = list(pool.map(compare, cases))
            print(f"\n{name}: adaptive | best fixed: requests/s, p99 ms, rows, busy")
            for each in found:
                print(described(each))
            missed = [each for each in found if each.missed]
            for each, again in zip(missed, pool.map(confirmed, missed), strict=True):
                print(f"missed: {each.case.model.name}, {each.case.load.name}, {each.case.machine.name}: {again}")
            summaries.append(summary(name, found))
            for each in found:
                figures = {"adaptive": asdict(each.ours), "best": asdict(each.best), "ratio": round(each.ratio, 4)}
                rows.append({"set": name, "case": asdict(each.case), **figures})
    for each_set in summaries:
        print("\n" + "\n".join(f"{key:30} {value}" for key, value in each_set.items()))
    if options.json:
        lines = ",\n".join(map(json.dumps, rows))
        options.json.write_text(f'{{"summaries": {json.dumps(summaries, indent=1)},\n"loads": [\n{lines}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
