"""Buffers that are lent, return by themselves, and are lent again."""

import ctypes
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from halimede.transport.buffers import (
    ALIGNMENT_BYTES,
    MAX_KEPT_BUFFERS,
    MAX_KEPT_BYTES,
    MAX_WASTE_DIVISOR,
    MIN_REUSED_BYTES,
    Buffers,
    aligned,
)

LARGE = 4 * MIN_REUSED_BYTES


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@pytest.mark.parametrize("offset", [0, 1, 63, 64, 100, LARGE])
@pytest.mark.parametrize("size", [LARGE, LARGE + 1])
def test_offset_is_aligned_in_fresh_and_reused_buffers(size: int, offset: int) -> None:
    buffers = Buffers()
    for view in (aligned(size, offset), buffers.aligned(size, offset), buffers.aligned(size, offset)):
        assert view.nbytes == size
        assert (address(view) + offset) % ALIGNMENT_BYTES == 0


@pytest.mark.parametrize("size", [0, 1, MIN_REUSED_BYTES - 1])
def test_small_buffer_is_only_as_large_as_asked_for(size: int) -> None:
    view = Buffers().aligned(size, 5)
    assert (len(view), view.nbytes, view.format, view.readonly) == (size, size, "B", False)


@pytest.mark.parametrize(
    "array_of",
    [
        lambda view: np.frombuffer(view, np.uint8),
        lambda view: np.ndarray((4,), np.uint8, view),
        lambda view: np.asarray(view),
        lambda view: np.ndarray((2, 2), np.uint8, view).T[::-1].reshape(2, 2)[::-1].T.reshape(4),
        lambda view: np.ndarray((1,), np.float32, view.toreadonly()).view(np.uint8),
        lambda view: np.ndarray((4,), np.uint8, np.ndarray((4,), np.int8, view)).data,
        lambda view: np.ndarray((4,), np.uint8, view).base[:4],  # type: ignore[index] # the part that was lent
    ],
    ids=["frombuffer", "ndarray", "asarray", "view of views", "read-only", "memoryview of an array", "of the part"],
)
def test_buffer_returns_when_its_last_view_is_freed(array_of: Callable[[memoryview], Any]) -> None:
    """Arrays, too, which know their memory in ways of their own."""
    buffers = Buffers()
    first = buffers.aligned(LARGE, 0)
    place = address(first)
    first[:4] = b"mine"
    array = array_of(first[:4])
    del first
    other = buffers.aligned(LARGE, 0)
    assert address(other) != place
    assert bytes(array) == b"mine"
    del array
    assert address(buffers.aligned(LARGE, 0)) == place


def test_returned_buffer_is_reused_for_slightly_smaller_sizes_only() -> None:
    buffers = Buffers()
    place = address(buffers.aligned(LARGE, 0))
    larger, much_smaller = buffers.aligned(LARGE + 1, 0), buffers.aligned(LARGE - LARGE // MAX_WASTE_DIVISOR, 0)
    assert place not in (address(larger), address(much_smaller))
    assert address(buffers.aligned(LARGE - LARGE // (2 * MAX_WASTE_DIVISOR), 0)) == place


def test_buffer_may_return_on_another_thread() -> None:
    buffers = Buffers()
    held = [buffers.aligned(LARGE, 0)]
    place = address(held[0])
    thread = Thread(target=held.clear)
    thread.start()
    thread.join(10)
    assert address(buffers.aligned(LARGE, 0)) == place


def test_kept_buffers_are_few_and_not_large_in_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh: list[int] = []

    def room(size: int, dtype: Any) -> Any:
        fresh.append(size)
        return empty(size, dtype)

    empty = np.empty
    monkeypatch.setattr(np, "empty", room)
    for size, most in ((LARGE, MAX_KEPT_BUFFERS), (MAX_KEPT_BYTES // 3, 2), (MAX_KEPT_BYTES, 0)):
        buffers, count = Buffers(), most + 2
        for _ in range(2):
            lent = [buffers.aligned(size, 0) for _ in range(count)]
            lent.clear()
        assert len(fresh) == 2 * count - most
        fresh.clear()


@pytest.mark.parametrize("size", [LARGE, MAX_KEPT_BYTES // MAX_KEPT_BUFFERS])
def test_buffers_of_unused_sizes_are_evicted(size: int) -> None:
    buffers = Buffers()
    earlier = [buffers.aligned(size, 0) for _ in range(MAX_KEPT_BUFFERS)]
    earlier.clear()
    for _ in range(2):
        now = [buffers.aligned(2 * size, 0) for _ in range(3)]
        places = {address(view) for view in now}
        now.clear()
    again = [buffers.aligned(2 * size, 0) for _ in range(3)]
    assert {address(view) for view in again} == places


def test_buffers_that_return_on_many_threads_at_once_stay_few() -> None:
    buffers = Buffers()
    held = [[buffers.aligned(LARGE + 64 * n, 0) for n in range(100)] for _ in range(8)]
    threads = [Thread(target=views.clear) for views in held]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        buffers.aligned(LARGE, 0)[:1] = b"x"
    buffers.aligned(LARGE, 0)
    assert 0 < len(buffers._kept) <= MAX_KEPT_BUFFERS
    assert not buffers._lent


@pytest.fixture
def collected_all_the_time() -> Iterator[None]:
    before, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.collect()
    gc.set_threshold(50, 2, 2)
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*before)


def test_buffers_return_in_the_middle_of_other_work(
    collected_all_the_time: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector may return buffers at any step of the code under test, on any thread."""
    broke: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: broke.append(told.exc_value))
    buffers, held, over = Buffers(), deque[memoryview](), Event()

    def let_go() -> None:
        while not over.wait(1e-4):
            held.clear()

    thread = Thread(target=let_go)
    thread.start()
    try:
        for n in range(20_000):
            view = buffers.aligned(LARGE + n % 7 * MIN_REUSED_BYTES + n % 1000, 0)
            if n % 2:
                held.append(view)
            else:
                cycle: list[object] = [view]
                cycle.append(cycle)
                del cycle
            del view
    finally:
        over.set()
        thread.join(10)
    held.clear()
    gc.collect()
    assert not broke
    assert len(buffers._kept) <= MAX_KEPT_BUFFERS
    assert not buffers._lent


def test_lent_buffers_are_no_cycle() -> None:
    """Of what other threads leave meanwhile nothing is said."""
    buffers = Buffers()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(10):
            buffers.aligned(LARGE, 0)
        gc.collect()
        assert not any(isinstance(each, np.ndarray) for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
