"""Many loads at the start: one thread while they are quick, another for each that takes long, within the slots.

The clock is moved by hand, so a job takes long only if the test says so. Jobs run on real threads.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from halimede.errors import Invalid
from halimede.loading.concurrency import LoadSlots
from halimede.loading.startup_loader import LONG_JOB_SECONDS, StartupLoader

LIMIT = 20.0


class Rig:
    """A loader on threads of its own, and jobs that begin and end when the test says so."""

    def __init__(self, slots: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.slots = LoadSlots(slots)
        self.threads = ThreadPoolExecutor(20)
        self.workers, self.most_workers = 0, 10**9
        self.begun: list[str] = []
        self.now = 0.0
        self._ends: dict[str, threading.Event] = {}
        self._changed = asyncio.Condition()
        self.loader = StartupLoader(self.loop, self.slots, self._on_thread, lambda: self.now)

    async def _on_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        self.workers += 1
        await self._notify()
        if self.workers > self.most_workers:
            raise RuntimeError("can't start new thread")
        await self.loop.run_in_executor(self.threads, work, *arguments)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def load(self, name: str) -> "asyncio.Task[str]":
        """A job that takes until `end`."""
        ends = self._ends[name] = threading.Event()

        def work() -> str:
            self.begun.append(name)
            asyncio.run_coroutine_threadsafe(self._notify(), self.loop)
            assert ends.wait(LIMIT)
            return name.upper()

        return self.loop.create_task(self.loader.run(work))

    def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()

    def hold(self) -> None:
        """All jobs that have begun take long from now on."""
        self.now += 2 * LONG_JOB_SECONDS

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT), self._changed:
            await self._changed.wait_for(is_so)

    async def begin_one_after_the_other(self, *names: str) -> "list[asyncio.Task[str]]":
        """Jobs each of which takes long."""
        loads = [self.load(name) for name in names]
        for count in range(1, len(names) + 1):
            await self.until(lambda count=count: len(self.begun) == count)  # type: ignore[misc]
            self.hold()
        return loads

    async def turns(self) -> None:
        """Nothing that could begin now has not."""
        for _ in range(10):
            self.loader._tick()
            await asyncio.sleep(0)


def with_rig(slots: int, test: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        rig = Rig(slots)
        try:
            async with asyncio.timeout(LIMIT):
                await test(rig)
        finally:
            rig.end(*rig._ends)
            rig.threads.shutdown()

    asyncio.run(run())


def test_results_come_back_to_the_callers() -> None:
    async def test(rig: Rig) -> None:
        results = await asyncio.gather(*(rig.loader.run(lambda n=n: n * n) for n in range(500)))  # type: ignore[misc]
        assert results == [n * n for n in range(500)]

    with_rig(4, test)


def test_error_of_a_job_reaches_its_caller_only() -> None:
    def fail() -> None:
        raise Invalid("no model")

    async def test(rig: Rig) -> None:
        works: list[Callable[[], Any]] = [lambda: 1, fail, lambda: 2]
        results = await asyncio.gather(*(rig.loader.run(work) for work in works), return_exceptions=True)
        assert (results[0], results[2]) == (1, 2)
        assert isinstance(results[1], Invalid)

    with_rig(4, test)


def test_long_jobs_get_a_thread_each_within_the_slots() -> None:
    async def test(rig: Rig) -> None:
        loads = await rig.begin_one_after_the_other("a", "b", "c")
        more = [rig.load("d"), rig.load("e")]
        await rig.turns()
        assert rig.begun == ["a", "b", "c"]
        rig.end("b")
        await rig.until(lambda: len(rig.begun) == 4)
        assert await loads[1] == "B"
        rig.end("a", "c", "d", "e")
        assert await asyncio.gather(*loads, *more) == ["A", "B", "C", "D", "E"]

    with_rig(3, test)


def test_quick_jobs_go_on_beside_long_ones() -> None:
    async def test(rig: Rig) -> None:
        long = await rig.begin_one_after_the_other("a", "b")
        assert await asyncio.gather(*(rig.loader.run(lambda: 1) for _ in range(50))) == [1] * 50
        assert not any(load.done() for load in long)

    with_rig(3, test)


def test_one_thread_does_all_jobs_that_are_quick() -> None:
    async def test(rig: Rig) -> None:
        threads = set(await asyncio.gather(*(rig.loader.run(threading.get_ident) for _ in range(2000))))
        assert (len(threads), rig.workers) == (1, 1)

    with_rig(20, test)


def test_thread_that_joined_leaves_once_the_first_one_is_not_held() -> None:
    async def test(rig: Rig) -> None:
        [first] = await rig.begin_one_after_the_other("first")
        second, third, fourth = rig.load("second"), rig.load("third"), rig.load("fourth")
        await rig.until(lambda: rig.begun == ["first", "second"])
        rig.end("first")
        assert await first == "FIRST"
        await rig.until(lambda: rig.begun == ["first", "second", "third"])
        rig.end("second")
        assert await second == "SECOND"
        await rig.turns()
        assert rig.begun == ["first", "second", "third"], "the first thread, which is not held, does the fourth job"
        rig.end("third", "fourth")
        assert (await third, await fourth) == ("THIRD", "FOURTH")
        assert rig.workers == 2

    with_rig(3, test)


def test_loader_starts_again_after_its_queue_was_empty() -> None:
    async def test(rig: Rig) -> None:
        assert await rig.loader.run(lambda: 1) == 1
        while rig.loader._timer is not None:
            await asyncio.sleep(0)
        assert await rig.loader.run(lambda: 2) == 2
        assert rig.workers == 2

    with_rig(1, test)


def test_jobs_fail_if_the_threads_are_gone() -> None:
    async def test(rig: Rig) -> None:
        rig.threads.shutdown()
        results = await asyncio.gather(*(rig.loader.run(lambda: 1) for _ in range(5)), return_exceptions=True)
        assert [type(each) for each in results] == [RuntimeError] * 5

    with_rig(2, test)


def test_jobs_wait_for_the_first_thread_if_the_system_refuses_a_second_one() -> None:
    async def test(rig: Rig) -> None:
        rig.most_workers = 1
        [long] = await rig.begin_one_after_the_other("long")
        other = rig.load("other")
        await rig.until(lambda: rig.workers > 2)
        assert rig.begun == ["long"]
        rig.end("long", "other")
        assert (await long, await other) == ("LONG", "OTHER")

    with_rig(4, test)


def test_cancelled_caller_holds_up_no_other_job() -> None:
    async def test(rig: Rig) -> None:
        gone, other = rig.load("gone"), rig.load("other")
        await rig.until(lambda: rig.begun == ["gone"])
        gone.cancel()
        rig.end("gone", "other")
        assert await other == "OTHER"
        with pytest.raises(asyncio.CancelledError):
            await gone

    with_rig(1, test)
