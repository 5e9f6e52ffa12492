"""Sequences of requests: correlation ids, lengths, and which data each request has (X9). Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """How sequences are made.

    `first_id` and `ids` give the correlation ids, which wrap around; `ids` 0 stands for any number. `step` is the
    distance between the ids that one process uses, so that processes have different ones. `lengths` are the steps of
    each data stream; a sequence is as long as its stream unless `fixed_length` is set.
    """

    first_id: int
    ids: int
    step: int
    offset: int
    length: int
    variation: float
    lengths: Sequence[int]
    has_data: bool
    is_length_given: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """A request of a sequence: its id, its place in the data, and whether it begins or ends the sequence."""

    sequence_id: int
    stream: int
    step: int
    starts: bool
    ends: bool


class Sequences:
    """The sequences of one process. A place (`index`) has one sequence after the other."""

    def __init__(self, plan: SequencePlan, lot: random.Random) -> None:
        self._plan, self._lot = plan, lot
        self._made = 0
        self._running: dict[int, tuple[int, int, int, int]] = {}

    def next(self, index: int, ends: bool = False) -> Turn:
        """The next request of a place. `ends` makes it the last of its sequence."""
        sequence_id, stream, length, done = self._running.get(index) or self._begin()
        last = ends or done + 1 >= length
        if last:
            self._running.pop(index, None)
        else:
            self._running[index] = sequence_id, stream, length, done + 1
        return Turn(sequence_id, stream, done % self._plan.lengths[stream], done == 0, last)

    def is_open(self, index: int) -> bool:
        """Whether the place has a sequence that has begun and not ended."""
        return index in self._running

    def _begin(self) -> tuple[int, int, int, int]:
        plan = self._plan
        number = plan.offset + self._made * plan.step
        self._made += 1
        stream = number % len(plan.lengths)
        sequence_id = plan.first_id + (number % plan.ids if plan.ids else number)
        return sequence_id, stream, self._length(stream), 0

    def _length(self, stream: int) -> int:
        plan = self._plan
        if plan.has_data and not plan.is_length_given:
            return plan.lengths[stream]
        spread = plan.length * plan.variation / 100
        return max(1, round(self._lot.uniform(plan.length - spread, plan.length + spread)))
