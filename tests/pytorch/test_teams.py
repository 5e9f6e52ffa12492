"""Loads, idle instances and the event loop keep no threads of OpenMP."""

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from halimede.backends.api import BackendContext
from halimede.backends.pytorch.backend import PyTorchBackend
from halimede.backends.pytorch.teams import IDLE_SECONDS, and_end_team, end_team
from halimede.platform.wakeable_thread import WakeableThread

LIMIT = 30.0
"""Seconds for threads that end to be gone."""


def work() -> float:
    """The sum of roots of so large a tensor that torch computes it on all cores."""
    return float(torch.ones(1 << 22).sqrt().sum())


def threads() -> set[str]:
    """The threads of the process. Some of another test may still be about to end."""
    return {each.name for each in Path("/proc/self/task").iterdir()}


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Models that were loaded before may have set another number for the whole process."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def helpers_of_work() -> set[str]:
    """The threads that some work of the calling thread starts and leaves behind."""
    before = threads()
    assert work() == 1 << 22
    return threads() - before


def all_end(those: set[str]) -> bool:
    """Whether these threads end soon."""
    limit = time.monotonic() + LIMIT
    while those & threads() and time.monotonic() < limit:
        time.sleep(0.01)
    return not those & threads()


more_than_one_core = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="with one core torch starts no threads"
)


@more_than_one_core
@pytest.mark.usefixtures("two_threads")
def test_threads_of_a_load_end_with_it() -> None:
    with ThreadPoolExecutor(1) as load_thread:
        helpers = load_thread.submit(and_end_team, helpers_of_work).result()
        assert helpers, "torch divides no work, so this test shows nothing"
        assert all_end(helpers)


@more_than_one_core
@pytest.mark.usefixtures("two_threads")
def test_idle_instance_keeps_no_threads() -> None:
    instance = WakeableThread("instance", end_team, IDLE_SECONDS)
    try:
        for _ in range(3):  # the threads come back with the next batch
            helpers = instance.call(helpers_of_work).result(LIMIT)
            assert len(helpers) == 1
            assert all_end(helpers)
    finally:
        instance.stop()


@more_than_one_core
@pytest.mark.usefixtures("two_threads")
def test_event_loop_computes_without_helpers() -> None:
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as loop_thread, ThreadPoolExecutor(1) as load_thread:
        running = loop_thread.submit(loop.run_forever)
        try:
            load_thread.submit(PyTorchBackend, BackendContext(loop)).result(LIMIT)
            load_thread.submit(torch.set_num_threads, 2).result(LIMIT)  # as a model that is loaded later
            assert asyncio.run_coroutine_threadsafe(work_on_loop(), loop).result(LIMIT) == set()
            assert len(load_thread.submit(helpers_of_work).result(LIMIT)) == 1
        finally:
            loop.call_soon_threadsafe(loop.stop)
            running.result(LIMIT)
    loop.close()


async def work_on_loop() -> set[str]:
    return helpers_of_work()


def test_error_of_a_load_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        and_end_team(lambda: 1 // 0)
