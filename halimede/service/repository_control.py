"""Models come and go: all of them at the start, one by one on request; and the index of what there is.

Decides on the event loop, where it alone changes the model table; directories are read, models opened and closed on
threads. Knows no protocol and no inference: what a model is once it serves, it is told (`open_version`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from halimede.cache.registry import REDIS
from halimede.errors import Error, Internal, Invalid, Unavailable, Unsupported
from halimede.models.backend_pool import BackendPool
from halimede.models.lifecycle import ModelTable, State, plan
from halimede.models.loader import Code, LoadedVersion, LoadOptions, LoadResult, Survey, load, survey
from halimede.models.repository import Catalog, Fingerprint, FoundModel, scan
from halimede.models.resources import reserve
from halimede.models.upload import Upload, place_of
from halimede.models.version import ModelVersion
from halimede.options import ServerOptions
from halimede.scheduling.rate_limiter import RateLimiter
from halimede.service.load_slots import LoadSlots
from halimede.service.port import IndexEntry, LoadModel, Query, RepositoryIndex, UnloadModel

log = logging.getLogger(__name__)

A = TypeVar("A")

DUPLICATE = "model appears in two or more repositories"
ALL_MODELS = "*"
_CODE = frozenset({".py", ".pyc", ".pyd", ".pyo", ".so", ".dll", ".dylib", ".pth", ".pkl", ".sh"})
LOOKING_THREADS = 2
"""For what is short but waits for the disk: repositories, configurations, files of a load."""
MOST_LOADS = 1000
"""How many threads open models, those included whose models wait for other loads."""
CLOSING_THREADS = 32
"""For what may hang: a version that does not close shall not keep the others from it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the versions in service were loaded from, to see whether a load would change anything."""

    folder: Path
    config: str | None
    fingerprint: Fingerprint


class RepositoryControl:
    """`open_versions` makes of opened versions ones that serve, all or none. `operations` answer those questions of the
    port that take a while."""

    def __init__(
        self,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        models: ModelTable,
        backends: BackendPool,
        gpus: tuple[int, ...],
        open_versions: Callable[[Sequence[LoadedVersion]], list[ModelVersion]],
        limiter: RateLimiter | None = None,
        catalog_of: Callable[[Sequence[str]], Catalog] = scan,
    ) -> None:
        self._options = options
        self._loop = loop
        self._models = models
        self._backends = backends
        self._open_versions = open_versions
        self._limiter = limiter
        self._catalog_of = catalog_of
        # Apart from each other, so that nothing waits for a model that loads for long, or does not close.
        self._loaders = ThreadPoolExecutor(MOST_LOADS, "load")
        self._slots = LoadSlots(options.model_load_thread_count)
        self._lookers = ThreadPoolExecutor(LOOKING_THREADS, "look")
        self._closers = ThreadPoolExecutor(CLOSING_THREADS, "close")
        self._killer = ThreadPoolExecutor(1, "kill")
        self._load_options = LoadOptions(
            auto_complete=options.auto_complete_config,
            config_name=options.model_config_name,
            retries=options.model_load_retry_count,
            settings=options.backend_settings,
            gpus=gpus,
            backend_directory=Path(options.backend_directory),
            host_policies=options.host_policies,
            on_loop=loop.call_soon_threadsafe,
            ending=lambda: self._ending,
            digests=REDIS in options.cache_config,
        )
        self._origins: dict[str, Origin] = {}
        self._uploads: dict[LoadedVersion, Upload] = {}
        self._living: set[Upload] = set()
        self._turns: dict[str, asyncio.Future[None]] = {}
        self._awaited: dict[str, Counter[str]] = {}
        """By each model that is being loaded, those that its load waits for."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Future[None]] = set()
        self._ending = False
        self.operations: Mapping[type[Query[Any]], Callable[[Any], Coroutine[Any, Any, Any]]] = {
            RepositoryIndex: self._index,
            LoadModel: self._load_on_request,
            UnloadModel: self._unload_on_request,
        }

    def begin(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        """Carries out one of `operations`; `done` is told what came of it, also when nobody asks any more."""
        task = self._loop.create_task(self._carry_out(query, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        answer: A | Error
        try:
            answer = await self.operations[type(query)](query)
        except Error as error:
            answer = error
        except Exception as error:
            log.exception("%s broke", type(query).__name__)
            answer = Internal(f"{type(error).__name__}: {error}")
        done(answer)

    # The start and the end.

    async def start(self) -> bool:
        """Loads the models that the options ask for; False when one of them failed. Raises Error when a repository
        cannot be read."""
        catalog = await self._scan()
        names = self._wanted(catalog)
        for name in (name for name in catalog.duplicates if name in names):
            log.error("failed to poll model '%s': not unique across all model repositories", name)
            self._models.refuse(name, None, DUPLICATE)
        missing = names.difference(catalog.models, catalog.duplicates)
        for name in sorted(missing):
            log.error("failed to load '%s': failed to poll from model repository", name)
        todo = plan(self._models.names(), names.intersection(catalog.models))
        for name in todo.load:
            self._models.loading(name)
        loaded = await asyncio.gather(*(self._load_at_start(catalog.models[name]) for name in todo.load))
        return all(loaded) and not missing and not names.intersection(catalog.duplicates)

    def _wanted(self, catalog: Catalog) -> set[str]:
        """The names to load at the start (contract R8, R10, C15)."""
        if self._options.model_control_mode == "explicit" and ALL_MODELS not in self._options.load_models:
            return set(self._options.load_models)
        return {*catalog.models, *catalog.duplicates}

    async def _load_at_start(self, found: FoundModel) -> bool:
        try:
            seen = await self._look(survey, found, self._load_options)
            if isinstance(seen.versions, Error):
                raise seen.versions
        except Error as error:
            log.error("failed to load '%s': %s", found.name, error)
            self._models.refuse(found.name, None, f"{error.word}: {error}")
            return False
        except Exception:
            log.exception("loading model '%s' broke", found.name)
            self._models.refuse(found.name, None, "Internal: the model could not be loaded")
            return False
        try:
            await self._load(found, seen, seen.versions)
        except Error:
            return False  # told and kept for each version
        except Exception:
            log.exception("publishing model '%s' broke", found.name)
            return False
        return True

    async def give_up(self) -> None:
        """Makes loads under way end soon: no further model is opened, workers that still load are killed."""
        self._ending = True
        await self._loop.run_in_executor(self._killer, self._backends.close)

    async def stop(self, timeout: float) -> bool:
        """Closes every version, and the backends after them, which kill what does not close in time; whether all
        did."""
        self._ending = True
        for name in plan(self._models.names(), ()).unload:
            for version in self._models.ready_versions(name):
                self._models.retire(version, self._close)
        if not await self._ended(self._closing, timeout):
            log.error("%d models did not close within %g s", len(self._closing), timeout)
        until = self._loop.time() + timeout
        killing = self._loop.run_in_executor(self._killer, self._backends.close)
        finished = await self._ended({killing, *self._tasks}, timeout)
        # What was killed closes now, and so does what loads under way had opened.
        return await self._ended(self._closing, max(until - self._loop.time(), 0)) and finished

    @staticmethod
    async def _ended(work: Collection[asyncio.Future[None]], timeout: float) -> bool:
        """Waits; whether all of it came to an end."""
        return not work or not (await asyncio.wait(set(work), timeout=timeout))[1]

    def abandon(self) -> None:
        """The threads take nothing more; what they do now, they finish. No file of a load is left behind."""
        for pool in (self._loaders, self._lookers, self._closers, self._killer):
            pool.shutdown(wait=False)
        for upload in self._living:
            upload.remove()
        self._living.clear()

    # Questions.

    async def _index(self, query: RepositoryIndex) -> list[IndexEntry]:
        """Contract H110, H111: what the repositories hold now, and what is known of it. A name that is there twice, and
        so cannot be loaded, is told in any case, as by the real server."""
        catalog = await self._scan()
        entries: list[IndexEntry] = []
        for name in sorted({*catalog.models, *catalog.duplicates, *self._models.names()}):
            entries += self._entries(name, name in catalog.duplicates)
        wanted = (State.READY.value, DUPLICATE)
        return [entry for entry in entries if not query.ready or entry.state in wanted or entry.reason in wanted]

    def _entries(self, name: str, duplicate: bool) -> list[IndexEntry]:
        record = self._models.get(name)
        if record is not None and record.versions:
            return [
                IndexEntry(name, number, version.state.value, version.reason)
                for number, version in sorted(record.versions.items())
            ]
        reason = DUPLICATE if duplicate else record.reason if record is not None else ""
        return [IndexEntry(name, None, State.UNAVAILABLE.value, reason) if reason else IndexEntry(name)]

    async def _load_on_request(self, query: LoadModel) -> None:
        """Contract H112 to H118, R10, R11."""
        self._allow_control()
        name = query.model
        _check_name(name)
        async with self._turn(name, query.asker):
            try:
                upload = await self._receive(query) if query.files else None
            except Error as error:
                raise _not_polled(name, error) from error
            try:
                await self._reload(query, upload)
            finally:
                if upload is not None and not upload.used:
                    await self._remove(upload)

    async def _reload(self, query: LoadModel, upload: Upload | None) -> None:
        name = query.model
        try:
            found = await self._find(query, upload)
            seen = await self._look(survey, found, self._load_options)
        except Error as error:
            raise _not_polled(name, error) from error
        if upload is not None:
            self._allow_files(query, seen)
        elif found.config is not None:
            await self._allow_override(found, seen)
        origin = Origin(found.folder, found.config, seen.fingerprint)
        if found.config is None and self._serves(name) and self._origins.get(name) == origin:
            return
        try:
            if isinstance(seen.versions, Error):
                raise seen.versions
            await self._load(found, seen, seen.versions, upload, waits=query.asker is None)
        except Error as error:
            raise Invalid(f"load failed for model '{name}': {error}\n") from error

    def _serves(self, name: str) -> bool:
        """Whether the model is in service and none of its versions has lost what it runs on."""
        versions = self._models.ready_versions(name)
        return bool(versions) and all(version.healthy for version in versions)

    async def _find(self, query: LoadModel, upload: Upload | None) -> FoundModel:
        if upload is not None:
            return FoundModel(query.model, upload.folder, query.config)
        found = (await self._scan()).models.get(query.model)
        if found is None:
            raise Invalid("not in exactly one model repository")
        return FoundModel(found.name, found.folder, query.config)

    async def _unload_on_request(self, query: UnloadModel) -> None:
        """Contract H116, R14: answered as soon as the model takes nothing more. There is nothing yet that depends on
        another model, so `dependents` changes nothing."""
        self._allow_control()
        async with self._turn(query.model, query.asker):
            self._origins.pop(query.model, None)
            for version in self._models.ready_versions(query.model):
                self._models.retire(version, self._close)

    def _allow_control(self) -> None:
        if self._ending:
            raise Unavailable("Server exiting")
        if self._options.model_control_mode != "explicit":
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")

    def _allow_files(self, query: LoadModel, seen: Survey) -> None:
        """Files that would run as code need the operator's consent."""
        code = [path for path, _ in query.files if _CODE.intersection(Path(place_of(path).lower()).suffixes)]
        if code or seen.code is not None:
            self._allow_code(query.model, f"file '{code[0]}'" if code else f"a model of the backend '{seen.backend}'")

    async def _allow_override(self, found: FoundModel, seen: Survey) -> None:
        """So does a configuration that makes code of files that are none by the repository's own."""
        if seen.code is None:
            return
        own = await self._code_of(replace(found, config=None))
        if own is None or own.backend != seen.code.backend:
            self._allow_code(found.name, f"a model of the backend '{seen.backend}'")
        elif seen.code.environment not in ("", own.environment):
            self._allow_code(found.name, f"the environment '{seen.code.environment}'")
        elif seen.code.execution not in ("", own.execution):
            self._allow_code(found.name, f"the execution '{seen.code.execution}'")

    async def _code_of(self, found: FoundModel) -> Code | None:
        try:
            seen: Survey = await self._look(survey, found, self._load_options)
        except Error:
            return None  # nothing in the repository says so
        return seen.code

    def _allow_code(self, model: str, what: str) -> None:
        if not self._options.allow_code_upload:
            raise Unsupported(
                f"load of model '{model}' brings code ({what}). Start the server with '--allow-code-upload=true' "
                "to allow that."
            )

    # One load.

    async def _load(
        self,
        found: FoundModel,
        seen: Survey,
        numbers: Sequence[int],
        upload: Upload | None = None,
        waits: bool = True,
    ) -> None:
        """All versions come into service together, or none does. Raises Error with the reasons.

        A load that a model asks for does not wait for others to be over: one of those may wait for that model."""
        name = found.name
        self._models.loading(name, numbers)
        async with self._slots.taken() if waits else nullcontext():
            result = await self._on(self._loaders, load, found, numbers, self._backends, self._load_options)
        opened = [version for version in result.versions.values() if isinstance(version, LoadedVersion)]
        if upload is not None:
            upload.hold(len(opened))
            self._uploads.update(dict.fromkeys(opened, upload))
        for refused in reserve(result, self._limiter) if self._limiter is not None else ():
            opened.remove(refused)
            self._release(refused)
        try:
            failure = self._failure(result)
            if failure is not None:
                raise failure
            versions = self._open_versions(opened)
        except Exception as error:
            self._drop(name, opened, "unloaded" if isinstance(error, Error) else "Internal: it could not be published")
            raise
        self._models.publish(name, versions, self._close)
        self._origins[name] = Origin(found.folder, found.config, seen.fingerprint)
        for version in versions:
            log.info("successfully loaded '%s' version %d", name, version.number)

    def _failure(self, result: LoadResult) -> Error | None:
        """Why the load failed, if it did; the reason of each version is kept for the index."""
        if self._ending:
            return Unavailable("Server exiting")
        failures = {number: error for number, error in result.versions.items() if isinstance(error, Error)}
        for number, error in failures.items():
            log.error("failed to load '%s' version %d: %s: %s", result.name, number, error.word, error)
            self._models.refuse(result.name, number, f"{error.word}: {error}")
        texts = [
            f"version {number} is at UNAVAILABLE state: {error.word}: {error};" for number, error in failures.items()
        ]
        return Invalid("".join(texts)) if texts else None

    def _drop(self, name: str, opened: Sequence[LoadedVersion], reason: str) -> None:
        """Closes what was opened; the versions that served before serve on (contract R11)."""
        for version in opened:
            self._models.refuse(name, version.number, reason)
            self._release(version)

    # Threads, turns, ends.

    async def _scan(self) -> Catalog:
        return await self._look(self._catalog_of, self._options.model_repositories)

    async def _look(self, work: Callable[..., A], *arguments: Any) -> A:
        return await self._on(self._lookers, work, *arguments)

    async def _on(self, pool: ThreadPoolExecutor, work: Callable[..., A], *arguments: Any) -> A:
        return await self._loop.run_in_executor(pool, partial(work, *arguments))

    @asynccontextmanager
    async def _turn(self, name: str, asker: str | None) -> AsyncIterator[None]:
        """One after the other for one model, in the order asked; different models at once (contract R17). Raises
        Unavailable where the asker's own load would wait for itself."""
        if not asker:
            async with self._in_line(name):
                yield
            return
        if name == asker or self._waits(name, asker):
            raise Unavailable(f"model '{asker}' is being loaded and cannot wait for model '{name}', which waits for it")
        awaited = self._awaited.setdefault(asker, Counter())
        awaited[name] += 1
        try:
            with self._slots.lent():
                async with self._in_line(name):
                    yield
        finally:
            awaited[name] -= 1

    def _waits(self, model: str, other: str) -> bool:
        """Whether the load of a model waits for the other one, by whatever way."""
        return any(
            count and (name == other or self._waits(name, other))
            for name, count in self._awaited.get(model, Counter()).items()
        )

    @asynccontextmanager
    async def _in_line(self, name: str) -> AsyncIterator[None]:
        before, mine = self._turns.get(name), self._loop.create_future()
        self._turns[name] = mine
        try:
            if before is not None:
                await asyncio.wait([before])
            yield
        finally:
            mine.set_result(None)
            if self._turns[name] is mine:
                del self._turns[name]

    def _close(self, version: ModelVersion) -> None:
        """Nobody holds the version any more."""
        version.close()
        log.info("successfully unloaded '%s' version %d", version.name, version.number)
        self._release(version.loaded)

    def _release(self, loaded: LoadedVersion) -> None:
        """Closes an opened version on a thread."""
        if loaded.turns is not None:
            loaded.turns.retire()
        closing = self._loop.create_task(self._give_back(loaded))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _give_back(self, loaded: LoadedVersion) -> None:
        """The files that came for it go with the last that used them."""
        await self._on(self._closers, loaded.close)
        if loaded.turns is not None:
            loaded.turns.close()
        upload = self._uploads.pop(loaded, None)
        if upload is not None and upload.let_go():
            await self._remove(upload)

    async def _receive(self, query: LoadModel) -> Upload:
        """The files of a load in a directory of their own (contract H114)."""
        if query.config is None:
            raise Invalid("Load parameter 'config' must be specified for model file override")
        upload = await self._look(Upload, query.model, query.files)
        self._living.add(upload)
        return upload

    async def _remove(self, upload: Upload) -> None:
        """Unless `abandon` did."""
        if upload in self._living:
            await self._look(upload.remove)
            self._living.discard(upload)


def _check_name(name: str) -> None:
    if not name:
        raise Invalid("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in name or "\\" in name or "\0" in name or name in (".", ".."):
        raise Invalid(f"invalid model name '{name}', model name must not contain path traversal characters")


def _not_polled(name: str, error: Error) -> Internal:
    """What a client reads of a model that does not get as far as a version; the log has the reason (contract H118)."""
    log.error("failed to load '%s': %s", name, error)
    return Internal(f"failed to load '{name}', failed to poll from model repository")
