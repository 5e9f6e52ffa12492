"""Which models are loaded and unloaded, and when: all of them at the start, single ones on request, all at the end.

    operation   method                what it does
    start       `start`               Finds the names and folders; loads each model under its lock.
    load        `load`                Locks the model, receives its files, finds its folders, and calls `_load_one`.
                `_load_one`           Inspects; refuses code; does nothing if the model serves as it is; else loads it.
    unload      `unload`              Locks the model and retires it; then each of its members, if the client asks.
    index       `_index`              Lists what the repositories hold, with the states of the table.
    end         `stop`                Retires all models, and closes the backends of those that do not close in time.

`ModelLoads` carries out one load; `RepositoryPoll` takes the place of requests in poll mode. Decides on the event loop;
directories are read on threads.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from halimede.engine_port import IndexEntry, LoadModel, Query, RepositoryIndex, UnloadModel
from halimede.errors import Error, Internal, Invalid, Unavailable, shortened
from halimede.loading.code_upload import CodeUploadCheck
from halimede.loading.concurrency import ModelLocks
from halimede.loading.model_loads import ModelLoads, log_advice
from halimede.loading.repository_poll import RepositoryPoll
from halimede.loading.uploads import MAX_NAME_BYTES, Upload, Uploading, check_paths
from halimede.models.lifecycle import ModelTable, VersionState
from halimede.models.loader import MAX_REASON
from halimede.models.repository import Catalog, FoundModel, scan
from halimede.options import ServerOptions
from halimede.platform.limits import usable_memory
from halimede.storage.repositories import RemoteRepositories

log = logging.getLogger(__name__)

SHOWN_CHARACTERS = 64
"""Characters of a name that is too long, in the error."""

LISTED_TOGETHER = 500
"""Models of the repository index between two turns of the loop, which takes a millisecond."""

A = TypeVar("A")

DUPLICATE = "model appears in two or more repositories"
"""The reason of a name that more than one repository has (H110)."""
KILL_SECONDS = 1.0
"""Time for what did not close to end after its backend was closed. A process that is killed ends at once."""
_BLANKS = " \t\n\v\f\r"
ALL_MODELS = "*"
"""`--load-model=*` loads all models in explicit mode (C15)."""


class RepositoryControl:
    """`operations` are the queries of the engine's port that take a while, with what carries them out.

    `catalog_of` lists repositories; it is called on a thread. `bound` lists the models that the program adds; it is
    called on the event loop.
    """

    def __init__(
        self,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        models: ModelTable,
        loads: ModelLoads,
        catalog_of: Callable[[Sequence[str]], Catalog] | None = None,
        bound: Callable[[], Iterable[FoundModel]] = tuple,
    ) -> None:
        self._options = options
        self._loop = loop
        self._bound = bound
        self._models = models
        self._loads = loads
        self._remote = RemoteRepositories(os.environ, lambda: loads.ending, cache=options.cloud_cache_directory)
        self._catalog_of = catalog_of or partial(scan, namespaces=options.model_namespacing, remote=self._remote.models)
        self._locks = ModelLocks(loads.slots)
        self._explicit: set[str] = set()
        """The models that somebody asked for by name, and not only an ensemble (R15)."""
        loads.ensembles.fetch_member = self._fetch_member
        self._code_uploads = CodeUploadCheck(options.allow_code_upload, loads.inspect, loads.threads.write)
        limit = options.client_limits.buffered_bytes
        self._uploading = Uploading((usable_memory() or 0) // 2 if limit is None else limit)
        self._poll = RepositoryPoll(options, loop, models, loads, self._locks, self._scan)
        self._tasks: set[asyncio.Task[None]] = set()
        self.operations: Mapping[type[Query[Any]], Callable[[Any], Coroutine[Any, Any, Any]]] = {
            RepositoryIndex: self._index,
            LoadModel: self._load_on_request,
            UnloadModel: self._unload_on_request,
        }

    def begin(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        """Carries out one of `operations`. Calls `done` with the answer, even if the client has gone."""
        self._begin(self._carry_out(query, done))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        answer: A | Error
        try:
            answer = await self.operations[type(query)](query)
        except Error as error:
            answer = error.bare()
        # The client waits for an answer, whatever went wrong.
        except Exception as error:
            log.exception("unexpected error in a %s request; its client is told", type(query).__name__)
            answer = Internal(f"{type(error).__name__}: {error}")
        done(answer)

    # The start and the end.

    async def start(self) -> bool:
        """Loads the models that the options ask for; returns whether all of them serve. Raises Error if a repository
        cannot be read."""
        catalog = await self._scan()
        for folder in catalog.unnamed:
            log.warning(
                "directory '%s' is ignored: its name is not valid UTF-8, so no client could ask for it; rename it",
                folder,
            )
        names = self._names_at_start(catalog)
        wanted = {found.key: found for name in names for found in catalog.named(name)}
        duplicates = names.intersection(catalog.duplicates)
        # Triton loads none of them, since a client could not say which one it means (R5).
        for name in sorted(duplicates):
            log.error("failed to poll model '%s': not unique across all model repositories", name)
            self._models.refuse(name, None, DUPLICATE)
        missing = {name for name in names if not catalog.named(name)} - duplicates
        for name in sorted(missing):
            log.error("failed to poll model '%s': model not found in any model repository.", name)
        # The first poll is the start: it waits until the folders have settled (D17).
        if self._options.model_control_mode == "poll":
            loaded = await self._poll.start(catalog)
            self._begin(self._poll.run())
            # A missing name cannot be: only explicit mode takes names.
            return loaded and not duplicates
        # The index and the readiness count all models from the beginning.
        for key, found in sorted(wanted.items()):
            self._models.loading(key, (), found.name)
        self._explicit.update(wanted)
        loads = await asyncio.gather(*(self._load_at_start(found) for _, found in sorted(wanted.items())))
        return all(loads) and not missing and not duplicates

    async def _load_at_start(self, found: FoundModel) -> bool:
        async with self._locks.locked(found.name):
            return await self._loads.load_at_start(found)

    def _names_at_start(self, catalog: Catalog) -> set[str]:
        """The names of the models to load at the start (R8, R10, C15)."""
        if self._options.model_control_mode == "explicit" and ALL_MODELS not in self._options.load_models:
            return set(self._options.load_models)
        return {*(found.name for found in catalog.models.values()), *catalog.duplicates}

    async def give_up(self) -> None:
        """Makes a start under way end soon: opens no further model, kills workers that still load."""
        self._poll.end()
        await self._loads.kill()

    @property
    def under_way(self) -> int:
        """The number of requests to load or unload models that are not answered."""
        return len(self._tasks)

    async def stop(self, until: float, kill_seconds: float = KILL_SECONDS) -> bool:
        """Closes every version, and then the backends, which kill what has not closed at the time `until` of the loop.

        Ends `kill_seconds` after `until` at the latest. Returns whether all of it ended.
        """
        self._poll.end()
        # No load comes into service from here on, so nothing is left to unload later.
        self._loads.ending = True
        self._loads.unload_all()
        closing = self._loads.closing
        began = self._loop.time()
        if not await self._ended(closing, until):
            count, seconds = len(closing), until - began
            log.error("%d models did not close within %.3g s; their backends are closed now", count, seconds)
        killing = self._loads.kill()
        finished = await self._ended({killing, *self._tasks}, until + kill_seconds)
        # A killed model closes now. Loads that were under way close what they had opened.
        return await self._ended(closing, until + kill_seconds) and finished

    async def _ended(self, work: Collection[asyncio.Future[None]], until: float) -> bool:
        """Waits for the work, no longer than until then. Returns whether all of it ended."""
        timeout = max(until - self._loop.time(), 0)
        return not work or not (await asyncio.wait(set(work), timeout=timeout))[1]

    def abandon(self) -> None:
        """The threads take no more work. Removes what uploads and remote repositories left on disk."""
        self._loads.abandon()
        self._remote.close()

    # Queries.

    async def _index(self, query: RepositoryIndex) -> list[IndexEntry]:
        """What the repositories hold now, and what is known of it (H110, H111)."""
        catalog = await self._scan()
        entries: list[IndexEntry] = []
        # A model that was unloaded and whose folder is gone is forgotten.
        gone = {record.key for record in self._models if record.unloaded}.difference(catalog.models, catalog.duplicates)
        for number, key in enumerate(sorted({*catalog.models, *catalog.duplicates, *self._models.keys()} - gone)):
            if number % LISTED_TOGETHER == LISTED_TOGETHER - 1:
                await asyncio.sleep(0)
            found = catalog.models.get(key)
            entries += self._entries(key, found.name if found is not None else key, key in catalog.duplicates)
        # Triton lists a duplicate even if only ready models are asked for.
        ready = VersionState.READY.value
        return [entry for entry in entries if not query.ready or entry.state == ready or entry.reason == DUPLICATE]

    def _entries(self, key: str, name: str, duplicate: bool) -> list[IndexEntry]:
        record = self._models.get(key)
        if record is not None and record.versions and not (duplicate and record.unloaded):
            return [
                IndexEntry(record.name, number, version.state.value, version.reason)
                for number, version in sorted(record.versions.items())
            ]
        reason = DUPLICATE if duplicate else record.reason if record is not None else ""
        return [IndexEntry(name, None, VersionState.UNAVAILABLE.value, reason) if reason else IndexEntry(name)]

    async def _load_on_request(self, query: LoadModel) -> None:
        self._allow_control()
        await self.load(query)

    async def load(self, query: LoadModel) -> None:
        """Loads a model, and what depends on it (H112 to H118, R10, R11). The program that runs the server may do so in
        any mode. Raises Error."""
        name = query.model
        _check_name(name)
        with self._uploading.counted(query):
            await self._load_locked(name, query)
        if query.asker is None:
            await self._loads.refresh(self._locks.locked)
        else:
            # An ensemble made of the asker would wait for the asker's load, which waits for this answer.
            self._begin(self._loads.refresh(self._locks.locked))

    async def _load_locked(self, name: str, query: LoadModel) -> None:
        async with self._locks.locked(name, query.asker):
            if query.files:
                # Ten thousand paths take too long for the loop.
                await self._loads.threads.write(check_paths, tuple(path for path, _ in query.files))
            try:
                upload = await self._receive(query) if query.files else None
            except Error as error:
                raise _not_polled(name, error) from error
            try:
                await self._load_all(query, upload)
            finally:
                if upload is not None:
                    await self._loads.uploads.remove_unused(upload)
            # Not before it succeeded: a failed load does not keep a member from being unloaded with its ensemble.
            self._explicit.update(self._models.keys_of(name))

    async def _fetch_member(self, name: str, ensemble: str) -> None:
        """Waits until no load of the member is under way, and loads it if models are loaded on request.

        A failure is not reported here: it surfaces when the ensemble finds its member missing.
        """
        async with self._locks.locked(name, ensemble):
            # Otherwise the start or a poll loads the member, and that load took the lock before this one.
            if self._options.model_control_mode != "explicit":
                return
            for found in (await self._scan()).named(name):
                await self._load_one(LoadModel(name), found, None)

    async def _receive(self, query: LoadModel) -> Upload:
        if query.config is None:
            raise Invalid("Load parameter 'config' must be specified for model file override")
        return await self._loads.uploads.receive(query.model, query.files)

    async def _load_all(self, query: LoadModel, upload: Upload | None) -> None:
        try:
            found = await self._find(query, upload)
        except Error as error:
            raise _not_polled(query.model, error) from error
        failures = [failure for each in found if (failure := await self._load_one(query, each, upload)) is not None]
        if failures:
            raise failures[0]

    async def _load_one(self, query: LoadModel, found: FoundModel, upload: Upload | None) -> Error | None:
        """Returns why the model could not be loaded, if so. Raises Unsupported if the load brings code and must not."""
        try:
            found, inspection = await self._loads.inspect_with_override(found)
        except Error as error:  # as in Triton, the index knows nothing of a model that could not be polled
            return _not_polled(found.name, error)
        # A load with a configuration of its own is carried out each time, as in Triton.
        forced = query.config is not None
        await self._code_uploads.check(query, found, inspection)
        # Whether an ensemble is up to date also depends on its members; `load_inspected` looks at them.
        if not forced and inspection.ensemble is None and self._loads.is_up_to_date(found, inspection):
            return None
        waits = query.asker is None
        try:
            await self._loads.load_inspected(
                found, inspection, upload, waits_for_slot=waits, forced=forced, client=query.client
            )
        except Error as error:
            return Invalid(f"load failed for model '{found.name}': {error}\n")
        return None

    async def _find(self, query: LoadModel, upload: Upload | None) -> list[FoundModel]:
        """The models of that name. If several have it, each in a namespace of its own, all are loaded (R20)."""
        # The files of a load are a whole model: the repositories do not count (H114).
        if upload is not None:
            return [FoundModel(query.model, upload.folder, query.config)]
        found = (await self._scan()).named(query.model)
        if not found:
            raise Invalid("not in exactly one model repository")
        return found if query.config is None else [replace(each, config=query.config) for each in found]

    async def _unload_on_request(self, query: UnloadModel) -> None:
        self._allow_control()
        await self.unload(query)

    async def unload(self, query: UnloadModel) -> None:
        """Returns as soon as the model takes no more requests (H116, R14, R15)."""
        ensembles, left = self._loads.ensembles, list[str]()
        with self._loads.giving_up(query.model):
            async with self._locks.locked(query.model, query.asker):
                for key in self._models.keys_of(query.model):
                    self._explicit.discard(key)
                    if query.dependents:  # before the unload, which removes the ensemble from the graph
                        left += ensembles.members_left_behind(key, self._explicit)
                    self._loads.unload(key)
        for member in left:
            record = self._models.get(member)
            # A load of the member may be under way, and publish versions that it found in service. Not within the lock
            # of the ensemble: the load may wait for that one.
            async with self._locks.locked(member if record is None else record.name, query.asker):
                if ensembles.is_left_behind(member, self._explicit):  # else it was asked for meanwhile
                    self._loads.unload(member)

    def _allow_control(self) -> None:
        if self._loads.ending:
            raise Unavailable("Server exiting")
        if self._options.model_control_mode != "explicit":
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")

    async def _scan(self) -> Catalog:
        catalog = await self._loads.threads.read_repository(self._catalog_of, self._options.model_repositories)
        return catalog.joined(self._bound())


def _check_name(name: str) -> None:
    """Blanks around a name do not count, so that a blank name is an empty one and ` ..` leads out (H118)."""
    bare = name.strip(_BLANKS)
    if not bare:
        raise Invalid("Model name cannot be empty. Please enter a valid name to deploy.")
    # No directory has such a name, and answers and log lines would repeat it.
    if len(name) > MAX_NAME_BYTES or len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        raise Invalid(f"invalid model name '{name[:SHOWN_CHARACTERS]}...', it is longer than {MAX_NAME_BYTES} bytes")
    if "/" in name or "\\" in name or "\0" in name or bare in (".", ".."):
        raise Invalid(f"invalid model name '{name}', model name must not contain path traversal characters")


def _not_polled(name: str, error: Error) -> Internal:
    """The answer for a model that does not get as far as a version. The reason is only in the log (H118)."""
    log.error("failed to load '%s': %s", name, shortened(str(error), MAX_REASON))
    log_advice(name, error)
    return Internal(f"failed to load '{name}', failed to poll from model repository")
