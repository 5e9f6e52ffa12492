"""Questions about all models: which are answered at once, and which wait and share an answer."""

from collections.abc import Callable
from typing import Any

import pytest

from halimede.engine.shared_answers import SLICE_SECONDS, SharedAnswers
from halimede.engine_port import ModelStatistics, Query
from halimede.errors import Internal

ALL, FIRST, BROKEN = ModelStatistics(), ModelStatistics("", 1), ModelStatistics("", 2)


class Bench:
    """Each answer takes `cost` seconds and is its own number. With `later` the test gives it by `give`."""

    def __init__(self, cost: float, later: bool = False, in_turn: bool = True) -> None:
        self._cost, self._later = cost, later
        self._now = 0.0
        self._turns: list[Callable[[], None]] = []
        self._open: list[Callable[[Any], None]] = []
        self.asked: list[Query[Any]] = []
        self.told: list[Any] = []
        self.shared = SharedAnswers(self._answer, self._turns.append, in_turn, lambda: self._now)

    def _answer(self, query: Query[Any], done: Callable[[Any], None]) -> None:
        self._now += self._cost
        self.asked.append(query)
        if query == BROKEN:
            raise ValueError("x")
        if self._later:
            self._open.append(done)
        else:
            done(len(self.asked))

    def ask(self, query: Query[Any] = ALL) -> None:
        self.shared.ask(query, self.told.append)

    def give(self) -> None:
        self._open.pop(0)(len(self.asked))

    def pass_time(self, seconds: float) -> None:
        self._now += seconds

    @property
    def turns(self) -> int:
        """How many calls in the next turn were asked for."""
        return len(self._turns)

    def turn(self) -> None:
        turns, self._turns[:] = list(self._turns), []
        for turn in turns:
            turn()


def test_questions_that_take_little_are_answered_at_once() -> None:
    bench = Bench(SLICE_SECONDS / 10)
    for _ in range(5):
        bench.ask()
    assert bench.told == [1, 2, 3, 4, 5]


def test_questions_beyond_the_slice_share_an_answer_of_the_next_turn() -> None:
    bench = Bench(SLICE_SECONDS * 2)
    for _ in range(100):
        bench.ask()
    assert bench.told == [1]
    bench.turn()
    assert bench.told == [1, *[2] * 99]
    assert len(bench.asked) == 2


def test_different_questions_take_turns() -> None:
    bench = Bench(SLICE_SECONDS * 2)
    for query in (ALL, FIRST, ALL, FIRST):
        bench.ask(query)
    for count in (1, 3, 4):
        assert len(bench.told) == count
        bench.turn()
    assert bench.asked == [ALL, FIRST, ALL]


def test_slice_is_new_in_each_turn() -> None:
    bench = Bench(SLICE_SECONDS * 2)
    for count in range(1, 4):
        bench.ask()
        assert len(bench.told) == count
        bench.turn()


def test_while_an_answer_is_made_others_wait_and_share_the_next() -> None:
    """The index is made by a task. Who asks meanwhile may have changed what it has read already."""
    bench = Bench(0.0, later=True)
    for _ in range(3):
        bench.ask()
    bench.turn()
    assert len(bench.asked) == 1
    bench.give()
    bench.turn()
    assert (len(bench.asked), bench.told) == (2, [1])
    bench.give()
    assert bench.told == [1, 2, 2]


def test_an_answer_that_may_never_come_keeps_nobody_waiting() -> None:
    bench = Bench(0.0, later=True, in_turn=False)
    bench.ask()
    bench.ask()
    assert len(bench.asked) == 2


def test_question_that_cannot_be_answered(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(0.0)
    bench.ask(BROKEN)
    bench.ask()
    assert isinstance(bench.told[0], Internal)
    assert bench.told[1] == 2
    assert "failed to answer" in caplog.text


def test_one_who_fails_does_not_keep_the_answer_from_others(caplog: pytest.LogCaptureFixture) -> None:
    def fail(answer: object) -> None:
        raise ValueError("x")

    bench = Bench(SLICE_SECONDS * 2)
    bench.ask()
    bench.shared.ask(ALL, fail)
    bench.ask()
    bench.turn()
    assert bench.told == [1, 2]
    assert "failed to hand on an answer" in caplog.text


def test_client_that_asks_again_when_it_is_told_is_answered_no_deeper() -> None:
    bench, times = Bench(0), 5_000

    def told(answer: Any) -> None:
        bench.told.append(answer)
        if len(bench.told) < times:
            bench.shared.ask(ALL, told)

    for _ in range(3):
        bench.shared.ask(ALL, told)
    while bench.turns:
        bench.turn()
    assert len(bench.told) >= times


def test_those_who_share_an_answer_are_told_in_turns() -> None:
    """Writing an answer about many models to its client takes milliseconds."""
    bench = Bench(0.0, later=True)
    told: list[Any] = []

    def write(answer: Any) -> None:
        told.append(answer)
        bench.pass_time(SLICE_SECONDS * 0.4)

    bench.ask()
    for _ in range(7):
        bench.shared.ask(ALL, write)
    bench.turn()
    bench.give()
    bench.turn()
    bench.give()
    for count in (3, 6, 7):
        assert len(told) == count
        bench.turn()
    # Nothing is left that would ask for a turn.
    bench.turn()
    bench.turn()
    assert bench.turns == 0
