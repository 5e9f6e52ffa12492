"""The loads of a start, many at once: most take a millisecond, some take long.

What a load does in Python, only one thread can do at a time: more of them take turns and are slower than one (a server
with 1,000 small models on two cores starts in 1.2 s by one thread, in 1.3 s by two, though the runtime lets go of
the interpreter). So one thread takes the loads, and another joins it only while it is held by one. It takes the same
step of many loads one right after the other, which is quicker than load after load (`models.steps`). What was made goes
to the event loop in one piece every few milliseconds. Event-loop thread, but for what says otherwise.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from halimede.loading.slots import LoadSlots
from halimede.models.steps import Steps

A = TypeVar("A")

TICK_SECONDS = 0.01
"""How long what was made waits for the loop, at most."""
TOGETHER = 32
"""How many loads are begun before the first of them goes on. With more, the caches forget what they hold."""
QUICK_SECONDS = 0.02
"""A step that takes longer holds its thread: it waits for something, or computes outside of Python."""


@dataclass(slots=True, eq=False)
class _Wagon:
    """A load; `failure` is what it raised."""

    steps: Steps[Any]
    done: asyncio.Future[Any]
    made: Any = None
    failure: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Thread:
    """One of those that take loads; `since` is when it took its last step. `begins`: it begins loads, and does not yet
    go on with those that were begun."""

    since: float = field(default_factory=monotonic)
    begins: bool = True

    def is_held(self, now: float) -> bool:
        return now - self.since > QUICK_SECONDS


def _all_held(threads: Sequence[_Thread], now: float) -> bool:
    return all(thread.is_held(now) for thread in threads)


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
        self._begun: deque[_Wagon] = deque()
        """In the order of their next steps."""
        self._made: deque[_Wagon] = deque()
        self._threads: list[_Thread] = []
        """Read on its threads, too."""
        self._joining = False
        """Whether a thread waits for a slot."""
        self._riding: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None

    async def run(self, steps: Steps[A]) -> A:
        """What the steps return, or raise; on threads, among those of other loads."""
        wagon = _Wagon(steps, self._loop.create_future())
        self._waiting.append(wagon)
        if self._timer is None:
            self._timer = self._loop.call_soon(self._tick)
        made: A = await wagon.done
        return made

    def _tick(self) -> None:
        self._deliver()
        if (self._waiting or self._begun) and not self._joining and _all_held(self._threads, monotonic()):
            self._joining = True
            task = self._loop.create_task(self._ride())
            self._riding.add(task)
            task.add_done_callback(self._riding.discard)
        busy = self._waiting or self._begun or self._threads or self._made
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick) if busy else None

    async def _ride(self) -> None:
        """Waits for a slot, and lets a thread take loads."""
        async with self._slots.taken():
            self._joining = False
            thread = _Thread()
            self._threads.append(thread)
            try:
                await self._on_thread(self._take_loads, thread)
            except Exception as error:  # the system gives no thread, or there are none any more
                if len(self._threads) == 1:  # else the others go on
                    self._fail(error)
            finally:
                self._threads.remove(thread)
                self._deliver()

    def _fail(self, error: Exception) -> None:
        """All that wait."""
        for wagons in (self._begun, self._waiting):
            while wagons:
                wagon = wagons.popleft()
                wagon.failure = error
                self._made.append(wagon)

    def _take_loads(self, thread: _Thread) -> None:
        """On a thread, until there are no more, or another one does it as well."""
        while (wagon := self._next(thread)) is not None:
            if self._take_steps(thread, wagon) and self._is_not_needed(thread):
                return

    def _is_not_needed(self, thread: _Thread) -> bool:
        return not _all_held([each for each in tuple(self._threads) if each is not thread], monotonic())

    def _next(self, thread: _Thread) -> _Wagon | None:
        """On a thread: many loads are begun, then all of them are brought to their ends, step by step."""
        for _ in (0, 1):
            if thread.begins and len(self._begun) >= TOGETHER:
                thread.begins = False
            with suppress(IndexError):  # another thread may take the last one
                return (self._waiting if thread.begins else self._begun).popleft()
            thread.begins = not thread.begins
        return None

    def _take_steps(self, thread: _Thread, wagon: _Wagon) -> bool:
        """On a thread: a step, and after one that takes long all others at once; whether one did."""
        took_long = False
        while True:
            thread.since = monotonic()
            try:
                next(wagon.steps)
            except StopIteration as end:
                wagon.made = end.value
            except BaseException as error:
                wagon.failure = error
            else:
                took_long |= thread.is_held(monotonic())
                if took_long:
                    continue
                self._begun.append(wagon)
                return False
            self._made.append(wagon)
            return took_long or thread.is_held(monotonic())

    def _deliver(self) -> None:
        while self._made:
            wagon = self._made.popleft()
            if wagon.done.done():  # nobody waits for it any more
                continue
            if wagon.failure is not None:
                wagon.done.set_exception(wagon.failure)
            else:
                wagon.done.set_result(wagon.made)
