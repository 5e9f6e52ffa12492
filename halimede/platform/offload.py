"""A few threads for work that would block the event loop. The results come back on the loop."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from halimede.errors import Error, Internal

log = logging.getLogger(__name__)

A = TypeVar("A")


class OffloadPool:
    """Called on the event loop, it runs `work` on a thread, then `done` on the loop with its result or with an Error:
    the one that `work` raised, or Internal for any other exception.

    The server has two pools, one for HTTP (`serving.ports`) and one for the engine. gRPC uses asyncio's default
    executor. Large work may take seconds. It leaves one thread to small work, so that this never waits for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = 3) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, "offload")
        self._large: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._free_for_large = max(1, threads - 1)

    def __call__(self, work: Callable[[], A], done: Callable[[A | Error], None], large: bool = False) -> None:
        if large:
            self._large.append((work, done))
            self._begin_large()
        else:
            self._pool.submit(self._run, work, done)

    def _begin_large(self) -> None:
        if self._large and self._free_for_large:
            self._free_for_large -= 1
            work, done = self._large.popleft()
            self._pool.submit(self._run, work, partial(self._large_ended, done))

    def _large_ended(self, done: Callable[[A | Error], None], result: A | Error) -> None:
        self._free_for_large += 1
        self._begin_large()
        done(result)

    def close(self, wait: bool = True) -> None:
        """Takes no more work, drops what has not begun, and waits for work that runs, unless `wait` is False
        (blocks)."""
        self._large.clear()
        self._pool.shutdown(wait, cancel_futures=True)

    def _run(self, work: Callable[[], A], done: Callable[[A | Error], None]) -> None:
        result: A | Error
        try:
            result = work()
        except Error as error:
            result = error.bare()
        except Exception as error:
            log.exception("offloaded work failed; its caller gets the error")
            result = Internal(f"{type(error).__name__}: {error}")
        self._loop.call_soon_threadsafe(done, result)
