import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import cast

import pytest

from halimede.platform.wakeable_thread import WakeableThread
from tests.processes import open_descriptors

PATIENCE = 20.0


@pytest.fixture
def thread() -> Iterator[WakeableThread]:
    made = WakeableThread("t")
    yield made
    made.stop()


def test_errands_are_done_in_order_on_the_one_thread(thread: WakeableThread) -> None:
    done: SimpleQueue[tuple[int, str]] = SimpleQueue()
    for i in range(5):
        thread.submit(lambda i=i: done.put((i, threading.current_thread().name)))  # type: ignore[misc] # i is bound
    assert [done.get(timeout=PATIENCE) for _ in range(5)] == [(i, "t") for i in range(5)]


def test_none_is_left_lying_where_the_thread_falls_asleep_meanwhile(thread: WakeableThread) -> None:
    """Each is given when the one before has just been done, and by several threads at once."""
    done: SimpleQueue[int] = SimpleQueue()

    def give(first: int) -> None:
        for i in range(first, first + 2_000):
            thread.submit(partial(done.put, i))
            if i % 2:
                thread.call(lambda: None).result(PATIENCE)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(give, (0, 10_000, 20_000)))
    thread.call(lambda: None).result(PATIENCE)
    assert done.qsize() == 6_000


def test_call_has_the_result_or_the_error(thread: WakeableThread) -> None:
    assert thread.call(lambda: 5).result(PATIENCE) == 5
    with pytest.raises(SystemExit):
        thread.call(partial(_raise, SystemExit(3))).result(PATIENCE)
    thread.submit(partial(_raise, SystemExit(3)))
    assert thread.call(lambda: 6).result(PATIENCE) == 6


def _raise(error: BaseException) -> None:
    raise error


def test_thread_lets_go_of_what_it_was_given(thread: WakeableThread) -> None:
    class Held:
        """Memory of a client, say."""

    held, gone = Held(), threading.Event()
    weakref.finalize(held, gone.set)
    thread.submit(cast("Callable[[], None]", partial(id, held)))
    del held
    assert gone.wait(PATIENCE), "held until the next batch comes"


def test_stopped_thread_does_what_it_has_and_gives_its_descriptors_back() -> None:
    before = open_descriptors()
    for _ in range(200):
        thread = WakeableThread("t")
        done = thread.call(threading.current_thread)
        thread.stop()
        done.result(PATIENCE).join(PATIENCE)
        thread.submit(lambda: None)  # nobody does it, and nothing breaks
    assert open_descriptors() <= before + 1


def test_thread_that_sees_its_end_by_itself_waits_for_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the bell would ring in a descriptor that is closed, or somebody else's."""
    thread = WakeableThread("t")
    running: threading.Thread = thread.call(threading.current_thread).result(PATIENCE)
    write = os.write

    def held_up(descriptor: int, data: bytes) -> int:
        write(descriptor, data)
        running.join(0.2)
        return write(descriptor, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", held_up)
        thread.stop()
    running.join(PATIENCE)
    assert not running.is_alive()


def test_idle_thread_says_so_once_after_each_work() -> None:
    idle: SimpleQueue[str] = SimpleQueue()
    thread = WakeableThread("t", lambda: idle.put(threading.current_thread().name), 0.001)
    try:
        assert idle.get(timeout=PATIENCE) == "t"
        for _ in range(3):
            assert thread.call(lambda: 5).result(PATIENCE) == 5
            assert idle.get(timeout=PATIENCE) == "t"
        thread.submit(lambda: None)
        assert idle.get(timeout=PATIENCE) == "t"
    finally:
        thread.stop()
    assert idle.empty()
