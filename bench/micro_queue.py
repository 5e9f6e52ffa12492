"""Measures the scheduler by the number of waiting requests: CPU time from the queue to the answer, in process.

`.venv/bin/python bench/micro_queue.py [ROUNDS]` keeps 10 to 10,000 requests waiting for an instance that answers at
once, adds one for each that is served, and prints microseconds. The best of many short rounds counts, because other
programs only ever add time.
"""

import gc
import sys
from collections.abc import Callable
from itertools import cycle
from time import monotonic_ns, process_time_ns

from halimede.requests import Answer, InferRequest, Resume
from halimede.scheduling.dynamic import DynamicPolicy, Forming
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import Inference
from halimede.scheduling.inline import TurnBudget
from halimede.scheduling.instances import Instances
from halimede.scheduling.policy import Policy
from halimede.scheduling.priority import PriorityQueuePolicy, QueueRules
from halimede.scheduling.queue import DefaultPolicy
from halimede.scheduling.regrouping import Regrouping
from halimede.scheduling.runner import Runner
from halimede.scheduling.runner_config import Reason, RunnerConfig
from halimede.tensors import FP32, HostMemory, Tensor

DEPTHS = (10, 100, 1_000, 10_000)
BATCH = 8
SERVED = 400  # batches in a round
MINUTE = 60_000_000  # microseconds
TENSOR = Tensor("x", FP32, (1, 4), HostMemory(bytes(16)))


class TimerlessLoop:
    """A loop whose timers never fire, because no request waits as long as that."""

    def __init__(self) -> None:
        self.budget = TurnBudget(self.call_soon)

    def call_soon(self, callback: Callable[[], None]) -> None:
        raise AssertionError("nothing runs inline")

    def call_soon_threadsafe(self, callback: Callable[..., None], /, *args: object) -> None:
        raise AssertionError("there is no other thread")

    def call_at(self, when: int, callback: Callable[[], None]) -> None:
        """Drops the timer."""


class Discarding:
    """A reply slot and an observer that ignore everything."""

    def send(self, answer: Answer, final: bool) -> bool:
        return True

    def on_writable(self, resume: Resume) -> None:
        resume()

    def executed(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None: ...
    def succeeded(self, inference: Inference, now: int) -> None: ...
    def served(self, inference: Inference, rows: int, now: int) -> None: ...
    def failed(self, inference: Inference, now: int, reason: Reason) -> None: ...
    def ran(self, inference: Inference) -> None: ...
    def responded(self, index: int, answer: Answer, ns: int, age: int) -> None: ...


class Holding:
    """An instance on the loop that keeps its batch until `end` is called."""

    def __init__(self) -> None:
        self.batch: Execution | None = None

    def execute(self, batch: Execution, responses: Execution) -> None:
        self.batch = batch

    def end(self) -> int:
        """Answers the batch, and returns the number of its requests."""
        batch = self.batch
        assert batch is not None
        for i in range(len(batch.requests)):
            batch.send(i, (TENSOR,))
        batch.finished()
        return len(batch.requests)


def levels(batch: int) -> Policy:
    """A policy with three priorities and timeouts that requests may shorten. Priority 3 delays late requests."""
    times, late = QueueRules(0, MINUTE, True), QueueRules(0, MINUTE, True, True)
    return PriorityQueuePolicy(3, 2, times, {3: late}, Forming(batch, (batch,), 0), 0, Regrouping(batch))


POLICIES: dict[str, Callable[[], Policy]] = {
    "one at a time": DefaultPolicy,
    "dynamic batches of 8": lambda: DynamicPolicy(BATCH, (BATCH,), 0, 0, Regrouping(BATCH)),
    "priorities and timeouts, one at a time": lambda: levels(1),
    "priorities and timeouts, batches of 8": lambda: levels(BATCH),
}


def round_of(make: Callable[[], Policy], depth: int) -> float:
    """CPU nanoseconds per served request, in one round."""
    instance, discarding = Holding(), Discarding()
    config = RunnerConfig("m", 1, {"x": FP32}, False, False, True)
    runner = Runner(config, make(), Instances("m:1", [instance]), TimerlessLoop(), discarding, lambda one: None)
    kinds = cycle((priority, timeout) for priority in (1, 2, 3, 0) for timeout in (0, MINUTE // 2, MINUTE // 3))

    def arrivals(count: int) -> list[Inference]:
        made = []
        for _ in range(count):
            request = InferRequest("m")
            request.priority, request.timeout_us = next(kinds)
            made.append(Inference(0, request, discarding, 1, ("x",)))
        return made

    for one in arrivals(depth + BATCH):
        runner.submit(one)
    coming = iter(arrivals(SERVED * BATCH))
    gc.collect()
    gc.disable()
    served, began = 0, process_time_ns()
    for _ in range(SERVED):
        ended = instance.end()
        served += ended
        for _ in range(ended):
            runner.submit(next(coming))
    took = process_time_ns() - began
    gc.enable()
    return took / served


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    print(f"| us of CPU per request | {' | '.join(f'{depth:,} waiting' for depth in DEPTHS)} | last to first |")
    print("|---" * (len(DEPTHS) + 2) + "|")
    for name, make in POLICIES.items():
        best = dict.fromkeys(DEPTHS, float(monotonic_ns()))
        for _ in range(rounds):
            for depth in DEPTHS:
                best[depth] = min(best[depth], round_of(make, depth))
        figures = [f"{best[depth] / 1000:.2f}" for depth in DEPTHS]
        print(f"| {name} | {' | '.join(figures)} | {best[DEPTHS[-1]] / best[DEPTHS[0]]:.2f} |")


if __name__ == "__main__":
    main()
