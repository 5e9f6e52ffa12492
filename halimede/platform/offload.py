"""A few threads for work that would block the event loop. The results come back on the loop."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from halimede.errors import Error, Internal

log = logging.getLogger(__name__)

A = TypeVar("A")


class OffloadPool:
    """Called on the event loop, it runs `work` on a thread, then `done` on the loop with its result or with an Error:
    the one that `work` raised, or Internal for any other exception.

    The server has two pools, one for HTTP (`serving.ports`) and one for the engine. gRPC uses asyncio's default
    executor.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = 2) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, "offload")

    def __call__(self, work: Callable[[], A], done: Callable[[A | Error], None]) -> None:
        self._pool.submit(self._run, work, done)

    def close(self, wait: bool = True) -> None:
        """Takes no more work, drops what has not begun, and waits for work that runs, unless `wait` is False
        (blocks)."""
        self._pool.shutdown(wait, cancel_futures=True)

    def _run(self, work: Callable[[], A], done: Callable[[A | Error], None]) -> None:
        result: A | Error
        try:
            result = work()
        except Error as error:
            result = error
        except Exception as error:
            log.exception("offloaded work failed; its caller gets the error")
            result = Internal(f"{type(error).__name__}: {error}")
        self._loop.call_soon_threadsafe(done, result)
