"""The watch of the event loop. The test is the loop, and the watch looks from another thread."""

import logging
import threading
from collections.abc import Callable

import pytest

from halimede.platform.loop_watch import LoopWatch

LIMIT = 30.0


class HeldLoop:
    """A loop that answers when the test says so. `asked` is set when the watch has begun to ask what the loop does."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = threading.Event()
        self.callbacks: list[Callable[[], object]] = []
        self.watch = LoopWatch(self.callbacks.append, self.what, lambda: self.now)

    def what(self) -> str:
        self.asked.set()
        return "parse (json.py:7)"

    def hold(self, seconds: float) -> None:
        """Holds the loop for this time while the watch looks."""
        self.asked.clear()
        looking = threading.Thread(target=self.watch.look)
        looking.start()
        assert self.asked.wait(LIMIT)
        self.now += seconds
        self.callbacks.pop()()
        looking.join(LIMIT)
        assert not looking.is_alive()


def test_long_turn_is_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    loop = HeldLoop()
    with caplog.at_level(logging.WARNING):
        for seconds in (0.25, 0.5, 0.75):
            loop.hold(seconds)
    assert [record.getMessage() for record in caplog.records] == [
        f"a turn of the event loop took {seconds:.2f} s, and other clients waited: parse (json.py:7)"
        for seconds in (0.25, 0.75)
    ]


def test_loop_that_answers_at_once_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        LoopWatch(lambda answer: answer(), lambda: "busy").look()
    assert not caplog.records


def test_line_says_where_the_loop_is(caplog: pytest.LogCaptureFixture) -> None:
    asked, callbacks = threading.Event(), list[Callable[[], object]]()
    watch = LoopWatch(callbacks.append)
    place = watch._place

    def what() -> str:
        found = place()
        asked.set()
        return found

    watch._what = what
    looking = threading.Thread(target=watch.look)
    with caplog.at_level(logging.WARNING):
        looking.start()
        assert asked.wait(LIMIT)
        callbacks.pop()()
        looking.join(LIMIT)
    assert "test_line_says_where_the_loop_is (test_loop_watch.py:" in caplog.text


def test_watch_ends_while_the_loop_is_held() -> None:
    loop = HeldLoop()
    loop.watch.start()
    assert loop.asked.wait(LIMIT)
    loop.watch.stop()
