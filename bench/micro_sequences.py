"""Measures the sequence policies by the number of live sequences: CPU time per request, with a simulated clock.

`.venv/bin/python bench/micro_sequences.py [ROUNDS]` keeps 10 to 10,000 sequences alive. A step sends a request of eight
different sequences, runs them as a batch, and ends the batch. Every eighth request ends its sequence, and another one
begins. It prints microseconds per request, the best of many short rounds, and the cost with the most sequences relative
to the fewest. `direct` has eight slots and keeps all other sequences in the backlog, which changes whenever a sequence
ends. `oldest` has a slot for each sequence.
"""

import gc
import sys
from collections import deque
from itertools import count
from time import process_time_ns

from halimede.config.sequencing import Control, ControlKind, DirectStrategy, SequenceBatching
from halimede.models.policies import controls_of
from halimede.requests import Answer, InferRequest, Resume, Stamp
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch
from halimede.scheduling.sequences import DirectPolicy, OldestPolicy, SequenceRules
from halimede.scheduling.sequences.slots import SequencePolicy
from halimede.tensors import BOOL, FP32, UINT64, HostMemory, Tensor

LIVE = (10, 100, 1_000, 10_000)
ROWS = 8
STEPS = 100  # in a round
SECOND = 1_000_000_000  # nanoseconds
TENSOR = Tensor("x", FP32, (1, 4), HostMemory(bytes(16)))
CONTROLS = (
    Control(ControlKind.START, "START", BOOL),
    Control(ControlKind.READY, "READY", BOOL),
    Control(ControlKind.CORRID, "CORRID", UINT64),
)


class DiscardingReply:
    """A reply slot that drops its answers."""

    def send(self, answer: Answer, final: bool) -> bool:
        return True

    def on_writable(self, resume: Resume) -> None:
        resume()


class Load:
    """Keeps `live` sequences alive in `policy`, and sends requests of those in slots in turn."""

    def __init__(self, policy: SequencePolicy, live: int, slots: int) -> None:
        self._policy = policy
        self._ids = count(1)
        self._now = 1
        policy.resize(1, self._now)
        self._in_slots: deque[int] = deque()
        self._waiting: deque[int] = deque()
        for _ in range(live):
            self._begin()
        while len(self._in_slots) < min(slots, live):
            self._in_slots.append(self._waiting.popleft())
        self._run_all()

    def _begin(self) -> None:
        sequence = next(self._ids)
        self._send(sequence, start=True)
        self._waiting.append(sequence)

    def _send(self, sequence: int, start: bool = False, end: bool = False) -> None:
        request = InferRequest("m")
        request.inputs = {"x": TENSOR}
        request.correlation_id, request.sequence_start, request.sequence_end = sequence, start, end
        one = Inference(0, request, DiscardingReply(), 1, ("y",))
        one.times[Stamp.QUEUE_START] = self._now
        refusal = self._policy.admit(one, self._now)
        assert refusal is None, refusal

    def _run_all(self) -> int:
        served, free, policy = 0, (0,), self._policy
        while isinstance(step := policy.next(free, self._now), Batch):
            policy.freed(0, self._now)
            for one in step.rows:
                if one.key == 0 and one.sequence is not None:
                    policy.released(one, self._now, False)
                    served += 1
        return served

    def step(self) -> int:
        """Performs one step, and returns the number of served requests."""
        self._now += 1000
        slots = self._in_slots
        if 0 < self._policy.expires_at <= self._now:
            self._policy.expire(self._now)
        for row in range(min(ROWS, len(slots))):
            sequence = slots.popleft()
            if row == ROWS - 1:
                self._send(sequence, end=True)
                self._begin()
                slots.append(self._waiting.popleft())
            else:
                self._send(sequence)
                slots.append(sequence)
        return self._run_all()


def policy_of(name: str, live: int) -> tuple[SequencePolicy, int]:
    """The policy of that name, and its number of slots."""
    slots = ROWS if name == "direct" else live
    controls = controls_of(SequenceBatching(DirectStrategy(), controls=CONTROLS), batches=True)
    rules = SequenceRules("m", slots, 3600 * SECOND, controls)
    if name == "direct":
        return DirectPolicy(rules), slots
    return OldestPolicy(rules, ROWS, (ROWS,)), slots


def measure(name: str, live: int, rounds: int) -> float:
    """CPU microseconds per request, in the best of the rounds."""
    load = Load(*_with_live(name, live))
    best = float("inf")
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        begun, served = process_time_ns(), 0
        for _ in range(STEPS):
            served += load.step()
        best = min(best, (process_time_ns() - begun) / served / 1000)
    gc.enable()
    return best


def _with_live(name: str, live: int) -> tuple[SequencePolicy, int, int]:
    policy, slots = policy_of(name, live)
    return policy, live, slots


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    print("policy  " + "".join(f"{live:>10}" for live in LIVE) + "   last to first")
    for name in ("direct", "oldest"):
        costs = [measure(name, live, rounds) for live in LIVE]
        print(f"{name:8}" + "".join(f"{cost:10.2f}" for cost in costs) + f"{costs[-1] / costs[0]:14.2f}")


if __name__ == "__main__":
    main()
