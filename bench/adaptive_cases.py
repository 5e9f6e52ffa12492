"""The loads that adaptive batching is measured with: those that it was tuned on, and random ones (held out)."""

import math
import random
from dataclasses import replace

from bench.adaptive_simulation import STILL, Case, Load, Machine, Model

MODELS = (Model("costly start", 5.0, 0.2), Model("costly rows", 0.2, 1.0), Model("quick", 0.8, 0.05))
MACHINES = (
    STILL,
    Machine("busy", late=0.15, share=0.004, stall=6.0, turn=0.04),
    Machine("crowded", late=0.4, share=0.015, stall=12.0, turn=0.1),
)
LOADS = (
    Load("1 client", clients=1),
    Load("4 clients", clients=4),
    Load("16 clients", clients=16),
    Load("40 clients", clients=40),
    Load("12, later 5 clients", clients=12, later_clients=5),
    Load("50/s at random", rate=50),
    Load("200/s at random", rate=200),
    Load("500/s at random", rate=500),
    Load("900/s at random", rate=900),
)
ANSWERS = 24_000
"""Answers that a case should give."""
SECONDS = 6.0, 60.0
"""The shortest and the longest duration of a case."""


def tuning() -> list[Case]:
    """Each model with each load on each machine."""
    return [
        _timed(Case(model, load, machine, seed=17 * i + j))
        for j, machine in enumerate(MACHINES)
        for i, (model, load) in enumerate((model, load) for model in MODELS for load in LOADS)
    ]


def held_out(number: int, seed: int) -> list[Case]:
    """Random cases. Adaptive batching was not tuned on them."""
    lots = random.Random(seed)
    return [_drawn(lots, i) for i in range(number)]


def is_open(case: Case) -> bool:
    """Whether requests arrive at a rate, independently of answers."""
    return case.load.rate > 0


def capacity(case: Case) -> float:
    """Requests per second that batches of the best size serve."""
    return max(rows / case.model.takes(rows) for rows in range(1, case.max_batch + 1)) * 1000 * case.instances


def _timed(case: Case) -> Case:
    """The case with a duration that gives about `ANSWERS` answers, within `SECONDS`."""
    load = case.load
    rate = max(load.rate, load.later_rate)
    if not rate:
        clients = max(load.clients, load.later_clients)
        rate = min(capacity(case), clients * 1000 / (case.model.takes(1) + load.think))
    return replace(case, seconds=min(max(ANSWERS / rate, SECONDS[0]), SECONDS[1]))


def _log(lots: random.Random, low: float, high: float) -> float:
    return math.exp(lots.uniform(math.log(low), math.log(high)))


def _drawn(lots: random.Random, number: int) -> Case:
    max_batch = lots.choice((4, 8, 16, 32, 64))
    model = _model(lots, max_batch)
    machine = lots.choice(MACHINES)
    instances = lots.choice((1, 1, 1, 2))
    target = model.takes(max_batch) * _log(lots, 1.5, 8.0) + 3 * machine.stall
    case = Case(model, Load(""), machine, max_batch, target, 1.0, instances, seed=number)
    return _timed(replace(case, load=_load(lots, capacity(case))))


def _model(lots: random.Random, max_batch: int) -> Model:
    kind = lots.choice(("flat", "linear", "steep", "stepped", "square"))
    fixed = _log(lots, 0.4, 15.0)
    noise = lots.choice((0.02, 0.05, 0.15))
    whole = (
        fixed * {"flat": 0.05, "linear": 1.0, "steep": 8.0, "stepped": 1.0, "square": 0.5}[kind] * _log(lots, 0.5, 2)
    )
    each = whole / max_batch
    if kind == "stepped":
        return Model(kind, fixed, each, noise, step=lots.choice((2, 4, 8)))
    return Model(kind, fixed, each, noise, square=whole * 2 / max_batch**2 if kind == "square" else 0.0)


def _load(lots: random.Random, most: float) -> Load:
    """A random load. `most` is the capacity in requests per second."""
    kind = lots.choice(
        ("closed", "closed", "closed", "changing clients", "random", "random", "bursts", "changing rate")
    )
    clients, later = (round(_log(lots, 1, 256)) for _ in range(2))
    think = _log(lots, 0.05, 5.0)
    if kind == "closed":
        return Load(f"{clients} clients", clients=clients, think=think)
    if kind == "changing clients":
        return Load(f"{clients}, later {later} clients", clients=clients, later_clients=later, think=think)
    share, later_share = lots.uniform(0.1, 0.95), lots.uniform(0.1, 0.95)
    if kind == "random":
        return Load(f"{share:.0%} at random", rate=share * most)
    if kind == "changing rate":
        return Load(f"{share:.0%}, later {later_share:.0%}", rate=share * most, later_rate=later_share * most)
    share = lots.uniform(0.1, 0.6)
    return Load(f"{share:.0%} in bursts", rate=share * most, burst=lots.uniform(1.5, 4.0), burst_ms=_log(lots, 20, 500))
