"""A sequence policy with instances that a test moves by hand. `now` is in nanoseconds."""

from collections.abc import Sequence
from typing import Any, cast

from halimede.config.sequencing import Control, DirectStrategy, SequenceBatching
from halimede.errors import Error
from halimede.models.policies import controls_of
from halimede.requests import Stamp
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Batch, Wake
from halimede.scheduling.sequences import DirectPolicy, OldestPolicy, SequenceRules
from halimede.scheduling.sequences.slots import SequencePolicy
from halimede.tensors import INT32, HostMemory, Tensor
from tests.fakes import inference
from tests.scheduling.sequences.play import CONTROLS

IDLE = 3_600_000_000_000  # an hour, which no test with the real clock lasts


class Kept:
    """The states of a sequence. All have the same `key`."""

    key = None


class PolicyRig:
    """`free` are the instances that run nothing."""

    def __init__(self, policy: SequencePolicy, instances: int = 1) -> None:
        self.policy = policy
        self.free = list(range(instances))
        self.now = 100
        policy.resize(instances, self.now)

    def send(
        self, name: str, sequence: int | str = 0, flags: str = "", timeout_us: int = 0, key: object = None
    ) -> Inference:
        one, error = self.try_(name, sequence, flags, timeout_us, key)
        assert error is None, error
        return one

    def try_(
        self,
        name: str,
        sequence: int | str = 0,
        flags: str = "",
        timeout_us: int = 0,
        key: object = None,
        rows: int = 1,
    ) -> tuple[Inference, Error | None]:
        one = inference(name, None, rows, [Tensor("x", INT32, (1, 1), HostMemory(bytes(4)))], ["x"], key)
        request = one.request
        request.correlation_id = sequence
        request.sequence_start, request.sequence_end = "S" in flags, "E" in flags
        request.timeout_us = timeout_us
        one.times[Stamp.QUEUE_START] = self.now
        return one, self.policy.admit(one, self.now)

    def next(self) -> list[str] | Wake | None:
        """The ids of the next batch, empty for a row of no sequence."""
        found = self.batch()
        return [one.request.id for one in found.rows] if isinstance(found, Batch) else found

    def batch(self) -> Batch | Wake | None:
        step = self.policy.next(self.free, self.now)
        if isinstance(step, Batch):
            self.free.remove(step.instance)
        return step

    def end(self, *rows: Inference, instance: int = 0, again: Sequence[Inference] = ()) -> None:
        """The batch with these requests is over."""
        self.free.append(instance)
        self.policy.freed(instance, self.now)
        for one in rows:
            self.policy.released(one, self.now, one in again)

    def expired(self) -> dict[str, str]:
        return {one.request.id: str(error) for one, error in self.policy.expire(self.now)}


def rules(slots: int, controls: Sequence[Control] = CONTROLS, stateless: bool = False, **more: Any) -> SequenceRules:
    batching = SequenceBatching(DirectStrategy(), controls=tuple(controls))
    begin = None if stateless else cast(Any, Kept)
    return SequenceRules("m", slots, IDLE, controls_of(batching, batches=True), begin=begin, **more)


def direct(slots: int = 3, instances: int = 1, delay_ns: int = 0, utilization: float = 0.0, **more: Any) -> PolicyRig:
    return PolicyRig(DirectPolicy(rules(slots, **more), delay_ns, utilization), instances)


def oldest(slots: int = 3, instances: int = 1, rows: int = 2, **more: Any) -> PolicyRig:
    return PolicyRig(OldestPolicy(rules(slots, **more), rows, (rows,)), instances)
