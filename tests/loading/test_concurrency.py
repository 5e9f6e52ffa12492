"""How many loads run at once, and loads of one model one after the other."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest

from halimede.errors import Unavailable
from halimede.loading.concurrency import LoadSlots, ModelLocks

LIMIT = 10.0


class Loads:
    """Loads that say when they begin, and end when the test says so."""

    def __init__(self, count: int) -> None:
        self.slots = LoadSlots(count)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, *names: str, client: str = "") -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._run(name, client))
        await self.settle()

    async def _run(self, name: str, client: str) -> None:
        async with self.slots.acquired(name, client):
            self.begun.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.settle()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await self.settle()

    @staticmethod
    async def settle() -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def play(count: int, scene: Callable[[Loads], Awaitable[None]]) -> None:
    async def played() -> None:
        await asyncio.wait_for(scene(Loads(count)), LIMIT)

    asyncio.run(played())


def test_slots_are_given_in_the_order_of_requests() -> None:
    async def scene(loads: Loads) -> None:
        await loads.begin("a", "b", "c", "d")
        assert loads.begun == ["a", "b"]
        await loads.end("b")
        assert loads.begun == ["a", "b", "c"]
        await loads.end("a")
        assert loads.begun == ["a", "b", "c", "d"]

    play(2, scene)


def test_slot_is_given_up_while_its_load_waits_for_another_one() -> None:
    async def scene(loads: Loads) -> None:
        await loads.begin("a", "b", "c")
        with loads.slots.given_up("a"):
            await loads.settle()
            assert loads.begun == ["a", "b"]
        await loads.end("b")
        assert loads.begun == ["a", "b"], "the slot went back to the load that gave it up"
        await loads.end("a")
        assert loads.begun == ["a", "b", "c"]

    play(1, scene)


def test_slots_are_not_more_while_an_ensemble_waits_for_its_member() -> None:
    """An ensemble has no slot when it waits, so it has none to give up."""

    async def scene(loads: Loads) -> None:
        await loads.begin("a", "b")
        async with ModelLocks(loads.slots).locked("member", asker="ensemble"):
            await loads.settle()
            assert loads.begun == ["a"]
        await loads.begin("c")
        await loads.end("a")
        assert loads.begun == ["a", "b"]

    play(1, scene)


def test_slot_is_given_up_once_by_a_load_that_waits_for_two() -> None:
    """Two instances of a model load other models while they start."""

    async def scene(loads: Loads) -> None:
        await loads.begin("a", "b", "c")
        with loads.slots.given_up("a"):
            with loads.slots.given_up("a"):
                await loads.settle()
                assert loads.begun == ["a", "b"]
            await loads.end("b")
            assert loads.begun == ["a", "b", "c"], "it still waits for the other one"
        await loads.begin("d")
        await loads.end("c")
        assert loads.begun == ["a", "b", "c"]
        await loads.end("a")
        assert loads.begun == ["a", "b", "c", "d"]

    play(1, scene)


def test_slot_of_a_load_that_fails_while_it_waits_is_free_once() -> None:
    async def scene(loads: Loads) -> None:
        await loads.begin("a", "b", "c")
        with loads.slots.given_up("a"):
            await loads.settle()
            await loads.end("a")
            assert loads.begun == ["a", "b"]
        assert loads.begun == ["a", "b"]
        await loads.end("b")
        assert loads.begun == ["a", "b", "c"]

    play(1, scene)


def test_slot_of_a_load_that_is_cancelled_as_it_gets_it_goes_to_the_next() -> None:
    async def scene(loads: Loads) -> None:
        await loads.begin("a", "b", "c")
        loads._ends["a"].set()
        await asyncio.sleep(0)
        await loads.cancel("b")
        assert loads.begun[-1] == "c"

    play(1, scene)


def test_slot_is_not_given_to_a_load_that_was_cancelled() -> None:
    async def scene(loads: Loads) -> None:
        await loads.begin("a", "b", "c")
        await loads.cancel("b")
        await loads.end("a")
        assert loads.begun == ["a", "c"]

    play(1, scene)


def test_client_with_all_slots_does_not_keep_another_from_loading() -> None:
    async def scene(loads: Loads) -> None:
        await loads.begin("a", "b", "c", client="greedy")
        await loads.begin("x", "y", client="other")
        assert loads.begun == ["a", "b", "x"]
        await loads.begin("p", client="third")
        assert loads.begun == ["a", "b", "x"], "there is one such slot"
        await loads.end("x")
        assert loads.begun == ["a", "b", "x", "y"]

    play(2, scene)


def test_free_slot_goes_to_the_client_with_the_fewest_loads() -> None:
    async def scene(loads: Loads) -> None:
        await loads.begin("a", "b", "c", client="greedy")
        await loads.begin("x", "y", client="other")
        await loads.end("a")
        assert loads.begun == ["a", "b", "x"], "the slot beyond the two is not free again"
        await loads.end("b")
        assert loads.begun == ["a", "b", "x", "c"]
        await loads.end("c")
        assert loads.begun == ["a", "b", "x", "c", "y"]

    play(2, scene)


def test_slot_is_found_in_the_same_time_however_many_loads_wait() -> None:
    """Each load that comes looks for a slot, so thousands of loads in one turn would hold the loop."""

    def steps_of(waiting: int) -> int:
        steps = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal steps
            steps += 1

        async def scene(loads: Loads) -> None:
            await loads.begin(*map(str, range(waiting)))
            sys.setprofile(count)
            await loads.begin("last")
            sys.setprofile(None)
            await loads.end("0")
            assert loads.begun == ["0", "1"]

        play(1, scene)
        return steps

    assert steps_of(1000) <= steps_of(10) + 20


class Locked:
    """Holders of model locks: each logs when it gets its lock, and holds it until the test says so."""

    def __init__(self) -> None:
        self.locks = ModelLocks(LoadSlots(4))
        self.log: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, who: str, model: str, asker: str | None = None) -> None:
        self._ends[who] = asyncio.Event()
        self._tasks[who] = asyncio.create_task(self._hold(who, model, asker))
        await Loads.settle()

    async def _hold(self, who: str, model: str, asker: str | None) -> None:
        async with self.locks.locked(model, asker):
            self.log.append(who)
            await self._ends[who].wait()

    async def end(self, who: str) -> None:
        self._ends[who].set()
        await Loads.settle()

    async def cancel(self, who: str) -> None:
        self._tasks[who].cancel()
        await Loads.settle()


def test_lock_of_a_model_is_held_by_one_load_after_the_other() -> None:
    async def scene() -> None:
        locked = Locked()
        await locked.begin("first", "m")
        await locked.begin("second", "m")
        await locked.begin("third", "m")
        await locked.begin("other", "n")
        assert locked.log == ["first", "other"]
        await locked.cancel("second")
        assert locked.log == ["first", "other"]
        await locked.end("first")
        assert locked.log == ["first", "other", "third"]

    asyncio.run(asyncio.wait_for(scene(), LIMIT))


def test_lock_is_refused_to_a_load_that_would_wait_for_itself() -> None:
    async def scene() -> None:
        locked = Locked()
        for model in "abc":
            await locked.begin(f"load of {model}", model)
        await locked.begin("a needs b", "b", asker="a")
        await locked.begin("b needs c", "c", asker="b")
        for model, asker in (("a", "c"), ("a", "b"), ("a", "a")):
            with pytest.raises(
                Unavailable, match=f"model '{asker}' is being loaded and cannot wait for model '{model}'"
            ):
                async with locked.locks.locked(model, asker):
                    pass
        await locked.end("load of c")
        await locked.end("b needs c")
        await locked.begin("c needs a", "a", asker="c")  # b does not wait for c any more
        await locked.end("load of a")
        assert locked.log[-1] == "c needs a"

    asyncio.run(asyncio.wait_for(scene(), LIMIT))
