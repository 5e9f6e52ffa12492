"""How many loads are at work at once, and what lending a place does."""

import asyncio
from collections.abc import Awaitable, Callable

from halimede.loading.slots import LoadSlots

LIMIT = 10.0


class Loads:
    """Loads that say when they begin, and end when the test says so."""

    def __init__(self, count: int) -> None:
        self.slots = LoadSlots(count)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, *names: str) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._run(name))
        await self.settle()

    async def _run(self, name: str) -> None:
        async with self.slots.taken():
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


def test_loads_wait_for_a_place_in_their_order() -> None:
    async def scene(loads: Loads) -> None:
        await loads.begin("a", "b", "c", "d")
        assert loads.begun == ["a", "b"]
        await loads.end("b")
        assert loads.begun == ["a", "b", "c"]
        await loads.end("a")
        assert loads.begun == ["a", "b", "c", "d"]

    play(2, scene)


def test_load_that_waits_for_another_one_lends_its_place() -> None:
    async def scene(loads: Loads) -> None:
        await loads.begin("a", "b", "c")
        with loads.slots.lent():
            await loads.settle()
            assert loads.begun == ["a", "b"]
        await loads.end("b")
        assert loads.begun == ["a", "b"], "the place went back to the one that lent it"
        await loads.end("a")
        assert loads.begun == ["a", "b", "c"]

    play(1, scene)


def test_load_that_is_given_up_in_line_takes_no_place() -> None:
    async def scene(loads: Loads) -> None:
        await loads.begin("a", "b", "c")
        await loads.cancel("b")
        await loads.end("a")
        assert loads.begun == ["a", "c"]

    play(1, scene)
