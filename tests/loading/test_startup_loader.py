"""Many loads at a start: few threads while they are quick, another for each that takes long, within the slots."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from halimede.errors import Invalid
from halimede.loading.slots import LoadSlots
from halimede.loading.startup_loader import TOGETHER, LoadTrain
from halimede.models.steps import Steps

LIMIT = 20.0
T = TypeVar("T")


def stepwise(work: Callable[[], T]) -> Steps[T]:
    """A load that does its work in its first step, and nothing in its last."""
    made = work()
    yield
    return made


class Rig:
    """A train on threads of its own, and loads that say when they begin and end when the test says so."""

    def __init__(self, slots: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.slots = LoadSlots(slots)
        self.threads = ThreadPoolExecutor(20)
        self.rides, self.most_rides = 0, 10**9
        self.begun: list[str] = []
        self._ends: dict[str, threading.Event] = {}
        self.train = LoadTrain(self.loop, self.slots, self._on_thread)

    async def _on_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        self.rides += 1
        if self.rides > self.most_rides:
            raise RuntimeError("can't start new thread")
        await self.loop.run_in_executor(self.threads, work, *arguments)

    def load(self, name: str) -> "asyncio.Task[str]":
        """One that takes until `end`."""
        ends = self._ends[name] = threading.Event()

        def work() -> str:
            self.begun.append(name)
            assert ends.wait(LIMIT)
            return name.upper()

        return self.loop.create_task(self.train.run(stepwise(work)))

    def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not is_so():
                await asyncio.sleep(0.001)


def with_rig(slots: int, test: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        rig = Rig(slots)
        try:
            await test(rig)
        finally:
            rig.end(*rig._ends)
            rig.threads.shutdown()

    asyncio.run(run())


def test_what_was_made_comes_back_to_whoever_asked() -> None:
    async def test(rig: Rig) -> None:
        async with asyncio.timeout(LIMIT):
            made = await asyncio.gather(*(rig.train.run(stepwise(lambda n=n: n * n)) for n in range(500)))  # type: ignore[misc]
        assert made == [n * n for n in range(500)]

    with_rig(4, test)


def test_what_a_load_raises_is_its_own() -> None:
    def fail() -> None:
        raise Invalid("no model")

    async def test(rig: Rig) -> None:
        works: list[Callable[[], Any]] = [lambda: 1, fail, lambda: 2]
        async with asyncio.timeout(LIMIT):
            made = await asyncio.gather(*(rig.train.run(stepwise(work)) for work in works), return_exceptions=True)
        assert (made[0], made[2]) == (1, 2)
        assert isinstance(made[1], Invalid)

    with_rig(4, test)


def test_loads_that_take_long_get_a_thread_each_within_the_slots() -> None:
    async def test(rig: Rig) -> None:
        names = ["a", "b", "c", "d", "e", "f"]
        loads = [rig.load(name) for name in names]
        await rig.until(lambda: len(rig.begun) == 4)
        for _ in range(20):  # several ticks, in which no more may begin
            await asyncio.sleep(0.005)
        assert rig.begun == names[:4]
        rig.end("b")
        await rig.until(lambda: len(rig.begun) == 5)
        assert await loads[1] == "B"
        rig.end(*names)
        async with asyncio.timeout(LIMIT):
            assert await asyncio.gather(*loads) == [name.upper() for name in names]

    with_rig(4, test)


def test_a_slot_that_is_lent_lets_another_load_begin() -> None:
    """As where a model that is being loaded waits for another one."""

    async def test(rig: Rig) -> None:
        asker, asked = rig.load("asker"), rig.load("asked")
        await rig.until(lambda: rig.begun == ["asker"])
        with rig.slots.lent():
            await rig.until(lambda: rig.begun == ["asker", "asked"])
            rig.end("asked")
            assert await asked == "ASKED"
        rig.end("asker")
        assert await asker == "ASKER"

    with_rig(1, test)


def test_quick_loads_go_on_beside_those_that_take_long() -> None:
    async def test(rig: Rig) -> None:
        long = [rig.load(name) for name in ("a", "b")]
        await rig.until(lambda: len(rig.begun) == 2)
        async with asyncio.timeout(LIMIT):
            assert await asyncio.gather(*(rig.train.run(stepwise(lambda: 1)) for _ in range(50))) == [1] * 50
        assert not any(load.done() for load in long)

    with_rig(3, test)


def test_few_threads_do_what_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.loading.startup_loader.monotonic", lambda: 0.0)  # no load takes any time

    async def test(rig: Rig) -> None:
        doing, most = 0, 0
        lock = threading.Lock()

        def work() -> None:
            nonlocal doing, most
            with lock:
                doing += 1
                most = max(most, doing)
            with lock:
                doing -= 1

        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*(rig.train.run(stepwise(work)) for _ in range(2000)))
        assert most == 1

    with_rig(20, test)


def test_it_goes_again_after_it_stood_still() -> None:
    async def test(rig: Rig) -> None:
        async with asyncio.timeout(LIMIT):
            assert await rig.train.run(stepwise(lambda: 1)) == 1
            await rig.until(lambda: rig.train._timer is None)
            assert await rig.train.run(stepwise(lambda: 2)) == 2
        assert rig.rides == 2

    with_rig(1, test)


def test_nobody_waits_for_threads_that_are_gone() -> None:
    async def test(rig: Rig) -> None:
        rig.threads.shutdown()
        async with asyncio.timeout(LIMIT):
            made = await asyncio.gather(*(rig.train.run(stepwise(lambda: 1)) for _ in range(5)), return_exceptions=True)
        assert [type(each) for each in made] == [RuntimeError] * 5

    with_rig(2, test)


def test_a_second_thread_that_the_system_refuses_is_done_without() -> None:
    async def test(rig: Rig) -> None:
        rig.most_rides = 1
        long, other = rig.load("long"), rig.load("other")
        await rig.until(lambda: rig.rides > 2)
        assert rig.begun == ["long"]
        rig.end("long", "other")
        async with asyncio.timeout(LIMIT):
            assert (await long, await other) == ("LONG", "OTHER")

    with_rig(4, test)


def test_one_who_does_not_wait_any_more_holds_nobody_up() -> None:
    async def test(rig: Rig) -> None:
        gone, other = rig.load("gone"), rig.load("other")
        await rig.until(lambda: rig.begun == ["gone"])
        gone.cancel()
        rig.end("gone", "other")
        async with asyncio.timeout(LIMIT):
            assert await other == "OTHER"
        with pytest.raises(asyncio.CancelledError):
            await gone

    with_rig(1, test)


def test_the_same_step_of_many_loads_comes_before_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.loading.startup_loader.monotonic", lambda: 0.0)  # no step holds the thread
    count = TOGETHER + 2
    taken: list[tuple[int, int]] = []

    def steps(load: int) -> Steps[None]:
        for step in range(3):
            taken.append((step, load))
            yield

    async def test(rig: Rig) -> None:
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*(rig.train.run(steps(load)) for load in range(count)))

    with_rig(1, test)
    first, rest = range(TOGETHER), range(TOGETHER, count)
    assert taken == [(step, load) for loads in (first, rest) for step in range(3) for load in loads]


def test_loads_that_were_begun_go_on_while_one_of_them_takes_long() -> None:
    async def test(rig: Rig) -> None:
        ends = threading.Event()

        def steps(takes_long: bool) -> Steps[bool]:
            yield
            if takes_long:
                assert ends.wait(LIMIT)
            yield
            return takes_long

        loads = [rig.loop.create_task(rig.train.run(steps(each == 0))) for each in range(5)]
        async with asyncio.timeout(LIMIT):
            assert await asyncio.gather(*loads[1:]) == [False] * 4
            assert not loads[0].done()
            ends.set()
            assert await loads[0]

    with_rig(2, test)
