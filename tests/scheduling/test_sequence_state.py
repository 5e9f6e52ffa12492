"""Implicit state between a runner and a model: what a request reads, what becomes of what it answers, and that nothing
of it gets elsewhere (contract S67, S68)."""

from collections.abc import Callable, Collection, Sequence

import numpy as np
import pytest

from halimede.errors import Error, Internal
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import RUNNING, Inference
from halimede.scheduling.instances import Instances
from halimede.scheduling.policy import Batch
from halimede.scheduling.queue import DefaultPolicy
from halimede.scheduling.runner import Runner
from halimede.scheduling.runner_config import RunnerConfig
from halimede.scheduling.sequence_state import zeros_like
from halimede.scheduling.states import ModelState, ModelStates, SequenceStates
from halimede.tensors import BYTES, FP32, INT32, DataType, HostMemory, Shape, Tensor, array_of, tensor_of
from tests.fakes import FakeInstance, ManualLoop, RecordingObserver, RecordingReply, inference

Behaviour = Callable[[Execution], None]


def state(datatype: DataType = INT32, dims: Shape = (1, 1), shape: Shape | None = None, name: str = "S") -> ModelState:
    size = int(np.prod(shape or dims)) * (datatype.size or 4)
    initial = Tensor(f"{name}_IN", datatype, shape or dims, HostMemory(bytes(size)))
    return ModelState(f"{name}_IN", f"{name}_OUT", datatype, dims, initial)


def sequence_of(states: ModelStates) -> SequenceStates:
    begun = states.begin()
    assert begun is not None
    return begun


class Together(DefaultPolicy):
    """Gives out what was admitted as one batch, when it is told to."""

    iterative = True

    def __init__(self) -> None:
        super().__init__()
        self.batch: list[Inference] = []
        self.again: list[Inference] = []

    def admit(self, inference: Inference, now: int) -> None:
        self.batch.append(inference)
        self.waiting = len(self.batch)

    def next(self, free: Sequence[int], now: int) -> Batch | None:
        if not self.batch:
            return None
        batch, self.batch, self.waiting = self.batch, [], 0
        return Batch(free[0], batch)

    def released(self, inference: Inference, now: int, again: bool) -> None:
        if again:
            self.again.append(inference)

    def stop(self) -> None:
        """Sequences go on."""

    def change_instances(
        self, added: Collection[int], removed: Collection[int], left: Callable[[int], None], now: int
    ) -> None:
        """No instance comes or goes."""

    def wants(self, instance: int) -> bool:
        return bool(self.batch)


class Rig:
    """A runner on which a batch of requests of sequences runs at once, on the loop."""

    def __init__(self, behave: Behaviour, *, decoupled: bool = False, batching: bool = True) -> None:
        self.loop = ManualLoop()
        self.policy = Together()
        self.behave = behave
        self.observer = RecordingObserver()
        datatypes = {"x": INT32, "S_OUT": INT32}
        config = RunnerConfig(
            "m", 1, datatypes, decoupled, inline_safe=False, on_loop=True, implicit_state=True, gathers=True
        )
        instance = FakeInstance(self._execute)
        self.rows = 1 if batching else 0
        self.runner = Runner(
            config, self.policy, Instances("m", [instance]), self.loop, self.observer, lambda one: None
        )

    def _execute(self, execution: Execution) -> None:
        self.behave(execution)
        execution.finished()

    def run(self, *requests: tuple[SequenceStates | None, int], outputs: Sequence[str] = ("x",)) -> list[object]:
        """The answers of one batch: the value of `x`, or an error."""
        replies = []
        for states, value in requests:
            reply = RecordingReply()
            one = self.request(states, value, reply, outputs)
            self.runner.submit(one)
            replies.append(reply)
        self.loop.turn()
        return [told(reply) for reply in replies]

    def request(
        self, states: SequenceStates | None, value: int, reply: RecordingReply, outputs: Sequence[str] = ("x",)
    ) -> Inference:
        x = tensor_of("x", INT32, np.array([[value]], np.int32))
        one = inference("r", reply, self.rows, [x], outputs)
        one.request.outputs = tuple(outputs)
        one.states = states
        return one


def told(reply: RecordingReply) -> object:
    if isinstance(reply.only, Error):
        return reply.only
    return {tensor.name: array_of(tensor).reshape(-1).tolist() for tensor in reply.response.outputs}


def accumulate(execution: Execution) -> None:
    """The usual model: it returns the sum so far, and keeps it."""
    arrays = execution.arrays()
    total = arrays["x"] + arrays["S_IN"]
    execution.scatter({"x": total, "S_OUT": total})


STATES = ModelStates("m", [state()])


def value_of(states: SequenceStates, name: str = "S_IN") -> list[object]:
    return list(array_of(states.tensors[name]).reshape(-1).tolist())


@pytest.mark.rows("S68")
def test_a_sequence_reads_what_it_wrote_last() -> None:
    rig = Rig(accumulate)
    one, other = sequence_of(STATES), sequence_of(STATES)
    assert rig.run((one, 1)) == [{"x": [1]}]
    assert rig.run((one, 10), (other, 500)) == [{"x": [11]}, {"x": [500]}]
    assert rig.run((other, 5), (one, 100)) == [{"x": [505]}, {"x": [111]}]
    assert rig.run((sequence_of(STATES), 7)) == [{"x": [7]}]
    assert (value_of(one), value_of(other)) == ([111], [505])


