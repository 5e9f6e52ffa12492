"""On threads made for it: what a thread keeps to shall not stay behind in the one that runs the tests."""

import os
from collections.abc import Callable
from threading import Event, Thread, get_native_id

import pytest

from halimede.platform.cores import current_core
from halimede.workers.child.berth import NOWHERE, Berth

HERE = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
pytestmark = pytest.mark.skipif(len(HERE) < 2, reason="one core is nothing to choose from")
FIRST = min(HERE, default=0)


def on_a_thread(work: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def test_a_thread_keeps_to_a_core_and_leaves_it_again() -> None:
    def work() -> None:
        berth = Berth()
        berth.keep_to(FIRST)
        assert os.sched_getaffinity(0) == {FIRST}
        assert current_core() == FIRST
        berth.keep_to(max(HERE))
        assert os.sched_getaffinity(0) == {max(HERE)}
        berth.keep_to(NOWHERE)
        assert os.sched_getaffinity(0) == HERE

    on_a_thread(work)


def test_a_core_that_the_thread_may_not_use_is_no_order() -> None:
    def work() -> None:
        os.sched_setaffinity(0, {max(HERE)})
        Berth().keep_to(FIRST)
        assert os.sched_getaffinity(0) == {max(HERE)}

    on_a_thread(work)


def test_a_thread_that_was_moved_meanwhile_stays_where_it_was_put() -> None:
    """As by a model that sets its own cores, though to the same number of them."""

    def work() -> None:
        berth = Berth()
        berth.keep_to(FIRST)
        os.sched_setaffinity(0, {max(HERE)})
        berth.keep_to(NOWHERE)
        assert os.sched_getaffinity(0) == {max(HERE)}

    on_a_thread(work)


def test_threads_that_were_begun_meanwhile_leave_it_too_and_older_ones_stay_where_they_are() -> None:
    over, ready = Event(), Event()

    def older() -> None:
        os.sched_setaffinity(0, {FIRST})
        ready.set()
        over.wait(20)

    old = Thread(target=older)
    old.start()
    assert ready.wait(20)

    def work() -> None:
        berth = Berth()
        berth.keep_to(FIRST)
        begun = Thread(target=over.wait, args=(20,))
        begun.start()
        assert os.sched_getaffinity(begun.native_id or 0) == {FIRST}
        berth.keep_to(NOWHERE)
        assert os.sched_getaffinity(begun.native_id or 0) == HERE
        assert os.sched_getaffinity(old.native_id or 0) == {FIRST}
        assert get_native_id() not in (begun.native_id, old.native_id)

    try:
        on_a_thread(work)
    finally:
        over.set()
