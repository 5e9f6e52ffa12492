"""Batches whose end a model's own strategy decides."""

from collections.abc import Sequence

import numpy as np
import pytest

from halimede.requests import Stamp
from halimede.scheduling.inference import Inference
from halimede.scheduling.policy import Wake
from halimede.scheduling.strategy import Candidate, ChosenForming, candidate
from halimede.tensors import FP32, tensor_of
from tests.fakes import inference

DELAY = 1000


def one(rows: int = 1, width: int = 1, key: object = None) -> Inference:
    tensor = tensor_of("x", FP32, np.zeros((rows, width), np.float32))
    made = inference("a", None, rows, [tensor], ["x"], key)
    made.times[Stamp.QUEUE_START] = 1
    return made


class Bytes:
    """No more than so many bytes; `breaks` names a method that raises. `log` is what was called."""

    def __init__(self, most: int, breaks: str = "", error: BaseException | None = None) -> None:
        self.most, self.breaks = most, breaks
        self.error = error or RuntimeError("broken")
        self.sum = 0
        self.log: list[str] = []

    def _called(self, method: str) -> None:
        self.log.append(method)
        if method == self.breaks:
            raise self.error

    def start(self) -> None:
        self._called("start")
        self.sum = 0

    def include(self, request: Candidate, /) -> bool:
        self._called("include")
        self.sum += request.byte_size
        return self.sum <= self.most

    def finish(self) -> None:
        self._called("finish")


def due(
    strategy: Bytes, queue: Sequence[Inference], preferred: Sequence[int] = (8,), delay: int = 0, now: int = 2
) -> int | Wake:
    return ChosenForming(8, preferred, delay, strategy, "m").due(iter(queue), now)


@pytest.mark.rows("S40", "S21")
@pytest.mark.parametrize(
    ("most", "widths", "expected"),
    [(12, [1] * 8, 3), (100, [1] * 8, 8), (100, [1] * 20, 8), (3, [1, 1], 1), (12, [2, 1, 1], 2), (12, [9, 1], 1)],
)
def test_batch_ends_when_the_strategy_refuses_a_request(most: int, widths: list[int], expected: int) -> None:
    strategy = Bytes(most)
    assert due(strategy, [one(width=width) for width in widths]) == expected
    assert (strategy.log[0], strategy.log[-1]) == ("start", "finish")
    assert set(strategy.log[1:-1]) == {"include"}


def test_only_what_fits_is_asked_about() -> None:
    strategy = Bytes(1000)
    assert due(strategy, [one(5), one(3), one(1), one(1)]) == 2
    assert strategy.log.count("include") == 2
    strategy = Bytes(1000)
    assert due(strategy, [one(key="a"), one(key="b"), one(key="b")]) == 1
    assert strategy.log.count("include") == 1


def test_refusal_ends_the_wait_for_more() -> None:
    queue = [one() for _ in range(5)]
    assert due(Bytes(12), queue, delay=DELAY) == 3
    assert due(Bytes(100), queue, delay=DELAY) == Wake(1 + DELAY)
    assert due(Bytes(100), queue, delay=DELAY, now=1 + DELAY) == 5


def test_preferred_size_among_those_included_counts() -> None:
    assert due(Bytes(12), [one() for _ in range(8)], preferred=(2,)) == 2


@pytest.mark.parametrize(("breaks", "expected"), [("start", 1), ("include", 1), ("finish", 8)])
def test_strategy_that_raises_is_logged_once_and_requests_run(
    breaks: str, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = Bytes(1000, breaks)
    forming = ChosenForming(8, (8,), DELAY, strategy, "m")
    for _ in range(3):
        assert forming.due(iter([one() for _ in range(8)]), 2) == expected
    assert strategy.log.count("finish") == 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize(("breaks", "expected"), [("include", 1), ("finish", 8)])
def test_strategy_that_wants_to_exit_does_not_end_the_loop(breaks: str, expected: int) -> None:
    strategy = Bytes(1000, breaks, SystemExit(3))
    assert due(strategy, [one() for _ in range(8)]) == expected


def test_candidate_describes_its_request() -> None:
    asked = candidate(one(2, 3))
    assert (asked.id, asked.batch_size, asked.byte_size, asked.parameters) == ("a", 2, 24, {})
    [(name, given)] = asked.inputs.items()
    assert (name, given.datatype, given.shape, given.byte_size) == ("x", "FP32", (2, 3), 24)
