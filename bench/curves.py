#!/usr/bin/env python3
"""Speed over the number of clients, and over the number of models: two curves of one server.

    python -m bench.curves [--seconds 3] [--rounds 3] [--json FILE] [--most-clients 256] [--most-models 1000]

Clients: 1 to 256 connections ask one identity model, each again when it has its answer. Models: 1 to 1,000 are loaded,
at most 10 of them busy, with 32 connections; what an inference costs is the CPU time of the server's processes, since
the client shares the cores. The model does nothing, so it is the server that is measured. Of --rounds runs the median
counts. With a name of a file that ends in .json a plot is written beside it where matplotlib is installed.

It fails where an inference with the most models loaded costs more than 1.2 times what it costs with ten.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from tools.overload import flood
from tools.soak import MIB, Server

CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MODELS = (1, 3, 10, 30, 100, 300, 1000)
BUSY, BUSY_CLIENTS = 10, 32
MOST_RATIO = 1.2
WARM_SECONDS = 0.5
_CONFIG = """backend: "identity"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
dynamic_batching { }
"""


@dataclass(frozen=True, slots=True)
class Point:
    """`loaded` models, of which `busy` were asked by so many `clients`. CPU time is that of the server for a request;
    `ready_seconds` is how long the server took to come up."""

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
    """One server with so many models."""

    def __init__(self, folder: Path, models: int) -> None:
        self._names = [f"m{number}" for number in range(models)]
        for name in self._names:
            (folder / "source" / name / "1").mkdir(parents=True)
            (folder / "source" / name / "config.pbtxt").write_text(_CONFIG)
        began = time.monotonic()
        self._server = Server(folder, {str(folder / "source"): self._names})
        self._server.wait_until_ready()
        self._ready_seconds = time.monotonic() - began

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

    def stop(self) -> None:
        self._server.stop()


def median(points: Sequence[Point]) -> Point:
    """Of each figure."""
    values = zip(*(asdict(point).items() for point in points), strict=True)
    return Point(**{items[0][0]: round(statistics.median(value for _, value in items), 3) for items in values})


def measured(models: int, clients: Iterable[int], rounds: int, seconds: float) -> list[Point]:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), models)
        try:
            return [median([bench.measure(number, seconds) for _ in range(rounds)]) for number in clients]
        finally:
            bench.stop()


def draw(by_clients: Sequence[Point], by_models: Sequence[Point], to: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for axes, points, x, title, y, unit in (
        (panels[0], by_clients, "clients", "one model", "per_second", "requests/s"),
        (panels[1], by_clients, "clients", "one model", "p99_ms", "p99, ms"),
        (
            panels[2],
            by_models,
            "loaded",
            f"{BUSY_CLIENTS} clients of {BUSY} models",
            "cpu_us",
            "server CPU/request, us",
        ),
    ):
        axes.plot([getattr(each, x) for each in points], [getattr(each, y) for each in points], "o-")
        axes.set_xscale("log", base=2 if x == "clients" else 10)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"{x} ({title})" if x == "clients" else f"models loaded ({title})")
        axes.set_ylabel(unit)
        axes.grid(alpha=0.3)
    figure.savefig(to, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most-clients", type=int, default=CLIENTS[-1])
    parser.add_argument("--most-models", type=int, default=MODELS[-1])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    heading = (
        f"{'loaded':>7} {'clients':>8} {'/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'CPU us':>8} {'MiB':>7} {'ready s':>8}"
    )
    print(heading)

    def show(point: Point) -> Point:
        print(
            f"{point.loaded:7.0f} {point.clients:8.0f} {point.per_second:9.0f} {point.p50_ms:8.2f} {point.p99_ms:8.2f} "
            f"{point.cpu_us:8.1f} {point.memory_mib:7.1f} {point.ready_seconds:8.2f}",
            flush=True,
        )
        return point

    clients = [number for number in CLIENTS if number <= options.most_clients]
    by_clients = [show(point) for point in measured(1, clients, options.rounds, options.seconds)]
    by_models = [
        show(point)
        for number in MODELS
        if number <= options.most_models
        for point in measured(number, (BUSY_CLIENTS,), options.rounds, options.seconds)
    ]
    cost = {point.loaded: point.cpu_us for point in by_models}
    ratio = cost[max(cost)] / cost[BUSY] if BUSY in cost else 1.0
    print(f"CPU of a request with {max(cost):.0f} models loaded: {ratio:.2f} times that with {BUSY}")
    if options.json:
        found = {
            "clients": [asdict(each) for each in by_clients],
            "models": [asdict(each) for each in by_models],
            "ratio": round(ratio, 3),
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")
        if find_spec("matplotlib"):
            draw(by_clients, by_models, options.json.with_suffix(".png"))
    return int(ratio > MOST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
