"""Opens, publishes and closes models: what a load or an unload is, whoever asked for it.

Decides on the event loop, where it alone changes the model table; models are opened and closed on threads. Knows no
protocol and no inference: what a model is once it serves, it is told (`open_versions`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from halimede.backends.api import Instance
from halimede.cache.registry import REDIS
from halimede.config import ModelConfig
from halimede.errors import Error, Invalid, Unavailable
from halimede.loading.ensembles import Ensembles
from halimede.loading.memory_return import MemoryReturn
from halimede.loading.slots import LoadSlots
from halimede.loading.startup_loader import LoadTrain
from halimede.loading.threads import LoadThreads
from halimede.models.agents import Agents, AgentsWanted
from halimede.models.backend_pool import BackendPool
from halimede.models.lifecycle import UNLOADED, ModelTable, plan
from halimede.models.loader import Inspection, LoadedVersion, LoadOptions, LoadResult, inspect_model, load_in_steps
from halimede.models.repository import Fingerprint, FoundModel
from halimede.models.resizing import Reloaded, reload
from halimede.models.resources import reserve
from halimede.models.steps import Steps
from halimede.models.upload import Upload
from halimede.models.version import ModelVersion
from halimede.options import ServerOptions
from halimede.platform.memory import give_memory_back
from halimede.scheduling.rate_limiter import RateLimiter

log = logging.getLogger(__name__)

_NO_VERSIONS_OF = ("config.pbtxt", "configs")
"""What lies in a model's folder and is looked at by its contents."""

Turn = Callable[[str], AbstractAsyncContextManager[None]]
"""Waits for the turn to load or unload a model."""

Accepts = Callable[[frozenset[str]], bool]
"""Whether a load may count although these files of the model changed meanwhile."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the versions in service were loaded from, to see whether a load would change anything."""

    folder: Path
    config: str | None
    fingerprint: Fingerprint
    load_digest: bytes

    def keeps(self, other: "Origin", number: int) -> bool:
        """Whether a version of this origin need not be opened again for the other one (contract R13)."""
        return (
            self.folder == other.folder
            and self.load_digest == other.load_digest
            and _files_of(self.fingerprint, number) == _files_of(other.fingerprint, number)
        )


def _files_of(fingerprint: Fingerprint, number: int) -> list[tuple[str, object]]:
    """Those that a version is made of: its own and those that belong to all versions."""
    kept: list[tuple[str, object]] = []
    for name, stamp in fingerprint:
        first, slash, _ = name.partition("/")
        is_folder = bool(slash) or stamp == (0, 0)
        if first not in _NO_VERSIONS_OF and not (is_folder and first.isdecimal() and int(first) != number):
            kept.append((name, stamp))
    return kept


