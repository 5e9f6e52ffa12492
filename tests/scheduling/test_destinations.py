"""Outputs that are written where the client wants them: by whom, what is left of them, and what goes wrong."""

from collections.abc import Callable
from threading import get_ident

import numpy as np
import pytest

from halimede.errors import Error, Internal
from halimede.requests import InferResponse
from halimede.scheduling.assembly import place
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import Inference
from halimede.scheduling.inline import PLACED_BYTES
from halimede.tensors import FP32, HostMemory, Memory, Tensor, array_of, tensor_of
from tests.fakes import RecordingReply, echo, inference
from tests.scheduling.rig import Rig


class FakeDestination:
    """Keeps what is written, and the thread that wrote it."""

    def __init__(self, byte_size: int = 4, error: Error | None = None) -> None:
        self.byte_size = byte_size
        self.written = b""
        self.thread = 0
        self._error = error

    def write(self, source: Memory) -> None:
        self.thread = get_ident()
        if self._error is not None:
            raise self._error
        self.written = bytes(source.host())


def tensor(name: str = "x", value: float = 1.0) -> Tensor:
    return tensor_of(name, FP32, np.full((1, 1), value, np.float32))


ONE = array_of(tensor()).tobytes()


def test_outputs_are_written_and_nothing_is_left_of_them() -> None:
    there = FakeDestination(100)
    placed = place([tensor("x"), tensor("y")], {"x": there, "z": FakeDestination()})
    assert there.written == ONE
    assert [(t.name, t.shape, t.memory.byte_size) for t in placed] == [("x", (1, 1), 0), ("y", (1, 1), 4)]


@pytest.mark.rows("H98")
def test_destination_that_is_too_small() -> None:
    there = FakeDestination(3)
    with pytest.raises(Internal) as caught:
        place([tensor()], {"x": there})
    assert caught.value.message == (
        "shared memory size specified with the request for output 'x' (3 bytes) should be at least 4 bytes to hold the "
        "results"
    )
    assert there.written == b""


def execution_of(*destinations: FakeDestination | None) -> Execution:
    rows = [inference(str(i), batch_size=1, inputs=[tensor()], outputs=["x"]) for i in range(len(destinations))]
    for row, there in zip(rows, destinations, strict=True):
        row.destinations = None if there is None else {"x": there}
    execution = Execution(rows, len(rows), 0, {"x": FP32}, False, None)
    execution.has_destinations = True
    return execution


def scattering(execution: Execution) -> None:
    execution.scatter({"x": np.ones((3, 1), np.float32)})


def sending(execution: Execution) -> None:
    for i in range(3):
        execution.send(i, [tensor()])


@pytest.mark.parametrize("answer", [scattering, sending])
def test_each_request_of_a_batch_has_its_own(answer: Callable[[Execution], None]) -> None:
    good, small = FakeDestination(), FakeDestination(3)
    execution = execution_of(good, None, small)
    answer(execution)
    first, second, third = (outcome.answer for outcome in execution.outcomes)
    assert good.written == ONE
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert (first[0].memory.byte_size, second[0].memory.byte_size) == (0, 4)
    assert isinstance(third, Internal)
    assert all(outcome.final for outcome in execution.outcomes)


def test_answer_for_an_unknown_request_is_not_placed() -> None:
    execution = execution_of(FakeDestination())
    execution.send(7, [tensor()])
    execution.send(-1, [tensor()])
    execution.send(0, None)
    assert [outcome.i for outcome in execution.outcomes] == [7, -1, 0]


def submit(rig: Rig, there: FakeDestination) -> RecordingReply:
    reply = RecordingReply()
    one: Inference = inference("q", reply, 0, [tensor()], ["x"])
    one.destinations = {"x": there}
    rig.runner.submit(one)
    return reply


def test_thread_that_ran_the_batch_writes() -> None:
    rig, there = Rig(), FakeDestination()
    reply = submit(rig, there)
    rig.finish(reply)
    assert isinstance(reply.response, InferResponse)
    assert reply.response.outputs[0].memory.byte_size == 0
    assert there.written == ONE
    assert there.thread not in (0, get_ident())


def test_quick_model_writes_small_outputs_on_the_loop() -> None:
    rig = Rig(inline_safe=True)
    rig.warm_up()
    small, large = FakeDestination(), FakeDestination(PLACED_BYTES)
    rig.finish(submit(rig, small))
    assert small.thread == get_ident()
    rig.finish(submit(rig, large))
    assert large.thread != get_ident()


def test_time_of_writing_is_not_the_time_of_the_model() -> None:
    """However long it takes to write, the model stays on the loop."""

    def behave(execution: Execution) -> None:
        echo(execution)
        execution.placed_ns = 10**15

    rig = Rig([behave], inline_safe=True)
    rig.warm_up()
    for _ in range(3):
        there = FakeDestination()
        rig.finish(submit(rig, there))
        assert there.thread == get_ident()


def test_write_that_fails_fails_the_request() -> None:
    rig = Rig()
    reply = submit(rig, FakeDestination(error=Internal("no room")))
    rig.finish(reply)
    assert reply.error.message == "no room"
    assert [one.request.id for one, _ in rig.observer.failures] == ["q"]


def test_response_without_outputs_has_nothing_to_place() -> None:
    assert place([], {"x": FakeDestination()}) == []
    assert place([Tensor("x", FP32, (0,), HostMemory(b""))], {"x": FakeDestination(0)})[0].shape == (0,)
