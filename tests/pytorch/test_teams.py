"""Loads and idle instances keep no threads of OpenMP."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from halimede.backends.pytorch.teams import IDLE_SECONDS, and_end_team, end_team
from halimede.platform.wakeable_thread import WakeableThread

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


def fall_to(number: int) -> bool:
    """Whether the process has that few threads soon."""
    limit = time.monotonic() + LIMIT
    while threads() > number and time.monotonic() < limit:
        time.sleep(0.01)
    return threads() <= number


more_than_one_core = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="with one core torch starts no threads"
)


@more_than_one_core
@pytest.mark.usefixtures("two_threads")
def test_threads_of_a_load_end_with_it() -> None:
    with ThreadPoolExecutor(1) as load_thread:
        load_thread.submit(int).result()
        before = threads()
        assert load_thread.submit(and_end_team, work).result() == 1 << 22
        assert fall_to(before)
        assert load_thread.submit(work).result() == 1 << 22
        assert threads() > before, "torch divides no work, so this test shows nothing"


@more_than_one_core
@pytest.mark.usefixtures("two_threads")
def test_idle_instance_keeps_no_threads() -> None:
    instance = WakeableThread("instance", end_team, IDLE_SECONDS)
    try:
        instance.call(int).result(LIMIT)
        before = threads()
        for _ in range(3):  # the threads come back with the next batch
            assert instance.call(lambda: (work(), threads())).result(LIMIT) == (1 << 22, before + 1)
            assert fall_to(before)
    finally:
        instance.stop()


def test_error_of_a_load_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        and_end_team(lambda: 1 // 0)