class ModelLoads:
    """`open_versions` makes of opened versions ones that serve, all or none."""

    def __init__(
        self,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        models: ModelTable,
        backends: BackendPool,
        gpus: tuple[int, ...],
        open_versions: Callable[[Sequence[LoadedVersion]], list[ModelVersion]],
        limiter: RateLimiter | None = None,
        threads: LoadThreads | None = None,
    ) -> None:
        self._loop = loop
        self._models = models
        self._backends = backends
        self._open_versions = open_versions
        self._limiter = limiter
        self.ensembles = Ensembles(models)
        self.threads = threads or LoadThreads(loop)
        self.slots = LoadSlots(options.model_load_thread_count)
        self._train = LoadTrain(loop, self.slots, self.threads.open)
        self._load_options = replace(
            _load_options(options), gpus=gpus, on_loop=loop.call_soon_threadsafe, ending=lambda: self.ending
        )
        self._origins: dict[str, Origin] = {}
        self._uploads: dict[LoadedVersion, Upload] = {}
        self._living: set[Upload] = set()
        self._closing: set[asyncio.Future[None]] = set()
        self._memory = MemoryReturn(loop, lambda: self._begin_closing(self.threads.close(give_memory_back)))
        self.ending = False

    # Loads.

    async def inspect_model(self, found: FoundModel) -> Inspection:
        """Raises Error where the configuration cannot be read, or where the model lies elsewhere and cannot be had."""
        return await self.threads.inspect_model(self._look_at, found)

    def _look_at(self, found: FoundModel) -> Inspection:
        """On a thread."""
        if found.remote is not None:
            found.remote.fetch()
        return inspect_model(found, self._load_options)

    def _look_and_open(self, found: FoundModel) -> Steps[tuple[Inspection, Reloaded | None]]:
        """On threads; an ensemble is only looked at, its members come first. Raises AgentsWanted, too."""
        seen = inspect_model(found, self._load_options, may_ask_agents=False)
        if isinstance(seen.versions, Error) or seen.ensemble is not None:
            return seen, None
        opened = yield from load_in_steps(found, seen.versions, self._backends, self._load_options, seen.draft)
        return seen, Reloaded(opened, {})

    def changes_nothing(self, found: FoundModel, seen: Inspection) -> bool:
        """Whether the model serves as it is, and none of its versions has lost what it runs on (contract R10)."""
        versions = self._models.ready_versions(found.key)
        healthy = bool(versions) and all(version.healthy for version in versions)
        return found.config is None and healthy and self._origins.get(found.key) == _origin(found, seen)

    async def load_at_start(self, found: FoundModel) -> bool:
        """As `load_found`, of one of many models none of which serves yet."""
        return await self.load_found(found, by_train=found.remote is None)

    async def load_found(self, found: FoundModel, accepts: Accepts | None = None, by_train: bool = False) -> bool:
        """A load that nobody waits for; False where it failed, which the log and the index tell."""
        try:
            seen, reloaded = await self._first_look(found, by_train)
        except Error as error:
            self._refuse(found, error)
            return False
        except Exception:
            log.exception("loading model '%s' broke", found.name)
            self._models.refuse(found.key, None, "Internal: the model could not be loaded")
            return False
        if isinstance(seen.versions, Error):
            self._refuse(found, seen.versions, no_usable_version=True)
            return False
        try:
            await self.load(found, seen, accepts=accepts, reloaded=reloaded)
        except Error:
            return False  # told and kept for each version
        except Exception:
            log.exception("publishing model '%s' broke", found.name)
            return False
        return True

    def _refuse(self, found: FoundModel, error: Error, no_usable_version: bool = False) -> None:
        log.error("failed to load '%s': %s", found.name, error)
        advise(found.name, error)
        self._models.refuse(found.key, None, f"{error.word}: {error}", no_usable_version)

    async def _first_look(self, found: FoundModel, by_train: bool) -> tuple[Inspection, Reloaded | None]:
        """By the train the model is opened as well; but its agents, if there are any, hold nobody's slot."""
        if by_train:
            with suppress(AgentsWanted):
                return await self._train.run(self._look_and_open(found))
        return await self.inspect_model(found), None

    async def load(
        self,
        found: FoundModel,
        seen: Inspection,
        upload: Upload | None = None,
        waits: bool = True,
        accepts: Accepts | None = None,
        reloaded: Reloaded | None = None,
    ) -> None:
        """All versions come into service together, or none does; those that are as they were stay. Raises Error with
        the reasons.

        A load that a model asks for does not wait (`waits`) for others to be over: one of those may wait for that
        model. What was `reloaded` already, as if nothing served, only comes into service."""
        if isinstance(seen.versions, Error):
            raise seen.versions
        key, origin = found.key, _origin(found, seen)
        if seen.ensemble is not None and not await self._prepare(found, seen, seen.ensemble):
            return
        kept = {} if seen.ensemble is not None else self._kept(key, origin, seen.versions)
        self._models.loading(key, [number for number in seen.versions if number not in kept], found.name)
        if reloaded is None:
            stay = {number: version.loaded for number, version in kept.items()}
            before = None if accepts is None else seen.fingerprint
            async with self.slots.taken() if waits else nullcontext():
                reloaded = await self.threads.open(
                    reload, found, seen.versions, stay, self._backends, self._load_options, before, seen.draft
                )
        opened = self._take(found, reloaded.opened, upload, seen.ensemble is not None)
        try:
            failure = self._failure(key, reloaded, accepts)
            if failure is not None:
                raise failure
            versions = self._open_versions(opened)
        except Exception as error:
            reason = "Internal: it could not be published"
            if isinstance(error, Error):
                reason = f"{error.word}: {error}" if isinstance(error, Unavailable) else UNLOADED
            await self._drop(key, reloaded, opened, reason)
            raise
        self._publish(key, reloaded, kept, versions)
        self._origins[key] = origin

    def _publish(
        self, key: str, reloaded: Reloaded, kept: Mapping[int, ModelVersion], versions: Sequence[ModelVersion]
    ) -> None:
        """New versions come into service, and those that stay get their other instances."""
        for number, change in reloaded.resized.items():
            kept[number].resize(change, self._let_go)
        staying = [kept[number] for number in reloaded.resized]
        self._models.publish(key, [*staying, *versions], self._close)
        if versions:
            self.ensembles.changed(key)
        for version in versions:
            about = {"model": version.name, "version": version.number}
            log.info("successfully loaded '%s'", version.name, extra=about)

    def _take(
        self, found: FoundModel, result: LoadResult, upload: Upload | None, is_ensemble: bool
    ) -> list[LoadedVersion]:
        """The versions that were opened and have what else they need: resources of the rate limiter, their members.
        Those that have not are closed, and the reason is in the result."""
        opened = [version for version in result.versions.values() if isinstance(version, LoadedVersion)]
        if upload is not None:
            upload.hold(len(opened))
            self._uploads.update(dict.fromkeys(opened, upload))
        unable = list(reserve(result, self._limiter)) if self._limiter is not None else []
        if is_ensemble:
            unable += self.ensembles.join(found, result)
        for refused in unable:
            opened.remove(refused)
            self._release(refused)
        return opened

    async def _prepare(self, found: FoundModel, seen: Inspection, config: ModelConfig) -> bool:
        """The members of an ensemble are loaded, and fit; whether it is to be loaded itself. An ensemble that cannot be
        loaded does not serve on as it was: that is not known to fit any more. Raises Error."""
        try:
            await self.ensembles.prepare(found, config)
        except Error as error:
            log.error("failed to load '%s': %s: %s", found.name, error.word, error)
            self.retire(found.key)
            raise
        return self.ensembles.is_stale(found.key) or not self.changes_nothing(found, seen)

    def _kept(self, key: str, origin: Origin, numbers: Sequence[int]) -> Mapping[int, ModelVersion]:
        """The versions that serve and can go on as they are, but for their instances (contract R13)."""
        before = self._origins.get(key)
        if before is None:
            return {}
        return {
            version.number: version
            for version in self._models.ready_versions(key)
            if version.number in numbers and version.healthy and before.keeps(origin, version.number)
        }

    def _failure(self, key: str, reloaded: Reloaded, accepts: Accepts | None) -> Error | None:
        """Why the load failed, if it did; the reason of each version is kept for the index."""
        if self.ending:
            return Unavailable("Server exiting")
        result = reloaded.opened
        failures = {number: error for number, error in result.versions.items() if isinstance(error, Error)}
        for number, error in failures.items():
            about = {"model": result.name, "version": number}
            log.error("failed to load '%s' version %d: %s: %s", result.name, number, error.word, error, extra=about)
            advise(result.name, error)
            self._models.refuse(key, number, f"{error.word}: {error}")
        texts = [
            f"version {number} is at UNAVAILABLE state: {error.word}: {error};" for number, error in failures.items()
        ]
        if texts:
            failure = Invalid("".join(texts))
            self.ensembles.failed(key, failure)
            return failure
        if accepts is not None and reloaded.changed and not accepts(reloaded.changed):
            log.warning(
                "the files of model '%s' changed while it was loaded: it is loaded once they do not", result.name
            )
            return Unavailable("files of the model changed while it was loaded")
        return None

    async def _drop(self, key: str, reloaded: Reloaded, opened: Sequence[LoadedVersion], reason: str) -> None:
        """Closes what was opened; the versions that served before serve on (contract R11)."""
        for version in opened:
            self._models.refuse(key, version.number, reason)
            self._release(version)
        if reloaded.resized:
            await self.threads.close(reloaded.undo)

    # Unloads.

    def unload(self, key: str) -> None:
        """It takes nothing more from now on (contract R14), nor do the ensembles that are made of it (R16)."""
        for dependent in self.ensembles.leaving(key):
            self._take_out(dependent)
        self._take_out(key)

    def retire(self, key: str) -> None:
        """The same; but an ensemble comes back once it can be loaded."""
        for dependent in self.ensembles.retiring(key):
            self._take_out(dependent)
        self._take_out(key)

    def _take_out(self, key: str) -> None:
        self._origins.pop(key, None)
        for version in self._models.ready_versions(key):
            self._models.retire(version, self._close)

    async def refresh(self, turn: Turn) -> None:
        """Loads the ensembles again whose members are others than they were, and those that can be loaded again; each
        in its turn."""
        for found in self.ensembles.wanted():
            if self.ensembles.is_stale(found.key):
                async with turn(found.name):
                    if not self.ending and self.ensembles.is_stale(found.key):
                        await self.load_found(found)

    def unload_all(self) -> None:
        for key in plan(self._models.keys(), ()).unload:
            self.unload(key)

    def _close(self, version: ModelVersion) -> None:
        """Nobody holds the version any more."""
        version.close()
        self._release(version.loaded, version)

    def _release(self, loaded: LoadedVersion, served: ModelVersion | None = None) -> None:
        """Closes an opened version on a thread; `served` is the one that answered requests, where it did."""
        if loaded.turns is not None:
            loaded.turns.retire()
        self._begin_closing(self._give_back(loaded, served))

    def _unloaded(self, version: ModelVersion) -> None:
        self._models.gone(version)
        about = {"model": version.name, "version": version.number}
        log.info("successfully unloaded '%s' version %d", version.name, version.number, extra=about)

    def _let_go(self, instance: Instance) -> None:
        """Closes an instance of a version that serves on."""
        self._begin_closing(self._close_instance(instance))

    def _begin_closing(self, work: Coroutine[Any, Any, None]) -> None:
        closing = self._loop.create_task(work)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close_instance(self, instance: Instance) -> None:
        try:
            await self.threads.close(instance.close)
        except Exception:
            log.exception("closing an instance broke")

    async def _give_back(self, loaded: LoadedVersion, served: ModelVersion | None) -> None:
        """The files that came for it go with the last that used them."""
        await self.threads.close(loaded.close)  # broken off at the end of the server: then it is not unloaded
        if served is not None:
            self._unloaded(served)
        self._memory.ask()
        if loaded.turns is not None:
            loaded.turns.close()
        upload = self._uploads.pop(loaded, None)
        if upload is not None and upload.let_go():
            await self.remove(upload)

    # Files that come with a load.

    async def receive(self, model: str, files: Sequence[tuple[str, bytes]]) -> Upload:
        """They lie in a directory of their own (contract H114)."""
        upload = await self.threads.look(Upload, model, files)
        self._living.add(upload)
        return upload

    async def remove(self, upload: Upload) -> None:
        """Unless `abandon` did."""
        if upload in self._living:
            await self.threads.look(upload.remove)
            self._living.discard(upload)

    # The end.

    @property
    def closing(self) -> set[asyncio.Future[None]]:
        """What is being closed."""
        return self._closing

    def kill(self) -> asyncio.Future[None]:
        """Makes loads under way end soon, and what does not close: workers are killed."""
        self.ending = True
        return self.threads.kill(self._backends.close)

    def abandon(self) -> None:
        """The threads take nothing more; what they do now, they finish. No file of a load is left behind."""
        self._memory.end()
        self.threads.abandon()
        for upload in self._living:
            upload.remove()
        self._living.clear()


def advise(model: str, error: Error) -> None:
    """What may help, where somebody knows it."""
    if error.advice:
        log.warning("model '%s': %s", model, error.advice, extra={"model": model})


def _load_options(options: ServerOptions) -> LoadOptions:
    return LoadOptions(
        auto_complete=options.auto_complete_config,
        config_name=options.model_config_name,
        retries=options.model_load_retry_count,
        settings=options.backend_settings,
        backend_directory=Path(options.backend_directory),
        agents=Agents(Path(options.repoagent_directory), options.model_config_name),
        host_policies=options.host_policies,
        digests=REDIS in options.cache_config,
    )


def _origin(found: FoundModel, seen: Inspection) -> Origin:
    return Origin(found.folder, found.config, seen.fingerprint, seen.load_digest)
