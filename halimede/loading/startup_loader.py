"""The loads at the start of the server: a queue of jobs and one thread that does them.

A job inspects a model and opens it. These take the ordinary path instead (`ModelLoads.load_found`): all models in poll
mode, models in a cloud, and models with agents. An ensemble is only inspected here, because its members come first.

One thread is quicker than several here. Most of the time of a small model's load is Python code, which only one thread
can run at a time; more threads only take the interpreter lock from each other. But a load that waits (for a process, a
GPU, a large file) must not hold up the others: another thread joins while each of them has been at its job for long.
Results reach the event loop together every few milliseconds, so that it wakes up less often.

Everything runs on the event loop, except `_work` and what it calls.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from halimede.loading.concurrency import LoadSlots

A = TypeVar("A")

TICK_SECONDS = 0.01
"""Time between two deliveries of results to the event loop."""
LONG_JOB_SECONDS = 0.02
"""A job that takes longer holds its thread: it waits for something, or computes outside of Python."""


@dataclass(slots=True, eq=False)
class Job:
    """A load. `result` or `error` is set by the thread that did it."""

    work: Callable[[], Any]
    done: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Worker:
    """A thread that does jobs; `since` is the time when it took its last one."""

    since: float

    def is_held(self, now: float) -> bool:
        return now - self.since > LONG_JOB_SECONDS


class StartupLoader:
    """Each worker thread holds one of the `slots` while it does jobs (C17). `run_on_thread` runs a worker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slots: LoadSlots,
        run_on_thread: Callable[[Callable[[_Worker], None], _Worker], Awaitable[None]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._loop = loop
        self._slots = slots
        self._run_on_thread = run_on_thread
        self._clock = clock
        self._queue: deque[Job] = deque()
        self._finished: deque[Job] = deque()
        self._workers: list[_Worker] = []
        """Also read on the threads."""
        self._joining = False
        """Whether a new worker waits for a slot."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None

    async def run(self, work: Callable[[], A]) -> A:
        """Does the work on a thread, after the jobs before it; returns or raises what it does."""
        job = Job(work, self._loop.create_future())
        self._queue.append(job)
        if self._timer is None:
            self._timer = self._loop.call_soon(self._tick)
        result: A = await job.done
        return result

    def _tick(self) -> None:
        self._deliver()
        # At the first tick there is no worker, so all of them are held.
        if self._queue and not self._joining and self._all_held():
            self._joining = True
            task = self._loop.create_task(self._join())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        busy = self._queue or self._workers or self._finished
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick) if busy else None

    def _all_held(self) -> bool:
        now = self._clock()
        return all(worker.is_held(now) for worker in self._workers)

    def _is_redundant(self, worker: _Worker) -> bool:
        """Whether an older worker is not held any more. Called on the threads."""
        now = self._clock()
        for other in tuple(self._workers):
            # Only older workers count, so that the oldest never leaves.
            if other is worker:
                return False
            if not other.is_held(now):
                return True
        return False

    async def _join(self) -> None:
        """Waits for a slot, and adds a worker."""
        async with self._slots.acquired():
            self._joining = False
            worker = _Worker(self._clock())
            self._workers.append(worker)
            try:
                await self._run_on_thread(self._work, worker)
            except Exception as error:
                # The system refuses a thread, or the pool is shut down. If other workers are left they go on.
                if len(self._workers) == 1:
                    self._fail_all(error)
            finally:
                self._workers.remove(worker)
                self._deliver()

    def _fail_all(self, error: Exception) -> None:
        while self._queue:
            job = self._queue.popleft()
            job.error = error
            self._finished.append(job)

    def _work(self, worker: _Worker) -> None:
        """On a thread: does jobs until there are none."""
        while True:
            try:
                job = self._queue.popleft()
            except IndexError:
                return
            # A worker that has begun its next job is not held by the one before.
            worker.since = self._clock()
            try:
                job.result = job.work()
            except BaseException as error:  # its caller gets it; the other jobs go on
                job.error = error
            self._finished.append(job)
            if self._is_redundant(worker):
                return

    def _deliver(self) -> None:
        while self._finished:
            job = self._finished.popleft()
            if job.done.done():  # cancelled
                continue
            if job.error is not None:
                job.done.set_exception(job.error)
            else:
                job.done.set_result(job.result)
