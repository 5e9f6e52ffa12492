"""Worker threads for a cache store that may be slow: they look up and insert in batches, off the event loop.

All threads take from one queue, and each has a store (a connection) of its own. They know keys and bytes, and nothing
of requests. Results go back to the event loop, one call per batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

from halimede.cache.api import EventLoop, OnFound

MAX_TASKS_PER_BATCH = 64
"""Tasks that a thread takes from the queue at once, for one round trip to the store."""


@dataclass(slots=True, eq=False)
class CacheTask:
    """A lookup, or an insertion if it has an `entry`.

    The event loop sets `on_found` to None when the lookup's request no longer waits for it.
    """

    key: bytes
    entry: bytes | None = None
    on_found: OnFound | None = None

    @property
    def abandoned(self) -> bool:
        """Whether this is a lookup whose request went on without it."""
        return self.entry is None and self.on_found is None


Result = bytes | Exception | None
"""What became of a task: the entry that a lookup found, None for nothing and for an insertion, or why it failed."""


class Store(Protocol):
    """A connection to the store. Used by one worker thread only."""

    def run(self, tasks: Sequence[CacheTask]) -> Sequence[Result]:
        """The result of each task. Blocks, within the timeouts of the connection. Raises Exception if the store cannot
        be reached."""
        ...

    def close(self) -> None: ...


OnDone = Callable[[Sequence[CacheTask], Sequence[Result]], None]
"""Called with the tasks of a batch and their results."""


class StoreThreads:
    """`number` worker threads. They call `open_store` once each, and `on_done` on the event loop."""

    def __init__(self, number: int, open_store: Callable[[], Store], loop: EventLoop, on_done: OnDone) -> None:
        self._queue: SimpleQueue[CacheTask | None] = SimpleQueue()
        self._open_store = open_store
        self._loop = loop
        self._on_done = on_done
        self._number = number
        for index in range(number):
            Thread(target=self._run, name=f"cache #{index}", daemon=True).start()

    def submit(self, task: CacheTask) -> None:
        self._queue.put(task)

    def close(self) -> None:
        """The threads end after the tasks that were submitted. Does not wait for them."""
        for _ in range(self._number):
            self._queue.put(None)

    def _run(self) -> None:
        store = self._open_store()
        is_last = False
        while not is_last:
            tasks, is_last = self._next_batch()
            # After an outage the queue is full of these: running them would delay the lookups that count.
            tasks = [task for task in tasks if not task.abandoned]
            if tasks:
                self._run_batch(store, tasks)
        store.close()

    def _next_batch(self) -> tuple[list[CacheTask], bool]:
        """The queued tasks, and whether this batch is the thread's last. Blocks until there is a task."""
        tasks: list[CacheTask] = []
        task = self._queue.get()
        while task is not None:
            tasks.append(task)
            if len(tasks) == MAX_TASKS_PER_BATCH:
                return tasks, False
            try:
                task = self._queue.get_nowait()
            except Empty:
                return tasks, False
        return tasks, True

    def _run_batch(self, store: Store, tasks: Sequence[CacheTask]) -> None:
        results: Sequence[Result]
        try:
            results = store.run(tasks)
        except Exception as error:  # a failed connection fails each task of the batch
            results = [error] * len(tasks)
        try:
            self._loop.call_soon_threadsafe(self._on_done, tasks, results)
        except RuntimeError:
            """The loop is closed: the server has ended."""
