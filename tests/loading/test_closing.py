"""Free memory is returned to the system after models were closed, once for many models."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from halimede.loading.closing import MEMORY_RETURN_SECONDS, MemoryReturn


class HandMovedLoop:
    """Time stands still until `advance`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> "HandMovedLoop":
        self.due.append((when, callback))
        return self

    def cancel(self) -> None:
        self.due.clear()

    def advance(self, seconds: float = 0.0) -> None:
        self.now += seconds
        ready = [callback for when, callback in self.due if when <= self.now]
        self.due = [each for each in self.due if each[0] > self.now]
        for callback in ready:
            callback()


def test_memory_is_returned_at_once_and_then_together_for_many_models() -> None:
    loop, given = HandMovedLoop(), list[float]()
    memory = MemoryReturn(cast(asyncio.AbstractEventLoop, cast(Any, loop)), lambda: given.append(loop.now))
    memory.request()
    loop.advance()
    assert given == [0.0]
    for _ in range(1000):
        memory.request()
        loop.advance(0.0001)
    assert given == [0.0]
    loop.advance(MEMORY_RETURN_SECONDS)
    assert len(given) == 2  # the last that went is not forgotten
    loop.advance(10 * MEMORY_RETURN_SECONDS)
    assert len(given) == 2


def test_memory_is_not_returned_after_the_end() -> None:
    loop, given = HandMovedLoop(), list[float]()
    memory = MemoryReturn(cast(asyncio.AbstractEventLoop, cast(Any, loop)), lambda: given.append(loop.now))
    memory.request()
    memory.end()
    memory.request()
    loop.advance(10 * MEMORY_RETURN_SECONDS)
    assert not given