def test_a_row_without_a_sequence_reads_zeros_in_the_shape_of_the_others() -> None:
    seen: list[list[int]] = []

    def model(execution: Execution) -> None:
        seen.extend(execution.arrays()["S_IN"].tolist())
        execution.scatter({"x": execution.arrays()["x"]})

    grown = sequence_of(ModelStates("m", [state(dims=(1, -1), shape=(1, 1))]))
    grown.tensors = {"S_IN": tensor_of("S_IN", INT32, np.array([[4, 5, 6]], np.int32))}
    assert Rig(model).run((None, 1), (grown, 2), (None, 3)) == [{"x": [1]}, {"x": [2]}, {"x": [3]}]
    assert seen == [[0, 0, 0], [4, 5, 6], [0, 0, 0]]


def test_a_batch_without_any_sequence_runs_without_states() -> None:
    def model(execution: Execution) -> None:
        assert "S_IN" not in execution.arrays()
        execution.scatter({"x": execution.arrays()["x"]})

    assert Rig(model).run((None, 1)) == [{"x": [1]}]


def broken(execution: Execution) -> None:
    raise Internal("the model broke")


def refuses_the_second(execution: Execution) -> None:
    for i in range(len(execution.requests)):
        value = tensor_of("S_OUT", INT32, np.array([[99]], np.int32))
        if i == 1:
            execution.fail(i, Internal("no"))
        else:
            execution.send(i, [value])


def answers_twice(execution: Execution) -> None:
    for _ in range(2):
        execution.send(0, [tensor_of("S_OUT", INT32, np.array([[99]], np.int32))])


@pytest.mark.parametrize("model", [broken, answers_twice])
def test_failed_request_changes_no_state(model: Behaviour) -> None:
    rig = Rig(accumulate)
    states = sequence_of(STATES)
    rig.run((states, 3))
    rig.behave = model
    assert isinstance(rig.run((states, 4))[0], Internal)
    rig.behave = accumulate
    assert rig.run((states, 5)) == [{"x": [8]}]


def test_a_request_that_fails_beside_others_keeps_its_old_state() -> None:
    rig = Rig(accumulate)
    sequences = [sequence_of(STATES) for _ in range(3)]
    rig.run(*[(states, 1) for states in sequences])
    rig.behave = refuses_the_second
    rig.run(*[(states, 1) for states in sequences])
    assert [value_of(states) for states in sequences] == [[99], [1], [99]]


def next_states(*tensors: Tensor) -> Behaviour:
    def model(execution: Execution) -> None:
        execution.send(0, [execution.requests[0].request.inputs["x"], *tensors])

    return model


MISFITS = {
    "datatype": (
        tensor_of("S_OUT", FP32, np.zeros((1, 1), np.float32)),
        "the model returned datatype TYPE_FP32, the configuration says TYPE_INT32",
    ),
    "rank": (
        tensor_of("S_OUT", INT32, np.zeros(1, np.int32)),
        "the model returned shape [1], the configuration says [1,-1]",
    ),
    "batch": (
        tensor_of("S_OUT", INT32, np.zeros((2, 1), np.int32)),
        "the model returned shape [2,1], the configuration says [1,-1]",
    ),
    "size": (Tensor("S_OUT", INT32, (1, 3), HostMemory(bytes(8))), "8 bytes do not fill [1,3]"),
}


@pytest.mark.parametrize(("tensor", "words"), MISFITS.values(), ids=MISFITS)
def test_a_state_that_the_model_could_not_read_again_fails_its_request(tensor: Tensor, words: str) -> None:
    states = sequence_of(ModelStates("m", [state(dims=(1, -1), shape=(1, 1))]))
    (answer,) = Rig(next_states(tensor)).run((states, 1))
    assert isinstance(answer, Internal)
    assert answer.message == f"model 'm', state 'S_OUT': {words}"
    assert value_of(states) == [0]


def test_malformed_strings_fail_their_request() -> None:
    states = sequence_of(ModelStates("m", [state(BYTES, (1, 1))]))
    (answer,) = Rig(next_states(Tensor("S_OUT", BYTES, (1, 1), HostMemory(b"\xff\0\0\0")))).run((states, 1))
    assert isinstance(answer, Internal)
    assert "incomplete string" in answer.message
    good = tensor_of("S_OUT", BYTES, np.array([[b"kept"]], object))
    assert Rig(next_states(good)).run((states, 1)) == [{"x": [1]}]
    assert value_of(states) == [b"kept"]


