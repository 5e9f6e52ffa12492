"""The worker's end of the questions whether a model is ready."""

import select
import socket
from collections.abc import Iterator

import pytest

from halimede.workers.child.readiness import NOT_READY, QUESTION, READY, answer_questions


@pytest.fixture
def impatient() -> Iterator[float]:
    """Seconds that sockets wait unless they are told otherwise, as models set it before they fetch something."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.01)
    yield 0.01
    socket.setdefaulttimeout(before)


def test_questions_are_answered_after_any_pause(impatient: float) -> None:
    said = iter([True, False])
    with answer_questions(lambda: next(said)) as asking:
        assert asking.gettimeout() is None
        assert select.select([asking], [], [], 5 * impatient)[0] == []  # nothing was said, and nobody hung up
        asking.settimeout(10)
        for answer in (READY, NOT_READY):
            asking.sendall(QUESTION)
            assert asking.recv(1) == answer
