"""Loads leave no threads of OpenMP behind."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from halimede.backends.pytorch.passing import in_passing_thread

LIMIT = 30.0
"""Seconds for threads that end to be gone."""


def work() -> float:
    """The sum of roots of so large a tensor that torch computes it on all cores."""
    return float(torch.ones(1 << 22).sqrt().sum())


def threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Models that were loaded before may have set another number for the whole process."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core torch starts no threads")
@pytest.mark.usefixtures("two_threads")
def test_threads_of_a_call_end_with_it() -> None:
    with ThreadPoolExecutor(1) as load_thread:
        load_thread.submit(int).result()
        before = threads()
        assert load_thread.submit(in_passing_thread, work).result() == 1 << 22
        limit = time.monotonic() + LIMIT
        while threads() > before and time.monotonic() < limit:
            time.sleep(0.01)
        assert threads() == before
        assert load_thread.submit(work).result() == 1 << 22
        assert threads() > before, "torch divides no work, so this test shows nothing"


def test_error_of_a_call_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        in_passing_thread(lambda: 1 // 0)
