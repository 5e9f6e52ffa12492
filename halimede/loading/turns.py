"""Whose turn it is to load or unload a model: one after the other for one model, different models at once (R17).

Event-loop thread only.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from halimede.errors import Unavailable
from halimede.loading.slots import LoadSlots


class LoadTurns:
    """A model may ask for other models while it is loaded itself: it lends its slot while it waits for them."""

    def __init__(self, slots: LoadSlots) -> None:
        self._slots = slots
        self._last: dict[str, asyncio.Future[None]] = {}
        self._awaited: dict[str, Counter[str]] = {}
        """By each model that is being loaded, those that its load waits for."""

    @asynccontextmanager
    async def turn(self, name: str, asker: str | None = None) -> AsyncIterator[None]:
        """Waits for those before, in the order asked. Raises Unavailable where the asker's own load would wait for
        itself."""
        if not asker:
            async with self._in_line(name):
                yield
            return
        if name == asker or self._waits(name, asker):
            raise Unavailable(f"model '{asker}' is being loaded and cannot wait for model '{name}', which waits for it")
        awaited = self._awaited.setdefault(asker, Counter())
        awaited[name] += 1
        try:
            with self._slots.lent():
                async with self._in_line(name):
                    yield
        finally:
            awaited[name] -= 1

    def taken(self, name: str) -> bool:
        """Whether the model is being loaded or unloaded now."""
        return name in self._last

    def _waits(self, model: str, other: str) -> bool:
        """Whether the load of a model waits for the other one, by whatever way."""
        return any(
            count and (name == other or self._waits(name, other))
            for name, count in self._awaited.get(model, Counter()).items()
        )

    @asynccontextmanager
    async def _in_line(self, name: str) -> AsyncIterator[None]:
        before, mine = self._last.get(name), asyncio.get_running_loop().create_future()
        self._last[name] = mine
        try:
            if before is not None:
                await asyncio.wait([before])
            yield
        finally:
            mine.set_result(None)
            if self._last[name] is mine:
                del self._last[name]
