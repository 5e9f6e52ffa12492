"""Simulates batching: the scheduler's own policies under a load, with a simulated clock.

A `Case` is a model (how long a batch takes), a load, a machine (delays by the system) and a latency target. `run`
returns the outcome of one policy.
"""

import heapq
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

from halimede.requests import InferRequest, Stamp
from halimede.scheduling.adaptive import AdaptivePolicy, Pace, PacedForming
from halimede.scheduling.dynamic import DynamicPolicy
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Policy, Wake
from halimede.scheduling.priority import PriorityQueuePolicy, QueueRules

MS = 1_000_000
WARM = 0.2
"""The share of the time at the start that does not count. The adaptive policy learns then."""


@dataclass(frozen=True, slots=True)
class Model:
    """How long a batch takes, in milliseconds: `fixed`, plus `each` times its rows, plus `square` times their square.

    Rows are padded to a multiple of `step`. Times vary by `noise`, a standard deviation relative to the time."""

    name: str
    fixed: float
    each: float
    noise: float = 0.05
    step: int = 1
    square: float = 0.0

    def takes(self, rows: int) -> float:
        padded = -(-rows // self.step) * self.step
        return self.fixed + self.each * padded + self.square * padded * padded


@dataclass(frozen=True, slots=True)
class Load:
    """A closed load of `clients` that send again a mean of `think` ms after their answer, or an open load of `rate`
    requests per second at random times.

    If they are not 0, `later_clients` and `later_rate` replace these from the middle of the time on. In a burst, the
    rate is multiplied by `burst`. Bursts last a mean of `burst_ms`, and half of all requests fall into them."""

    name: str
    clients: int = 0
    think: float = 0.1
    rate: float = 0.0
    later_clients: int = 0
    later_rate: float = 0.0
    burst: float = 1.0
    burst_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Delays by the system, in milliseconds. Timers, ends of batches and clients are a mean of `late` too late. A
    `share` of them is later by a mean of `stall`. Clients that are answered together send again one after the other,
    each `turn` later."""

    name: str
    late: float = 0.0
    share: float = 0.0
    stall: float = 0.0
    turn: float = 0.0


STILL = Machine("still")


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation: a model under a load on a machine, with a latency target."""

    model: Model
    load: Load
    machine: Machine = STILL
    max_batch: int = 16
    target_ms: float = 30.0
    seconds: float = 20.0
    instances: int = 1
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one policy under one load. `busy` is the share of time for which an instance runs a batch."""

    policy: str
    per_second: float
    p50_ms: float
    p99_ms: float
    rows: float
    busy: float


class _DiscardingReply:
    """A reply slot that drops its answers."""

    def send(self, answer: object, final: bool) -> bool:
        return True

    def on_writable(self, resume: Callable[[], None]) -> None:
        resume()


class Simulation:
    """One policy under one case. Times are nanoseconds since the start."""

    def __init__(self, policy: Policy, case: Case) -> None:
        self._policy = policy
        self._machine, self._model, self._load = case.machine, case.model, case.load
        self._random = random.Random(case.seed)
        self._noise = random.Random(-case.seed)
        """A separate generator, so that arrivals are the same with all policies."""
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        self._order = count()
        self._keys = count()
        self._free = list(range(case.instances))
        self._instances = case.instances
        self._client_of: dict[int, int] = {}
        self._bursting = False
        self._wakes_at = 0
        self.took: list[tuple[int, int]] = []
        self.batches: list[tuple[int, int, int]] = []
        self._end = int(case.seconds * 1e9)
        policy.resize(case.instances, 0)

    def run(self) -> None:
        load = self._load
        if load.rate:
            self._at(self._gap(0), self._arrives_at_random)
        if load.burst_ms:
            self._at(0, self._switch_burst)
        for client in range(max(load.clients, load.later_clients)):
            begins = 0 if client < load.clients else self._end // 2
            self._at(begins + self._think(), partial(self._arrives, client=client))
        while self._events and self._events[0][0] <= self._end:
            now, _, act = heapq.heappop(self._events)
            act(now)

    def _at(self, when: int, act: Callable[[int], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def _late(self) -> int:
        machine, lots = self._machine, self._noise
        late = lots.expovariate(1 / machine.late) if machine.late else 0.0
        if machine.share and lots.random() < machine.share:
            late += lots.expovariate(1 / machine.stall)
        return int(late * MS)

    def _gap(self, now: int) -> int:
        load = self._load
        rate = load.later_rate if load.later_rate and now > self._end // 2 else load.rate
        if load.burst_ms:  # bursts take 1 / (2 * burst) of the time and get half of the requests
            rate *= load.burst if self._bursting else load.burst / (2 * load.burst - 1)
        return int(self._random.expovariate(rate) * 1e9)

    def _switch_burst(self, now: int) -> None:
        """Begins or ends a burst. The next arrival still comes at the old rate."""
        load = self._load
        self._bursting = not self._bursting
        lasts = load.burst_ms if self._bursting else load.burst_ms * (2 * load.burst - 1)
        self._at(now + int(self._random.expovariate(1 / lasts) * MS), self._switch_burst)

    def _think(self) -> int:
        return int(self._random.expovariate(1 / self._load.think) * MS)

    def _arrives_at_random(self, now: int) -> None:
        self._arrives(now, -1)
        self._at(now + self._gap(now), self._arrives_at_random)

    def _arrives(self, now: int, client: int) -> None:
        if client >= self._load.later_clients > 0 and now > self._end // 2:
            return
        inference = Inference(next(self._keys), InferRequest("m"), _DiscardingReply(), 1, ("y",))
        inference.times[Stamp.QUEUE_START] = now
        self._client_of[inference.key] = client
        self._policy.admit(inference, now)
        self._advance(now)

    def _advance(self, now: int) -> None:
        while self._free and self._policy.waiting:
            step = self._policy.next(self._free, now)
            if isinstance(step, Wake):
                if not now < self._wakes_at <= step.at:
                    self._wakes_at = max(step.at, now + 1)
                    self._at(self._wakes_at + self._late(), self._wakes)
                return
            assert isinstance(step, Batch)
            self._free.remove(step.instance)
            rows = len(step.rows)
            noise = max(self._noise.gauss(1, self._model.noise), 0.5)
            takes = int(self._model.takes(rows) * noise * MS) + self._late()
            self.batches.append((now, rows, takes))
            self._at(now + takes, partial(self._ends, batch=step))

    def _wakes(self, now: int) -> None:
        if now >= self._wakes_at:
            self._wakes_at = 0
        self._advance(now)

    def _ends(self, now: int, batch: Batch) -> None:
        self._free.append(batch.instance)
        self._policy.freed(batch.instance, now)
        for turn, inference in enumerate(batch.rows):
            self.took.append((now, now - inference.times[Stamp.QUEUE_START]))
            client = self._client_of.pop(inference.key)
            if client >= 0:
                sends = now + self._think() + int(turn * self._machine.turn * MS) + self._late()
                self._at(sends, partial(self._arrives, client=client))
        self._advance(now)

    def outcome(self, name: str) -> Outcome:
        begin = int(self._end * WARM)
        took = sorted(ns for at, ns in self.took if at > begin) or [0]
        batches = [(rows, takes) for at, rows, takes in self.batches if at > begin] or [(0, 0)]
        seconds = (self._end - begin) / 1e9
        return Outcome(
            name,
            round(len(took) / seconds, 1),
            round(took[len(took) // 2] / MS, 2),
            round(took[int(len(took) * 0.99)] / MS, 2),
            round(statistics.mean(rows for rows, _ in batches), 2),
            round(sum(takes for _, takes in batches) / 1e9 / seconds / self._instances, 3),
        )


def adaptive(max_batch: int, target_ms: float) -> Policy:
    pace = Pace(int(target_ms * MS))
    return AdaptivePolicy(
        PriorityQueuePolicy(0, 0, QueueRules(), {}, PacedForming(max_batch, (max_batch,), pace)), pace
    )


def fixed(max_batch: int, delay_ms: float) -> Policy:
    return DynamicPolicy(max_batch, (max_batch,), int(delay_ms * MS))


def run(case: Case, delay_ms: float | None = None) -> Outcome:
    """Simulates a case with a fixed delay, or with the adaptive policy if `delay_ms` is None."""
    policy = adaptive(case.max_batch, case.target_ms) if delay_ms is None else fixed(case.max_batch, delay_ms)
    simulation = Simulation(policy, case)
    simulation.run()
    return simulation.outcome("adaptive" if delay_ms is None else f"{delay_ms:g} ms")
