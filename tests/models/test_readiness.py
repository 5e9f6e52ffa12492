from collections.abc import Callable, Sequence

import pytest

from halimede.models.readiness import ask_all

Done = Callable[[bool], None]


class Instance:
    """Answers at once if it has an answer, or else when the test says so."""

    def __init__(self, ready: bool | None = None) -> None:
        self.ready = ready
        self.done: Done

    def ask_ready(self, done: Done) -> None:
        self.done = done
        if self.ready is not None:
            done(self.ready)


@pytest.mark.parametrize(
    ("said", "ready"),
    [([], True), ([True], True), ([True, True], True), ([True, False], False), ([False, True], False)],
)
def test_all_must_say_that_they_are_ready(said: Sequence[bool], ready: bool) -> None:
    answers: list[bool] = []
    ask_all([Instance(each) for each in said], answers.append)
    assert answers == [ready]


def test_answers_may_come_later_and_in_any_order() -> None:
    answers: list[bool] = []
    instances = [Instance(), Instance(True), Instance()]
    ask_all(instances, answers.append)
    instances[2].done(True)
    assert answers == []
    instances[0].done(True)
    assert answers == [True]


def test_one_no_is_enough() -> None:
    answers: list[bool] = []
    instances = [Instance(), Instance()]
    ask_all(instances, answers.append)
    instances[1].done(False)
    assert answers == [False]
    instances[0].done(True)
    assert answers == [False], "it is told once"
