"""Implicit states in random lives: sequences of a real policy on a real runner, with a model that fails whenever it
likes. The state is a hash of all that a sequence was told and that went well: nothing may be missing in it, and nothing
of another sequence may ever be (contract S68).
"""

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from random import Random

import numpy as np
import pytest

from halimede.errors import Error, Internal
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import Inference
from halimede.scheduling.instances import Instances
from halimede.scheduling.runner import Runner
from halimede.scheduling.runner_config import RunnerConfig
from halimede.scheduling.sequences import Controls, DirectPolicy, OldestPolicy, SequenceRules
from halimede.scheduling.states import ModelState, ModelStates
from halimede.tensors import BYTES, INT32, HostMemory, Tensor, array_of, split_bytes, tensor_of
from tests.fakes import FakeInstance, ManualLoop, RecordingObserver, RecordingReply, inference

HISTORIES, STEPS = 400, 60
LONG = 10**15  # nanoseconds: no sequence is idle for so long
EMPTY = bytes(4)

Epoch = tuple[int, int]
"""A sequence id, and how often it had begun."""


def after(digest: bytes, payload: int) -> bytes:
    return blake2b(digest + payload.to_bytes(4, "little"), digest_size=6).digest()


class Life:
    """One server's worth of sequences. `batches` run until the model answers them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        slots = random.randint(1, 4)
        fixed = ModelState("S_IN", "S_OUT", BYTES, (1, 1), Tensor("S_IN", BYTES, (1, 1), HostMemory(EMPTY)))
        states = ModelStates("m", [fixed])
        rules = SequenceRules("m", slots, LONG, Controls(batching=True), False, states.begin)
        policy = DirectPolicy(rules) if random.random() < 0.5 else OldestPolicy(rules, slots, (slots,), 0)
        self.batches: list[Execution] = []
        self.late: list[Callable[[], None]] = []
        """Answers to requests whose batch has finished."""
        self.loop = ManualLoop()
        datatypes = {"y": BYTES, "S_OUT": BYTES}
        config = RunnerConfig("m", 1, datatypes, decoupled=False, inline_safe=False, on_loop=True, implicit_state=True)
        instances = [FakeInstance(self.batches.append) for _ in range(random.randint(1, 2))]
        self.runner = Runner(
            config, policy, Instances("m", instances), self.loop, RecordingObserver(), lambda one: None
        )
        self.epochs: dict[int, int] = {}
        self.digests: dict[Epoch, bytes] = {}
        self.requests: dict[int, tuple[Epoch, int, Inference, RecordingReply]] = {}
        self.expected: dict[int, bytes | None] = {}

    def play(self) -> int:
        for _ in range(STEPS):
            steps = (self.send, self.send, self.send, self.answer, self.answer, self.answer_late, self.cancel)
            self.random.choice(steps)()
            self.loop.turn()
        for sequence in list(self.epochs):
            self.tell(sequence, end=True)  # else it keeps its slot, and others wait
        while self.batches or self.late:
            self.answer()
            self.answer_late()
            self.loop.turn()
        while self.loop.timers and self.loop.timers[0][0] < LONG:  # requests behind a cancelled one are refused
            self.loop.ring()
        for number, (_, _, _, reply) in self.requests.items():
            self.check(number, reply)
        return sum(digest is not None for digest in self.expected.values())

    def send(self) -> None:
        self.tell(self.random.randint(1, 6), self.random.random() < 0.2, self.random.random() < 0.15)

    def tell(self, sequence: int, start: bool = False, end: bool = False) -> None:
        number, start = len(self.requests) + 1, start or sequence not in self.epochs
        if start:
            self.epochs[sequence] = number
        reply, payload = RecordingReply(), self.random.randint(0, 2**31 - 1)
        one = inference(str(number), reply, 1, [tensor_of("x", INT32, np.array([[payload]], np.int32))], ["y"])
        one.request.correlation_id, one.request.sequence_start = sequence, start
        one.request.sequence_end = end
        self.requests[number] = (sequence, self.epochs[sequence]), payload, one, reply
        if one.request.sequence_end:
            del self.epochs[sequence]
        self.runner.submit(one)

    def cancel(self) -> None:
        waiting = [one for _, _, one, reply in self.requests.values() if not reply.finals]
        if waiting:
            self.runner.cancel(self.random.choice(waiting))

    def answer(self) -> None:
        """The model is done with one of its batches: it failed, or each of its requests did, or did not."""
        if not self.batches:
            return
        batch = self.batches.pop(self.random.randrange(len(self.batches)))
        read = batch.arrays()["S_IN"].reshape(-1).tolist()
        outputs = [self.output(one, state) for one, state in zip(batch.requests, read, strict=True)]
        fate = self.random.random()
        if fate < 0.15:
            for one in batch.requests:
                self.expected[int(one.request.id or 0)] = None
            batch.break_off(Internal("the model broke"))
        elif fate < 0.6:
            arrays = np.array(outputs, object).reshape(-1, 1)
            batch.scatter({"y": arrays, "S_OUT": arrays})
            self.learn(batch, outputs, lambda i: True)
            batch.finished()
        else:
            well = [self.random.random() < 0.7 for _ in outputs]
            later = [i for i in range(len(outputs)) if self.random.random() < 0.3]
            for i, output in enumerate(outputs):
                if i not in later:
                    self.one(batch, i, output, well[i])
            self.learn(batch, outputs, partial(list.__getitem__, well))
            batch.finished(later)
            self.late += [partial(self.one, batch, i, outputs[i], well[i]) for i in later]

    def answer_late(self) -> None:
        if self.late:
            self.late.pop(self.random.randrange(len(self.late)))()

    def output(self, one: Inference, state: bytes) -> bytes:
        if one.states is None:  # a row of nobody
            assert state == b""
            return b"nobody's"
        epoch, payload, _, _ = self.requests[int(one.request.id)]
        assert state == self.digests.get(epoch, b""), f"request {one.request.id} of {epoch} reads another state"
        return after(state, payload)

    def one(self, batch: Execution, i: int, output: bytes, well: bool) -> None:
        tensors = [tensor_of(name, BYTES, np.array([[output]], object)) for name in ("y", "S_OUT")]
        if well:
            batch.send(i, tensors)
        elif i in batch.later or self.random.random() < 0.5:
            batch.fail(i, Internal("no"))
        else:  # it made a state, and then two answers
            batch.send(i, tensors)
            batch.send(i, tensors)

    def learn(self, batch: Execution, outputs: list[bytes], well: Callable[[int], bool]) -> None:
        for i, (one, output) in enumerate(zip(batch.requests, outputs, strict=True)):
            if one.states is None:
                continue
            epoch = self.requests[int(one.request.id)][0]
            self.expected[int(one.request.id)] = output if well(i) else None
            if well(i):
                self.digests[epoch] = output

    def check(self, number: int, reply: RecordingReply) -> None:
        answer = reply.only
        digest = self.expected.get(number)
        if digest is None:
            assert isinstance(answer, Error)
            return
        (y,) = reply.response.outputs
        assert y.name == "y"
        assert split_bytes(y.memory.host(), 1) == [digest]
        assert array_of(y).shape == (1, 1)


@pytest.mark.rows("S68")
def test_states_of_sequences_whose_model_fails() -> None:
    went_well = [Life(Random(seed)).play() for seed in range(HISTORIES)]
    assert sum(went_well) > 8 * HISTORIES
