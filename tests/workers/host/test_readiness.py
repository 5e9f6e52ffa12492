"""Questions to a model whether it is ready: one at a time, shared, and answered in any case (P9)."""

import socket
from collections.abc import Callable
from threading import Event

import pytest

from halimede.workers.child.readiness import NOT_READY, QUESTION, READY, answer_questions
from halimede.workers.host.readiness import LIMIT, Question, Readiness
from tests.workers.fakes import PATIENCE, on_loop, turning_loop
from tests.workers.host.test_limit import HandClock


class Asked:
    """A question, how often it was sent, and what was answered."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.sent = 0
        self.said: list[bool] = []
        self.question = Question(self.clock, self._send)

    def _send(self) -> None:
        self.sent += 1

    def ask(self, times: int = 1) -> None:
        for _ in range(times):
            self.question.ask(self.said.append)


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.mark.rows("P9")
def test_those_who_ask_meanwhile_share_the_answer(asked: Asked) -> None:
    asked.ask(3)
    assert (asked.sent, asked.said) == (1, [])
    asked.question.answered(True)
    assert asked.said == [True] * 3
    asked.ask()
    asked.question.answered(False)
    assert (asked.sent, asked.said) == (2, [True, True, True, False])


@pytest.mark.rows("P9")
def test_model_that_does_not_answer_is_not_ready(asked: Asked) -> None:
    asked.ask()
    asked.clock.pass_by(LIMIT - 0.1)
    asked.ask()
    assert asked.said == []
    asked.clock.pass_by(0.2)
    assert asked.said == [False], "who asked later waits longer"
    asked.clock.pass_by(LIMIT)
    assert (asked.said, asked.sent) == ([False] * 2, 1)


@pytest.mark.rows("P9")
def test_question_under_way_is_shared_after_the_first_asker_gave_up(asked: Asked) -> None:
    asked.ask()
    asked.clock.pass_by(LIMIT + 1)
    assert asked.said == [False]
    asked.ask(2)
    assert (asked.said, asked.sent) == ([False], 1), "it is not asked again while it has not answered"
    asked.question.answered(True)
    assert asked.said == [False, True, True]
    asked.ask()
    asked.question.answered(True)
    assert (asked.said, asked.sent) == ([False, True, True, True], 2)


def test_limit_counts_each_question_by_itself(asked: Asked) -> None:
    asked.ask()
    asked.clock.pass_by(LIMIT - 1)
    asked.question.answered(True)
    asked.ask()
    asked.clock.pass_by(2)
    assert asked.said == [True], "that was the limit of the first one"
    asked.clock.pass_by(LIMIT)
    assert asked.said == [True, False]


def test_model_that_is_gone_is_not_ready_at_once(asked: Asked) -> None:
    asked.ask(2)
    asked.question.close()
    assert asked.said == [False, False]
    asked.ask()
    assert (asked.said, asked.sent) == ([False] * 3, 1)
    asked.clock.pass_by(2 * LIMIT)
    assert len(asked.said) == 3


class Answers:
    """What was told, to wait for."""

    def __init__(self) -> None:
        self.said: list[bool] = []
        self._there = Event()

    def __call__(self, ready: bool) -> None:
        self.said.append(ready)
        self._there.set()

    def wait(self) -> list[bool]:
        assert self._there.wait(PATIENCE)
        return self.said


@pytest.mark.parametrize(("said", "ready"), [(READY, True), (NOT_READY, False), (b"x", False)])
def test_question_and_answer_go_by_the_socket(said: bytes, ready: bool) -> None:
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    with theirs, turning_loop() as loop:
        readiness, answers = Readiness(ours, loop), Answers()
        on_loop(loop, lambda: readiness.ask(answers))
        assert theirs.recv(8) == QUESTION
        theirs.send(said)
        assert answers.wait() == [ready]
        on_loop(loop, readiness.close)
        assert theirs.recv(8) == b""


@pytest.mark.parametrize("when", ["before", "while"])
def test_worker_that_hangs_up_is_not_ready(when: str) -> None:
    ours, theirs = socket.socketpair()
    with turning_loop() as loop:
        readiness, answers = Readiness(ours, loop), Answers()
        if when == "before":
            theirs.close()
        on_loop(loop, lambda: readiness.ask(answers))
        theirs.close()
        assert answers.wait() == [False]
        assert ours.fileno() < 0


def test_worker_answers_on_a_thread_of_its_own() -> None:
    moods: list[Callable[[], bool]] = [lambda: True, lambda: False]
    with answer_questions(lambda: moods.pop(0)()) as sock:
        sock.settimeout(PATIENCE)
        answers = []
        for _ in range(2):
            sock.send(QUESTION)
            answers.append(sock.recv(8))
    assert answers == [READY, NOT_READY]
