#!/usr/bin/env python3
"""Measures speed by the number of clients, of loaded models, and of waiting requests: three curves of one server.

    python -m bench.curves [--seconds 3] [--rounds 3] [--json FILE] [--most-clients 256] [--most-models 1000]

Clients: 1 to 256 connections use one identity model. Each sends again when it has its answer.

Models: servers with 1 to 1,000 loaded models run at the same time and are measured alternately, so that other load on
the machine affects all of them. At most 10 models are busy, with 32 connections. The cost of an inference is the CPU
time of the server's processes, because the client shares the cores. The model does nothing, so this is the server's own
cost.

Waiting requests: the cost of the scheduler for a request while 10 to 10,000 wait, with and without priorities and
timeouts, in this process (`micro_queue.py`).

The median of --rounds runs counts; for waiting requests, the best. It takes about four minutes. With --json, a plot is
written next to the file if matplotlib is installed (`pip install -e '.[bench]'`).

It fails if an inference with the most models loaded costs more than 1.2 times as much as with ten, or if a request
while the most wait costs more than 1.5 times as much as while ten wait.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from bench.micro_queue import DEPTHS, POLICIES, round_of
from tools.overload import flood
from tools.soak import MIB, Server

CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MODELS = (1, 3, 10, 30, 100, 300, 1000)
BUSY, BUSY_CLIENTS = 10, 32
MOST_MODELS_RATIO, MOST_WAITING_RATIO = 1.2, 1.5
WARM_SECONDS = 0.5
WAITING_ROUNDS = 5
_CONFIG = """backend: "identity"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
dynamic_batching { }
"""
_HEADING = f"{'loaded':>7} {'clients':>8} {'/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'CPU us':>8} {'MiB':>7} {'ready s':>8}"

Waiting = Mapping[str, Mapping[int, float]]
"""CPU microseconds for a request, by policy and by the number of waiting requests."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: `clients` use `busy` of the `loaded` models. `cpu_us` is the server's CPU time for a request,
    `ready_seconds` its start-up time."""

    loaded: int
    busy: int
    clients: int
    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    memory_mib: float
    ready_seconds: float


class Bench:
    """One server with `models` models; a context manager."""

    def __init__(self, models: int) -> None:
        self._names = [f"m{number}" for number in range(models)]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        for name in self._names:
            (folder / "source" / name / "1").mkdir(parents=True)
            (folder / "source" / name / "config.pbtxt").write_text(_CONFIG)
        began = time.monotonic()
        self._server = Server(folder, {str(folder / "source"): self._names})
        self._stack.callback(self._server.stop)
        self._server.wait_until_ready()
        self._ready_seconds = time.monotonic() - began
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self, clients: int, seconds: float) -> Point:
        busy = self._names[:BUSY]
        flood(self._server.http, clients, WARM_SECONDS, busy)
        before = self._server.cpu_seconds()
        load = flood(self._server.http, clients, seconds, busy)
        cpu = self._server.cpu_seconds() - before
        if load.odd or load.refused:
            raise RuntimeError(f"not all requests were served: {load.odd[:1]}")
        took = sorted(load.served_seconds)
        return Point(
            loaded=len(self._names),
            busy=len(busy),
            clients=clients,
            per_second=load.served / load.seconds,
            p50_ms=took[len(took) // 2] * 1e3,
            p99_ms=took[int(len(took) * 0.99)] * 1e3,
            cpu_us=cpu / load.served * 1e6,
            memory_mib=self._server.memory() / MIB,
            ready_seconds=self._ready_seconds,
        )


def median(points: Sequence[Point]) -> Point:
    """A point with the median of each figure."""
    values = zip(*(asdict(point).items() for point in points), strict=True)
    return Point(**{items[0][0]: round(statistics.median(value for _, value in items), 3) for items in values})


def over_clients(clients: Sequence[int], rounds: int, seconds: float) -> list[Point]:
    with Bench(1) as bench:
        return [_shown(median([bench.measure(number, seconds) for _ in range(rounds)])) for number in clients]


def over_models(models: Sequence[int], rounds: int, seconds: float) -> tuple[list[Point], float]:
    """Returns the points, and the cost of an inference with the most models relative to `BUSY` models (the median of
    the rounds)."""
    with ExitStack() as stack:
        benches = [stack.enter_context(Bench(number)) for number in models]
        measured = [[bench.measure(BUSY_CLIENTS, seconds) for bench in benches] for _ in range(rounds)]
    least = models.index(BUSY) if BUSY in models else -1
    ratio = statistics.median(points[-1].cpu_us / points[least].cpu_us for points in measured)
    return [_shown(median(points)) for points in zip(*measured, strict=True)], ratio


def _shown(point: Point) -> Point:
    print(
        f"{point.loaded:7.0f} {point.clients:8.0f} {point.per_second:9.0f} {point.p50_ms:8.2f} {point.p99_ms:8.2f} "
        f"{point.cpu_us:8.1f} {point.memory_mib:7.1f} {point.ready_seconds:8.2f}",
        flush=True,
    )
    return point


def over_waiting(rounds: int) -> tuple[Waiting, float]:
    """Returns the costs, and the cost with the most waiting requests relative to the fewest, of the worst policy."""
    found: dict[str, dict[int, float]] = {name: dict.fromkeys(DEPTHS, float("inf")) for name in POLICIES}
    for name, costs in found.items():
        for _ in range(rounds):
            for depth in DEPTHS:
                costs[depth] = min(costs[depth], round(round_of(POLICIES[name], depth) / 1e3, 3))
        print(f"{name:40} " + " ".join(f"{cost:9.2f}" for cost in costs.values()), flush=True)
    return found, max(costs[DEPTHS[-1]] / costs[DEPTHS[0]] for costs in found.values())


def draw(by_clients: Sequence[Point], by_models: Sequence[Point], by_waiting: Waiting, to: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 3, figsize=(13, 7.2), layout="constrained")
    figures = (("per_second", "requests/s"), ("p99_ms", "p99, ms"), ("cpu_us", "server CPU/request, us"))
    models = f"models loaded ({BUSY_CLIENTS} clients of at most {BUSY})"
    curves = [(by_clients, "clients", "clients (one model)", *figures[0]), (by_clients, "clients", "", *figures[1])]
    curves += [(by_models, "loaded", models, *figure) for figure in figures]
    for axes, (points, x, label, y, unit) in zip(panels.flat, curves, strict=False):
        axes.plot([getattr(each, x) for each in points], [getattr(each, y) for each in points], "o-")
        axes.set_xscale("log", base=2 if x == "clients" else 10)
        axes.set_xlabel(label or "clients (one model)")
        axes.set_ylabel(unit)
    last = panels.flat[-1]
    for name, costs in by_waiting.items():
        last.plot(list(costs), list(costs.values()), "o-", label=name)
    last.set_xscale("log")
    last.set_xlabel("requests waiting")
    last.set_ylabel("scheduler CPU/request, us")
    last.legend(fontsize="x-small")
    for axes in panels.flat:
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.savefig(to, dpi=120)


def _verdict(what: str, ratio: float, most: float) -> bool:
    print(f"{'passed' if ratio <= most else 'FAILED'}: {what}: {ratio:.2f} times (at most {most})")
    return ratio <= most


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most-clients", type=int, default=CLIENTS[-1])
    parser.add_argument("--most-models", type=int, default=MODELS[-1])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    print(f"{'waiting (us of CPU per request)':40} " + " ".join(f"{depth:9,}" for depth in DEPTHS))
    by_waiting, of_waiting = over_waiting(WAITING_ROUNDS)
    print(_HEADING)
    clients = [number for number in CLIENTS if number <= options.most_clients]
    models = [number for number in MODELS if number <= options.most_models]
    by_clients = over_clients(clients, options.rounds, options.seconds)
    by_models, of_models = over_models(models, options.rounds, options.seconds)
    well = _verdict(f"CPU of an inference, {models[-1]:,} models loaded to {BUSY}", of_models, MOST_MODELS_RATIO)
    well &= _verdict(f"CPU of a request, {DEPTHS[-1]:,} waiting to {DEPTHS[0]}", of_waiting, MOST_WAITING_RATIO)
    print(f"{time.monotonic() - began:.0f} seconds")
    if options.json:
        found = {
            "clients": [asdict(each) for each in by_clients],
            "models": [asdict(each) for each in by_models],
            "waiting": by_waiting,
            "ratio_of_models": round(of_models, 3),
            "ratio_of_waiting": round(of_waiting, 3),
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")
        if find_spec("matplotlib"):
            draw(by_clients, by_models, by_waiting, options.json.with_suffix(".png"))
        else:
            print("no plot: matplotlib is not installed")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
