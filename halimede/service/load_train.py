"""The loads of a start, many at once: most take a millisecond, some take long.

What a load does in Python, only one thread can do at a time: more of them take turns and are slower than one (1,000
small ONNX models on two cores: 1.7 s by one thread, 1.9 s by two, though the runtime lets go of the interpreter). So
one thread takes load after load, and another joins it only while it is held by one. What was made goes to the event
loop in one piece every few milliseconds. Event-loop thread, but for what says otherwise.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from halimede.service.load_slots import LoadSlots

A = TypeVar("A")

TICK_SECONDS = 0.01
"""How long what was made waits for the loop, at most."""
TOGETHER = 1
"""Threads that take loads and are not held."""
QUICK_SECONDS = 0.02
"""A load that takes longer holds its thread: it waits for something, or computes outside of Python."""


@dataclass(slots=True, eq=False)
class _Wagon:
    """A load; `failure` is what it raised."""

    work: Callable[[], Any]
    done: asyncio.Future[Any]
    made: Any = None
    failure: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Thread:
    """One of those that take loads; `since` is when it took its last one."""

    since: float = field(default_factory=monotonic)

    def is_held(self, now: float) -> bool:
        return now - self.since > QUICK_SECONDS


def _free(threads: Sequence[_Thread], now: float) -> int:
    return sum(not thread.is_held(now) for thread in threads)


class LoadTrain:
    """Each of its threads has one of the `slots` as long as it takes loads. `on_thread` runs one of them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slots: LoadSlots,
        on_thread: Callable[[Callable[[_Thread], None], _Thread], Awaitable[None]],
    ) -> None:
        self._loop = loop
        self._slots = slots
        self._on_thread = on_thread
        self._waiting: deque[_Wagon] = deque()
        self._made: deque[_Wagon] = deque()
        self._threads: list[_Thread] = []
        """Read on its threads, too."""
        self._joining = False
        """Whether a thread waits for a slot."""
        self._riding: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None

    async def run(self, work: Callable[[], A]) -> A:
        """What `work` returns, or raises; on a thread, after those before."""
        wagon = _Wagon(work, self._loop.create_future())
        self._waiting.append(wagon)
        if self._timer is None:
            self._timer = self._loop.call_soon(self._tick)
        made: A = await wagon.done
        return made

    def _tick(self) -> None:
        self._deliver()
        now = monotonic()
        if self._waiting and not self._joining and _free(self._threads, now) < TOGETHER:
            self._joining = True
            task = self._loop.create_task(self._ride())
            self._riding.add(task)
            task.add_done_callback(self._riding.discard)
        busy = self._waiting or self._threads or self._made
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick) if busy else None

    async def _ride(self) -> None:
        """Waits for a slot, and lets a thread take loads."""
        async with self._slots.taken():
            self._joining = False
            thread = _Thread()
            self._threads.append(thread)
            try:
                await self._on_thread(self._take_loads, thread)
            except Exception as error:  # there are no threads any more
                while self._waiting:
                    wagon = self._waiting.popleft()
                    wagon.failure = error
                    self._made.append(wagon)
            finally:
                self._threads.remove(thread)
                self._deliver()

    def _take_loads(self, thread: _Thread) -> None:
        """On a thread, until there are no more, or another one does it as well."""
        while True:
            thread.since = monotonic()
            try:
                wagon = self._waiting.popleft()
            except IndexError:
                return
            try:
                wagon.made = wagon.work()
            except BaseException as error:
                wagon.failure = error
            self._made.append(wagon)
            now = monotonic()
            if thread.is_held(now) and _free(tuple(self._threads), now) >= TOGETHER:
                return

    def _deliver(self) -> None:
        while self._made:
            wagon = self._made.popleft()
            if wagon.done.done():  # nobody waits for it any more
                continue
            if wagon.failure is not None:
                wagon.done.set_exception(wagon.failure)
            else:
                wagon.done.set_result(wagon.made)
