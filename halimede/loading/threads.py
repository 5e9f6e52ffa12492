"""The threads on which models come and go. Apart from each other, so that nothing waits for a model that loads for
long, or does not close.

Used on the event loop, which they keep free.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from halimede.platform.threads import pool

A = TypeVar("A")

LOOKING_THREADS = 2
"""For what is short but waits for the disk: repositories, configurations, files of a load."""
INSPECTION_THREADS = 8
"""For a look at one model, which takes long where it is copied from elsewhere, or its agents work."""
MOST_LOADS = 1000
"""How many threads open models, those included whose models wait for other loads."""
CLOSING_THREADS = 32
"""For what may hang: a version that does not close shall not keep the others from it."""


class LoadThreads:
    """Each kind has a pool; all of them raise what the work raises."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._loaders = pool(MOST_LOADS, "load")
        self._lookers = pool(LOOKING_THREADS, "look")
        self._inspectors = pool(INSPECTION_THREADS, "survey")
        self._closers = pool(CLOSING_THREADS, "close")
        self._killer = pool(1, "kill")

    async def look(self, work: Callable[..., A], *arguments: Any) -> A:
        """What is short."""
        return await self._on(self._lookers, work, *arguments)

    async def inspect_model(self, work: Callable[..., A], *arguments: Any) -> A:
        """What may have to fetch or to decrypt a model."""
        return await self._on(self._inspectors, work, *arguments)

    async def open(self, work: Callable[..., A], *arguments: Any) -> A:
        """What takes as long as a model takes."""
        return await self._on(self._loaders, work, *arguments)

    async def close(self, work: Callable[[], A]) -> A:
        """What may hang."""
        return await self._on(self._closers, work)

    def kill(self, work: Callable[[], A]) -> asyncio.Future[A]:
        """What ends that which hangs."""
        return self._loop.run_in_executor(self._killer, work)

    async def _on(self, threads: ThreadPoolExecutor, work: Callable[..., A], *arguments: Any) -> A:
        return await self._loop.run_in_executor(threads, partial(work, *arguments))

    def abandon(self) -> None:
        """They take nothing more; what they do now, they finish."""
        for threads in (self._loaders, self._lookers, self._inspectors, self._closers, self._killer):
            threads.shutdown(wait=False)
