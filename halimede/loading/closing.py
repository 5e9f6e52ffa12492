"""Closes versions and instances that serve no longer, and returns their memory to the system.

Decides on the event loop; what may hang runs on closing threads, which never keep the loop or each other waiting.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from halimede.backends.api import Instance
from halimede.loading.concurrency import LoadThreads
from halimede.loading.uploads import Uploads
from halimede.models.loader import LoadedVersion
from halimede.models.version import ModelVersion
from halimede.platform.memory import give_memory_back

log = logging.getLogger(__name__)

MEMORY_RETURN_SECONDS = 1.0
"""Least time between two returns of memory: if many models go, one call serves all of them."""


class Closing:
    """`gone` is called on the event loop when a version that served is closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: LoadThreads,
        uploads: Uploads,
        gone: Callable[[ModelVersion], None],
    ) -> None:
        self._loop = loop
        self._threads = threads
        self._uploads = uploads
        self._gone = gone
        self._memory = MemoryReturn(loop, lambda: self._begin(threads.close(give_memory_back)))
        self.under_way: set[asyncio.Future[None]] = set()
        """What is being closed."""

    def close_served(self, version: ModelVersion) -> None:
        """Closes a version that served and that nothing holds any more, after its last batch."""
        # The runner ends on the loop before its instances are closed on a thread. A version that never served has none.
        version.close()
        self._retire_slots(version.loaded)
        self._begin(self._close_version(version.loaded, version.close_model, version))

    def close_unpublished(self, loaded: LoadedVersion) -> None:
        """Closes a version that was opened and does not come into service."""
        self._retire_slots(loaded)
        self._begin(self._close_version(loaded, loaded.close, None))

    def close_instance(self, instance: Instance) -> None:
        """Closes a removed instance of a version that serves on."""
        self._begin(self._close_instance(instance))

    def end(self) -> None:
        """No memory is returned any more: the process ends."""
        self._memory.end()

    @staticmethod
    def _retire_slots(loaded: LoadedVersion) -> None:
        if loaded.limiter_slots is not None:
            loaded.limiter_slots.retire()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def _close_version(
        self, loaded: LoadedVersion, close: Callable[[], None], served: ModelVersion | None
    ) -> None:
        if served is not None:
            await self._batches_end(served)
        # If the server ends and its threads are gone, this raises: the version is then not reported as unloaded.
        await self._threads.close(close)
        if served is not None:
            self._gone(served)
            served.forget()
        self._memory.request()
        # Not before: an instance keeps its resources until its last batch has ended, which may be after the last
        # response (S100).
        if loaded.limiter_slots is not None:
            loaded.limiter_slots.close()
        await self._uploads.version_closed(loaded)

    async def _batches_end(self, version: ModelVersion) -> None:
        """Returns when no instance has a batch: a backend may free in `close` what `execute` uses."""
        ended = self._loop.create_future()
        # The server may end first, and with it this task and its future.
        version.when_batches_end(lambda: None if ended.done() else ended.set_result(None))
        await ended

    async def _close_instance(self, instance: Instance) -> None:
        try:
            await self._threads.close(instance.close)
        except Exception:
            log.exception("unexpected error while an instance was closed; what it held may stay in use")


class MemoryReturn:
    """Calls `begin` after a request, at most once in `MEMORY_RETURN_SECONDS`.

    `begin` must not block: the C library keeps every thread that asks for memory waiting meanwhile.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, begin: Callable[[], None]) -> None:
        self._loop = loop
        self._begin = begin
        self._earliest = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def request(self) -> None:
        """A model was closed."""
        if self._timer is None and not self._ended:
            self._timer = self._loop.call_at(max(self._earliest, self._loop.time()), self._due)

    def _due(self) -> None:
        self._timer = None
        self._earliest = self._loop.time() + MEMORY_RETURN_SECONDS
        self._begin()

    def end(self) -> None:
        """Ignores all further requests."""
        # The memory goes with the process.
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
