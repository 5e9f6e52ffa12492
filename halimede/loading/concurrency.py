"""Which loads run at the same time, and on which threads.

`LoadSlots` limits how many models are opened at once (C17). `ModelLocks` keeps the loads and unloads of one model one
after the other (R17). `LoadThreads` are the thread pools. All three are used on the event loop only.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count as count_from
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from halimede.errors import Unavailable

A = TypeVar("A")

REPOSITORY_THREADS = 2
"""Threads for short work that waits for the disk: listing repositories."""
WRITING_THREADS = 2
"""Threads that write and remove uploaded files."""
INSPECTION_THREADS = 8
"""Threads that inspect one model each. An inspection is long if the model is copied from a cloud or its agents run."""
MAX_LOADS = 1000
"""Threads that open models. Far more than slots: a load that waits for another one keeps its thread, but no slot."""
CLOSING_THREADS = 32
"""Threads that close models. A version that hangs while it closes must not keep the others from closing."""


@dataclass(slots=True, eq=False)
class _Use:
    """A load that runs in a slot."""

    client: str
    """Who asked for it; empty for the server itself."""
    waits: int = 0
    """For how many other loads it waits. Its slot is given up while there are any."""
    over: bool = False


@dataclass(slots=True, eq=False)
class _Waiter:
    """A load that waits for a slot."""

    client: str
    acquired: asyncio.Future[None]
    number: int
    """The lower, the longer it has waited."""


class LoadSlots:
    """A semaphore of `count` slots. A load may give up its slot while it waits for another.

    A free slot goes to the client with the fewest loads in slots, among its loads to the first. If one client has all
    slots, another one gets one more slot. So no client keeps the others from loading a model.

    Loads are known by the names of their models: `ModelLocks` keeps two loads of one model apart.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[str, OrderedDict[int, _Waiter]] = {}
        """By client its loads that wait, by their numbers."""
        self._numbers = count_from(1)
        self._running = Counter[str]()
        """By client, the slots that its loads hold."""
        self._uses: dict[str, _Use] = {}
        """By model, the loads that run in a slot."""

    @asynccontextmanager
    async def acquired(self, model: str = "", client: str = "") -> AsyncIterator[None]:
        """Waits for a slot and holds it, for the load of a model if it is given."""
        waiter = _Waiter(client, asyncio.get_running_loop().create_future(), next(self._numbers))
        self._waiting.setdefault(client, OrderedDict())[waiter.number] = waiter
        self._hand_out()
        try:
            await waiter.acquired
        except asyncio.CancelledError:
            # Cancelled in the turn in which it got the slot: the next one gets it.
            if not waiter.acquired.cancelled():
                self._release(client)
            else:
                self._forget(waiter)
            raise
        try:
            with self._used_for(model, client) if model else nullcontext():
                yield
        finally:
            self._release(client)

    @contextmanager
    def _used_for(self, model: str, client: str) -> Iterator[None]:
        """The load of the model runs in the slot that it has acquired."""
        use = self._uses[model] = _Use(client)
        try:
            yield
        finally:
            del self._uses[model]
            use.over = True
            # The load has failed while loads that it waits for go on. Its slot was given up; it is taken back here.
            if use.waits:
                self._take(client)

    @contextmanager
    def given_up(self, model: str) -> Iterator[None]:
        """Gives up the slot of a load that waits for another one, and takes it back at the end without waiting.

        The slot may be in use by another load then. So until one of the loads ends, one more runs than there are slots.
        To wait for a free slot here could be a deadlock: all slots may be held by loads that wait for this one.
        """
        use = self._uses.get(model)
        # An ensemble waits for its members before it takes a slot, and a load that a model asked for has none at all.
        if use is None:
            yield
            return
        use.waits += 1
        if use.waits == 1:  # its instances may wait for several loads at once, but it has one slot only
            self._release(use.client)
        try:
            yield
        finally:
            use.waits -= 1
            if not use.waits and not use.over:
                self._take(use.client)

    def _take(self, client: str) -> None:
        self._free -= 1
        self._running[client] += 1

    def _release(self, client: str) -> None:
        self._free += 1
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        self._hand_out()

    def _hand_out(self) -> None:
        """Gives slots to loads that wait."""
        while (waiter := self._next()) is not None:
            self._forget(waiter)
            if not waiter.acquired.done():  # else its load was cancelled in this turn
                self._take(waiter.client)
                waiter.acquired.set_result(None)

    def _next(self) -> _Waiter | None:
        """Returns the load that gets a slot, if one does. Looks at each client, and not at each load."""
        for_others = self._free <= 0
        if for_others and (self._free < 0 or len(self._running) != 1):
            return None
        firsts = [next(iter(waiting.values())) for waiting in self._waiting.values()]
        if for_others:
            firsts = [each for each in firsts if each.client not in self._running]
        return min(firsts, key=lambda each: (self._running[each.client], each.number), default=None)

    def _forget(self, waiter: _Waiter) -> None:
        # A load that is cancelled in the turn in which `_hand_out` looked at it is forgotten already.
        waiting = self._waiting.get(waiter.client)
        if waiting is not None:
            waiting.pop(waiter.number, None)
            if not waiting:
                del self._waiting[waiter.client]