def test_a_state_changes_its_shape() -> None:
    def append(execution: Execution) -> None:
        arrays = execution.arrays()
        grown = np.concatenate([arrays["S_IN"], arrays["x"]], axis=1)
        execution.scatter({"x": grown, "S_OUT": grown})

    rig = Rig(append)
    empty = ModelState("S_IN", "S_OUT", INT32, (1, -1), Tensor("S_IN", INT32, (1, 0), HostMemory(b"")))
    states = sequence_of(ModelStates("m", [empty]))
    assert states.key == ((1, 0),)
    assert [rig.run((states, value)) for value in (7, 8)] == [[{"x": [7]}], [{"x": [7, 8]}]]
    assert states.key == ((1, 2),)


def test_sequences_with_states_of_fixed_shape_share_batches() -> None:
    assert sequence_of(STATES).key is None


def test_state_that_is_not_returned_is_unchanged() -> None:
    rig = Rig(accumulate)
    states = sequence_of(STATES)
    rig.run((states, 3))
    rig.behave = next_states()
    rig.run((states, 9))
    assert value_of(states) == [3]


@pytest.mark.parametrize(
    ("asked", "listed", "shown"),
    [((), False, ["x"]), ((), True, ["S_OUT", "x"]), (("x",), True, ["x"]), (("S_OUT",), True, ["S_OUT"])],
)
def test_state_is_shown_if_it_is_a_requested_output(asked: tuple[str, ...], listed: bool, shown: list[str]) -> None:
    states = ModelStates("m", [state()], frozenset({"S_OUT"} if listed else ()))
    rig = Rig(accumulate)
    one = sequence_of(states)
    reply = RecordingReply()
    request = rig.request(one, 6, reply, asked or (("x", "S_OUT") if listed else ("x",)))
    request.request.outputs = asked
    rig.runner.submit(request)
    rig.loop.turn()
    assert sorted(tensor.name for tensor in reply.response.outputs) == shown
    assert value_of(one) == [6]


def test_a_state_that_is_written_to_a_client_is_kept_all_the_same() -> None:
    class Far:
        byte_size = 4
        written = b""

        def write(self, source: object) -> None:
            assert isinstance(source, HostMemory)
            self.written = bytes(source.host())

    rig, far = Rig(accumulate), Far()
    states = sequence_of(ModelStates("m", [state()], frozenset({"S_OUT"})))
    request = rig.request(states, 6, RecordingReply(), ("S_OUT",))
    request.destinations = {"S_OUT": far}
    rig.runner.submit(request)
    rig.loop.turn()
    assert (far.written, value_of(states)) == (b"\6\0\0\0", [6])


def test_a_state_keeps_no_batch_in_memory_and_cannot_be_written_to() -> None:
    sequences = [sequence_of(STATES) for _ in range(8)]
    Rig(accumulate).run(*[(states, 1) for states in sequences])
    for states in sequences:
        view = states.tensors["S_IN"].memory.host()
        assert view.readonly
        assert isinstance(view.obj, bytes)
    assert STATES.initial["S_IN"].memory.host().readonly


def test_a_large_state_of_its_own_is_not_copied() -> None:
    array = np.ones((1, 1000), np.int32)
    states = sequence_of(ModelStates("m", [state(dims=(1, 1000))]))
    Rig(next_states(tensor_of("S_OUT", INT32, array))).run((states, 1))
    assert states.tensors["S_IN"].memory.owner is array or np.shares_memory(array, array_of(states.tensors["S_IN"]))


# ---- models with many responses, and requests that run again


def sent(value: int) -> Tensor:
    return tensor_of("S_OUT", INT32, np.array([[value]], np.int32))


def test_many_responses_become_one_state_at_the_end() -> None:
    seen: list[list[object]] = []
    states = sequence_of(STATES)

    def model(execution: Execution) -> None:
        for value in (1, 2):
            execution.send(0, [sent(value)], final=False)
            seen.append(value_of(states))
        execution.send(0, None)

    rig = Rig(model, decoupled=True)
    rig.runner.submit(rig.request(states, 0, RecordingReply()))
    rig.loop.turn()
    assert (seen, value_of(states)) == ([[0], [0]], [2])


def test_an_error_among_many_responses_forgets_what_was_before_it() -> None:
    def model(execution: Execution) -> None:
        execution.send(0, [sent(1)], final=False)
        execution.fail(0, Internal("broke"))

    rig, states = Rig(model, decoupled=True), sequence_of(STATES)
    rig.runner.submit(rig.request(states, 0, RecordingReply()))
    rig.loop.turn()
    assert value_of(states) == [0]


def test_a_request_that_runs_again_reads_what_it_wrote() -> None:
    def model(execution: Execution) -> None:
        before = int(execution.arrays()["S_IN"][0, 0])
        execution.send(0, [sent(before + 1)], final=False)
        execution.again(0)

    rig, states = Rig(model, decoupled=True), sequence_of(STATES)
    one = rig.request(states, 0, RecordingReply())
    for expected in (1, 2, 3):
        rig.runner.submit(one)
        rig.loop.turn()
        assert value_of(states) == [expected]
        assert one.state is not RUNNING
    assert one.outputs == ("x", "S_OUT")


def test_zeros_of_strings_are_empty() -> None:
    strings = Tensor("s", BYTES, (2,), HostMemory(b"\1\0\0\0a\1\0\0\0b"))
    assert array_of(zeros_like(strings)).tolist() == [b"", b""]
