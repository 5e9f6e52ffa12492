"""Follows the changes of the repositories (`--model-control-mode=poll`, R9).

A model that appears is loaded, one that changes is loaded again, one that disappears is unloaded. Each change is acted
on once the folder has settled, that is, stays the same for a while (D17). Decides on the event loop; folders are looked
at on threads. `models.watching` decides what is due.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic_ns, time_ns

from halimede.errors import Error
from halimede.loading.concurrency import ModelLocks
from halimede.loading.model_loads import ModelLoads
from halimede.models.lifecycle import ModelTable
from halimede.models.repository import Catalog, FoundModel, Look
from halimede.models.watching import Todo, Watch
from halimede.options import ServerOptions

log = logging.getLogger(__name__)

NS = 1_000_000_000
MAX_START_WAIT = 10
"""How long the start waits for folders that still change, in multiples of the time that a folder needs to settle."""


class RepositoryPoll:
    """`scan` lists the repositories. A poll that fails changes nothing."""

    def __init__(
        self,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        models: ModelTable,
        loads: ModelLoads,
        locks: ModelLocks,
        scan: Callable[[], Awaitable[Catalog]],
        clock: Callable[[], int] = monotonic_ns,
        wall: Callable[[], int] = time_ns,
    ) -> None:
        self._loop = loop
        self._models = models
        self._loads = loads
        self._locks = locks
        self._scan = scan
        self._clock, self._wall = clock, wall
        self._seconds = options.repository_poll_secs
        self._settle = options.settle_secs
        self._watch = Watch(round(self._settle * NS), self._seconds * NS)
        self._loading: dict[str, asyncio.Task[bool]] = {}
        self._refused: frozenset[str] = frozenset()
        self._refreshing: set[asyncio.Task[None]] = set()
        self._ending = asyncio.Event()

    async def start(self, catalog: Catalog) -> bool:
        """Does the first poll: waits for its loads, and for a while for folders that still change. Returns whether all
        models serve."""
        # The index and the readiness count all models from the beginning, also those that have not settled yet.
        for found in catalog.models.values():
            self._models.loading(found.key, (), found.name)
        loads = await self._first_loads(catalog)
        # A model that writes into its own folder while it is loaded is known by its second load. Its ensembles follow.
        if self._watch.suspected and not self._ending.is_set():
            loads = {**loads, **await self._first_loads(await self._scan())}
        # An ensemble that had to wait for a member has been loaded since by `refresh`.
        fine = all(serves or self._models.ready_versions(key) for key, serves in loads.items())
        return fine and not self._ending.is_set()

    async def _first_loads(self, catalog: Catalog) -> dict[str, bool]:
        """Waits for the loads that are due, and for a while for folders that still change. Returns by key whether each
        model serves."""
        began = self._loop.time()
        todo, loads = await self._act(catalog)
        # A server that is started right after its models were copied serves them at once, and not a poll later. But a
        # folder that never settles must not keep the server from starting.
        while todo.look_at is not None and self._loop.time() - began < MAX_START_WAIT * self._settle:
            if await self._pause(todo.look_at):
                break
            todo, more = await self._act(await self._scan())
            loads = {**loads, **more}
        else:
            for key in todo.unsettled:
                log.warning("model '%s': its files still change, so it is not loaded yet; a later poll loads it", key)
        return {**{key: await load for key, load in loads.items()}, **dict.fromkeys(todo.unsettled, False)}

    async def run(self) -> None:
        """Polls until `end`."""
        at = self._next()
        while at is not None and not await self._pause(at):
            at = self._next()
            try:
                todo = await self.poll()
            except Error as error:
                log.error("failed to poll the model repositories: %s; the next poll tries again", error)
            except Exception:
                log.exception("unexpected error while the model repositories were polled; the next poll tries again")
            else:
                # A folder that may have settled before the next poll is looked at then.
                at = min(filter(None, (at, todo.look_at)), default=None)
        # The loads close what they have opened; `stop` waits for this task.
        if under_way := {*self._loading.values(), *self._refreshing}:
            await asyncio.wait(under_way)

    async def poll(self) -> Todo:
        """Looks once, and begins what is due. Raises Error if a repository cannot be read."""
        return (await self._act(await self._scan()))[0]

    def end(self) -> None:
        """Ends `run`."""
        self._ending.set()

    def _next(self) -> int | None:
        return self._clock() + self._seconds * NS if self._seconds > 0 else None

    async def _pause(self, until: int) -> bool:
        """Waits until then. Returns whether `end` was called."""
        try:
            await asyncio.wait_for(self._ending.wait(), max(until - self._clock(), 0) / NS)
        except TimeoutError:
            return False
        return True

    async def _act(self, catalog: Catalog) -> tuple[Todo, Mapping[str, asyncio.Task[bool]]]:
        """Begins what is due. Returns it, with the loads by key."""
        self._log_duplicates(catalog)
        began, wall = self._clock(), self._wall()
        looks = await self._loads.threads.read_repository(_look_at_all, list(catalog.models.values()))
        now = self._clock()
        todo = self._watch.look(looks, self._loading, now, wall, now - began)
        for key in todo.unload:
            await self._unload(key)
        if todo.unload:
            # An ensemble may find another model of that name (R20). Its load may take long, and the next poll does not
            # wait for it.
            task = self._loop.create_task(self._loads.refresh(self._locks.locked))
            self._refreshing.add(task)
            task.add_done_callback(self._refreshing.discard)
        begun = {key: self._begin(catalog.models[key]) for key in todo.load}
        return todo, begun

    def _log_duplicates(self, catalog: Catalog) -> None:
        # Once for each name, and not at each poll.
        for name in sorted(set(catalog.duplicates) - self._refused):
            log.error("failed to poll model '%s': not unique across all model repositories", name)
        self._refused = frozenset(catalog.duplicates)

    def _begin(self, found: FoundModel) -> asyncio.Task[bool]:
        task = self._loading[found.key] = self._loop.create_task(self._load(found))
        task.add_done_callback(lambda _: self._loading.pop(found.key))
        return task

    async def _load(self, found: FoundModel) -> bool:
        def accepts(names: frozenset[str]) -> bool:
            return self._watch.changed(found.key, names, self._clock())

        async with self._locks.locked(found.name):
            loaded = await self._loads.load_found(found, accepts)
        if loaded:
            self._watch.loaded(found.key)
            await self._loads.refresh(self._locks.locked)
        else:
            self._watch.failed(found.key, self._clock())
        return loaded

    async def _unload(self, key: str) -> None:
        record = self._models.get(key)
        if record is None:
            return
        async with self._locks.locked(record.name):
            self._loads.unload(key)
            self._models.forget_failures(key)


def _look_at_all(models: list[FoundModel]) -> dict[str, Look]:
    """How each folder looks now. On a thread.

    The look of a folder that cannot be read is the reason. If that lasts the folder settles, and its load fails with
    the reason, while what serves serves on.
    """
    looks: dict[str, Look] = {}
    for found in models:
        try:
            looks[found.key] = found.look()
        except OSError as error:
            looks[found.key] = Look((("", (error.errno or 0, 0)),), time_ns())
    return looks