class ModelLocks:
    """One lock per model name: loads and unloads of one model run in the order of requests, different models at once.

    The load of a model may need another model: an ensemble its members, a Python model the models it loads in
    `initialize`. It then locks that model as `asker`, and gives up its slot, if it has one, while it waits.
    """

    def __init__(self, slots: LoadSlots) -> None:
        self._slots = slots
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By model, as long as somebody holds the lock or waits for it."""
        self._awaited: dict[str, Counter[str]] = {}
        """By each model that is being loaded, the models that its load waits for."""

    @asynccontextmanager
    async def locked(self, name: str, asker: str | None = None) -> AsyncIterator[None]:
        """Holds the lock of a model. Raises Unavailable if the asker's own load would wait for itself."""
        if not asker:
            async with self._lock_of(name):
                yield
            return
        # Two loads that wait for each other would wait for ever. The asker gets an error instead.
        if name == asker or self._waits_for(name, asker):
            raise Unavailable(f"model '{asker}' is being loaded and cannot wait for model '{name}', which waits for it")
        # A counter, because several instances of the asker may ask for the same model.
        awaited = self._awaited.setdefault(asker, Counter())
        awaited[name] += 1
        try:
            with self._slots.given_up(asker):
                async with self._lock_of(name):
                    yield
        finally:
            awaited[name] -= 1

    def _waits_for(self, model: str, other: str) -> bool:
        """Whether the load of a model waits for the other one, directly or not."""
        return any(
            count and (name == other or self._waits_for(name, other))
            for name, count in self._awaited.get(model, Counter()).items()
        )

    def _lock_of(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock


class LoadThreads:
    """A pool for each kind of work, so that no kind waits for another. Each method raises what the work raises."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._loaders = ThreadPoolExecutor(MAX_LOADS, "load")
        self._repositories = ThreadPoolExecutor(REPOSITORY_THREADS, "repository")
        self._writers = ThreadPoolExecutor(WRITING_THREADS, "upload")
        self._inspectors = ThreadPoolExecutor(INSPECTION_THREADS, "inspect")
        self._closers = ThreadPoolExecutor(CLOSING_THREADS, "close")
        self._killer = ThreadPoolExecutor(1, "kill")

    async def read_repository(self, work: Callable[..., A], *arguments: Any) -> A:
        """Short work on files."""
        return await self._on(self._repositories, work, *arguments)

    async def write(self, work: Callable[..., A], *arguments: Any) -> A:
        """Writes or removes the files of an upload, which takes long if there are thousands."""
        return await self._on(self._writers, work, *arguments)

    async def inspect(self, work: Callable[..., A], *arguments: Any) -> A:
        """Work that may copy a model from elsewhere or run its agents."""
        return await self._on(self._inspectors, work, *arguments)

    async def open(self, work: Callable[..., A], *arguments: Any) -> A:
        """Work that takes as long as a model takes to load."""
        return await self._on(self._loaders, work, *arguments)

    async def close(self, work: Callable[[], A]) -> A:
        """Work that may hang."""
        return await self._on(self._closers, work)

    def kill(self, work: Callable[[], A]) -> asyncio.Future[A]:
        """Work that ends what hangs."""
        return self._loop.run_in_executor(self._killer, work)

    async def _on(self, threads: ThreadPoolExecutor, work: Callable[..., A], *arguments: Any) -> A:
        return await self._loop.run_in_executor(threads, partial(work, *arguments))

    def abandon(self) -> None:
        """The pools take no more work; what runs now runs to its end."""
        for threads in (
            self._loaders,
            self._repositories,
            self._writers,
            self._inspectors,
            self._closers,
            self._killer,
        ):
            threads.shutdown(wait=False)
