import numpy as np
import pytest

from halimede.errors import Error, Internal, NotFound
from halimede.scheduling.execution import Execution, Outcome
from halimede.tensors import FP32, Tensor, tensor_of
from tests.fakes import inference


def tensor(value: float) -> Tensor:
    return tensor_of("x", FP32, np.array([[value]], np.float32))


def execution_of(requests: int, decoupled: bool = False) -> tuple[Execution, list[int]]:
    """An execution of this many requests, and the number of outcomes that it had at each notification."""
    notices: list[int] = []
    rows = [inference(str(i), batch_size=1, inputs=[tensor(i)], outputs=["x"]) for i in range(requests)]
    execution = Execution(rows, requests, 0, {"x": FP32}, decoupled, lambda e: notices.append(len(e.outcomes)))
    return execution, notices


def test_execution_notifies_once_at_the_end_of_the_batch() -> None:
    execution, notices = execution_of(2)

    def execute(batch: Execution, responses: Execution) -> None:
        for i in range(2):
            responses.send(i, [tensor(i)])

    execution.run(execute, True)
    assert (notices, execution.done) == ([2], True)
    assert [outcome.i for outcome in execution.outcomes] == [0, 1]


def test_execution_of_a_decoupled_model_notifies_of_every_outcome() -> None:
    execution, notices = execution_of(1, decoupled=True)

    def execute(batch: Execution, responses: Execution) -> None:
        responses.send(0, [tensor(1)], False)
        responses.send(0, [tensor(2)], False)
        responses.send(0, None, True)

    execution.run(execute, True)
    assert notices == [1, 2, 3, 3]
    assert [outcome.final for outcome in execution.outcomes] == [False, False, True]


def test_outcomes_are_taken_once_and_in_order() -> None:
    execution, _ = execution_of(3)
    execution.send(2, [tensor(1)])
    execution.again(0)
    assert [outcome.i for outcome in execution.take()] == [2, 0]
    execution.send(1, [tensor(1)])
    assert [outcome.i for outcome in execution.take()] == [1]
    assert execution.take() == []


def test_execution_placed_on_the_loop_is_not_over_when_the_call_returns() -> None:
    execution, notices = execution_of(1)
    execution.run(lambda batch, responses: None, False)
    assert (notices, execution.done) == ([], False)
    execution.send(0, [tensor(1)])
    execution.finished()
    assert (notices, execution.done) == ([1], True)


def test_execution_notifies_of_promised_answers_after_its_end() -> None:
    execution, notices = execution_of(3)
    execution.run(lambda batch, responses: None, False)
    execution.finished([1])
    assert [(answer.i, str(answer.answer)) for answer in execution.single_answers()] == [
        (0, "expected a single response, got 0"),
        (2, "expected a single response, got 0"),
    ]
    execution.send(0, [tensor(0)])
    execution.send(1, [tensor(1)])
    assert len(notices) == 2
    assert [(answer.i, answer.final) for answer in execution.single_answers()] == [(1, True)]
    execution.send(1, [tensor(2)])
    assert len(notices) == 2
    assert execution.single_answers() == []


@pytest.mark.parametrize("finishes", [True, False])
@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (NotFound("no such word"), NotFound, "no such word"),
        (ValueError("bad"), Internal, "ValueError: bad"),
        (SystemExit(3), Internal, "SystemExit: 3"),
    ],
)
def test_what_a_backend_raises_answers_every_request_without_an_answer(
    raised: BaseException, kind: type[Error], text: str, finishes: bool
) -> None:
    execution, notices = execution_of(3)

    def execute(batch: Execution, responses: Execution) -> None:
        responses.send(1, [tensor(1)])
        raise raised

    execution.run(execute, finishes)
    assert execution.done
    assert len(notices) == 1
    first: dict[int, Outcome] = {}
    for outcome in execution.outcomes:
        first.setdefault(outcome.i, outcome)
    assert not isinstance(first[1].answer, Error)
    for i in (0, 2):
        answer = first[i].answer
        assert isinstance(answer, kind)
        assert str(answer) == text


def test_scatter_that_does_not_fit_answers_no_request() -> None:
    execution, _ = execution_of(2)
    with pytest.raises(Internal):
        execution.scatter({"x": np.zeros((3, 1), np.float32)})
    assert not execution.outcomes


def test_arrays_and_scatter_mark_the_phases() -> None:
    execution, _ = execution_of(2)
    execution.run(lambda batch, responses: responses.scatter(batch.arrays()), True)
    times = execution.times()
    assert times[0] > 0
    assert list(times) == sorted(times)
    assert times[1:3] == (execution.input_end, execution.output_start)


def test_phases_without_marks_add_up() -> None:
    execution, _ = execution_of(1)
    execution.run(lambda batch, responses: responses.fail(0, Internal("x")), True)
    start, input_end, output_start, end = execution.times()
    assert (start, output_start) == (input_end, end)


def test_compute_times_of_a_backend_are_kept() -> None:
    execution, _ = execution_of(1)

    def execute(batch: Execution, responses: Execution) -> None:
        responses.send(0, [tensor(1)])
        responses.compute_times(batch.start + 5, batch.start + 7)

    execution.run(execute, True)
    start = execution.start
    assert execution.times() == (start, start + 5, start + 7, execution.compute_end)


def test_exception_of_a_backend_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def broken(batch: Execution, responses: Execution) -> None:
        raise KeyError("nothing")

    def refusing(batch: Execution, responses: Execution) -> None:
        raise Internal("refused")

    for execute in (broken, refusing):
        execution_of(2)[0].run(execute, True)
    [record] = caplog.records  # an Error says what happened, and needs no traceback
    assert "the model goes on" in record.getMessage()
    assert "nothing" not in record.getMessage()  # the log merges equal lines, and texts of exceptions differ
    assert "in broken\n" in caplog.text
    assert "KeyError: 'nothing'" in caplog.text
