"""Free memory is given back after models were closed, and not a thousand times for a thousand models."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from halimede.loading.memory_return import SECONDS, MemoryReturn


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


def test_first_is_at_once_and_those_after_it_together() -> None:
    loop, given = HandMovedLoop(), list[float]()
    memory = MemoryReturn(cast(asyncio.AbstractEventLoop, cast(Any, loop)), lambda: given.append(loop.now))
    memory.ask()
    loop.advance()
    assert given == [0.0]
    for _ in range(1000):
        memory.ask()
        loop.advance(0.0001)
    assert given == [0.0]
    loop.advance(SECONDS)
    assert len(given) == 2  # the last that went is not forgotten
    loop.advance(10 * SECONDS)
    assert len(given) == 2


def test_nothing_after_the_end() -> None:
    loop, given = HandMovedLoop(), list[float]()
    memory = MemoryReturn(cast(asyncio.AbstractEventLoop, cast(Any, loop)), lambda: given.append(loop.now))
    memory.ask()
    memory.end()
    memory.ask()
    loop.advance(10 * SECONDS)
    assert not given
