"""Loads and unloads models: plan, load, publish or refuse, retire.

    step      what it does                                                  where
    inspect   Reads the configuration, and finds the versions to serve.     inspection thread, `models.inspection`
    plan      Decides which versions stay and which are opened.             `_plan`
    load      Opens versions, and adds instances to those that stay.        load thread, `models.resizing`
    connect   Gives ensembles their members, and versions limiter slots.    `_connect`
    publish   Brings all versions into service at once.                     `_publish`
    refuse    Closes all that was opened if one version failed.             `_check`, `_drop`
    retire    Takes versions, and ensembles made of them, out of service.   `unload`, `retire`
    close     Closes a version when no inference holds it.                  closing thread, `loading.closing`

Steps without a thread run on the event loop, which alone changes the model table. A version that was opened is either
published or closed. A load at the start inspects and opens in one job (`StartupLoader`), and plans when nothing serves.

Knows no protocol and no inference: `make_serving` makes versions that serve of opened ones. The caller holds the lock
of the model (`ModelLocks`), so loads of one model do not overlap.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from halimede.cache.registry import REDIS
from halimede.config import ModelConfig
from halimede.errors import Error, Internal, Invalid, Unavailable, shortened
from halimede.loading.closing import Closing
from halimede.loading.concurrency import LoadSlots, LoadThreads
from halimede.loading.ensembles import Ensembles
from halimede.loading.startup_loader import StartupLoader
from halimede.loading.uploads import Upload, Uploads
from halimede.models.agents import Agents, AgentsWanted
from halimede.models.backend_pool import BackendPool
from halimede.models.inspection import Inspection, inspect_model
from halimede.models.lifecycle import UNLOADED, ModelTable
from halimede.models.loader import MAX_REASON, LoadedVersion, LoadOptions, load
from halimede.models.repository import Fingerprint, FoundModel
from halimede.models.resizing import LoadOutcome, load_or_resize
from halimede.models.version import ModelVersion
from halimede.options import ServerOptions
from halimede.scheduling.rate_limiter import RateLimiter

log = logging.getLogger(__name__)

UNLOAD_PATIENCE_SECONDS = 5.0
"""Time that an unload waits for the load of its model. Then the load ends at its next step: before the model is opened,
an instance is created, or a warm-up sample runs."""
_NOT_OF_A_VERSION = ("config.pbtxt", "configs")
"""Entries of a model's folder that `Origin.load_digest` covers by their contents."""

Lock = Callable[[str], AbstractAsyncContextManager[None]]
"""Holds the lock of a model by its name."""

Accepts = Callable[[frozenset[str]], bool]
"""Whether a load may be published although these files of the model were written meanwhile."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the versions in service were loaded from. If it is still the same, a load changes nothing."""

    folder: Path
    config: str | None
    fingerprint: Fingerprint
    load_digest: bytes

    @classmethod
    def of(cls, found: FoundModel, inspection: Inspection) -> "Origin":
        return cls(found.folder, found.config, inspection.fingerprint, inspection.load_digest)

    def overrides(self, found: FoundModel) -> bool:
        """Whether a client's configuration counts that came with an earlier load: the files are as they were then.
        Reads the directory."""
        if self.config is None or self.folder != found.folder:
            return False
        try:
            return found.fingerprint() == self.fingerprint
        except OSError:
            return False  # the inspection comes next and reports it

    def keeps(self, other: "Origin", number: int) -> bool:
        """Whether a version that was loaded from here also serves for `other`, without being opened again (R13)."""
        return (
            self.folder == other.folder
            and self.load_digest == other.load_digest
            and _files_of(self.fingerprint, number) == _files_of(other.fingerprint, number)
        )


def _files_of(fingerprint: Fingerprint, number: int) -> list[tuple[str, object]]:
    """The files that a version is made of: its own, and those that belong to all versions."""
    kept: list[tuple[str, object]] = []
    for name, stamp in fingerprint:
        first, slash, _ = name.partition("/")
        is_folder = bool(slash) or stamp == (0, 0)  # a directory has no stamp of its own
        if first not in _NOT_OF_A_VERSION and not (is_folder and first.isdecimal() and int(first) != number):
            kept.append((name, stamp))
    return kept


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What a load does, as decided before anything is opened."""

    found: FoundModel
    inspection: Inspection
    versions: Sequence[int]
    """The versions to serve."""
    kept: Mapping[int, ModelVersion]
    """Those of them that stay in service: their files are the same, so at most their instances change (R13)."""
    origin: Origin

    @property
    def to_open(self) -> list[int]:
        return [number for number in self.versions if number not in self.kept]


class ModelLoads:
    """`make_serving` makes versions that serve of opened ones. If one of them fails it raises, and none serves."""

    def __init__(
        self,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        models: ModelTable,
        backends: BackendPool,
        gpus: tuple[int, ...],
        make_serving: Callable[[Sequence[LoadedVersion]], list[ModelVersion]],
        limiter: RateLimiter | None = None,
        threads: LoadThreads | None = None,
    ) -> None:
        self._models = models
        self._backends = backends
        self._make_serving = make_serving
        self.ensembles = Ensembles(models)
        self.threads = threads or LoadThreads(loop)
        self.slots = LoadSlots(options.model_load_thread_count)
        self.uploads = Uploads(self.threads)
        self._startup = StartupLoader(loop, self.slots, self.threads.open)
        self._closing = Closing(loop, self.threads, self.uploads, self._unloaded)
        self._load_options = LoadOptions(
            auto_complete=options.auto_complete_config,
            config_name=options.model_config_name,
            retries=options.model_load_retry_count,
            settings=options.backend_settings,
            backend_directory=Path(options.backend_directory),
            agents=Agents(Path(options.repoagent_directory), options.model_config_name),
            host_policies=options.host_policies,
            digests=REDIS in options.cache_config,
            gpus=gpus,
            gpu_fallback=options.gpu_fallback,
            max_instances=options.client_limits.instances,
            max_warmup_samples=options.client_limits.warmup_samples,
            unwanted=lambda name: name in self._unloads,
            overdue=self._is_overdue,
            on_loop=loop.call_soon_threadsafe,
            ending=lambda: self.ending,
            limiter=limiter,
        )
        self._origins: dict[str, Origin] = {}
        self.ending = False
        """Whether the server stops: loads under way fail, and no other begins."""
        self._unloads: dict[str, list[float]] = {}
        """By model, since when unloads wait for its load. Load threads read it."""

    # Inspection.

    async def inspect(self, found: FoundModel) -> Inspection:
        """Raises Error if the configuration cannot be read, or if a model in a cloud cannot be copied."""
        return await self.threads.inspect(self._inspect_on_thread, found)

    async def inspect_with_override(self, found: FoundModel) -> tuple[FoundModel, Inspection]:
        """Inspects the model with the configuration of the client that it serves with, as long as its files are
        unchanged (H113). Returns it with that configuration. Raises Error like `inspect`."""
        return await self.threads.inspect(self._inspect_with_override, found, self._origins.get(found.key))

    def _inspect_with_override(self, found: FoundModel, origin: Origin | None) -> tuple[FoundModel, Inspection]:
        if found.remote is not None:
            found.remote.fetch()
        if found.config is None and origin is not None and origin.overrides(found):
            found = replace(found, config=origin.config)
        return found, inspect_model(found, self._load_options)

    def _inspect_on_thread(self, found: FoundModel) -> Inspection:
        return self._inspect_with_override(found, None)[1]

    def is_up_to_date(self, found: FoundModel, inspection: Inspection) -> bool:
        """Whether the model serves as it is, and no version has lost its instances (R10)."""
        versions = self._models.ready_versions(found.key)
        # A load is how an operator gets a model back whose workers are gone for good.
        healthy = bool(versions) and all(version.healthy for version in versions)
        return healthy and self._origins.get(found.key) == Origin.of(found, inspection)

    # Loads without a client: a failure goes to the log and to the repository index.

    async def load_at_start(self, found: FoundModel) -> bool:
        """Loads a model at the start, when none serves. Returns whether it serves now."""
        # A copy from a cloud takes long. An inspection thread makes it, without a slot.
        if found.remote is not None:
            return await self.load_found(found)
        try:
            # The worker thread that takes the job holds the slot. Nothing gives it up: at the start a model cannot load
            # others (P28), and an ensemble waits for its members after this.
            inspection, outcome = await self._startup.run(lambda: self._inspect_and_open(found))
        except AgentsWanted:  # agents may take long too
            return await self.load_found(found)
        except Exception as error:
            self._refuse_model(found, error)
            return False
        return await self._try_to_load(found, inspection, outcome=outcome)

    def _inspect_and_open(self, found: FoundModel) -> tuple[Inspection, LoadOutcome | None]:
        """On a thread of the startup loader. Raises as `inspect_model`."""
        inspection = inspect_model(found, self._load_options, may_ask_agents=False)
        # An ensemble is opened later, after its members.
        if isinstance(inspection.versions, Error) or inspection.ensemble is not None:
            return inspection, None
        result = load(found, inspection.versions, self._backends, self._load_options, inspection.draft)
        return inspection, LoadOutcome(result)

    async def load_found(self, found: FoundModel, accepts: Accepts | None = None, again: bool = False) -> bool:
        """Loads a model. `again`: an ensemble, because a member has changed. Returns whether it serves now."""
        try:
            inspection = await self.inspect(found)
        except Exception as error:
            self._refuse_model(found, error)
            return False
        return await self._try_to_load(found, inspection, accepts, again=again)

    async def _try_to_load(
        self,
        found: FoundModel,
        inspection: Inspection,
        accepts: Accepts | None = None,
        outcome: LoadOutcome | None = None,
        again: bool = False,
    ) -> bool:
        if isinstance(inspection.versions, Error):
            self._refuse_model(found, inspection.versions, no_usable_version=True)
            return False
        try:
            await self.load_inspected(found, inspection, accepts=accepts, outcome=outcome)
        except Error as error:  # `load_inspected` has logged it
            # An ensemble that does not fit its members has no version that could keep the reason. Triton's index says
            # nothing of one that served before, or that a client has asked for, which gets the reason in the answer.
            record = self._models.get(found.key)
            if inspection.ensemble is not None and not again and not (record and record.versions):
                self._models.refuse(found.key, None, f"{error.word}: {error}")
            return False
        except Exception:
            log.exception("model '%s': unexpected error while it was loaded; it serves as before", found.name)
            return False
        return True

    def _refuse_model(self, found: FoundModel, error: Exception, no_usable_version: bool = False) -> None:
        """Keeps and logs why no version of the model could be loaded."""
        if isinstance(error, Error):
            log.error("failed to load '%s': %s", found.name, shortened(str(error), MAX_REASON))
            log_advice(found.name, error)
            # For people who look into the index. A client that asks for the load gets Triton's text alone.
            reason = f"{error.word}: {error}" + (f"; {error.advice}" if no_usable_version and error.advice else "")
        else:
            log.error("model '%s': unexpected error during its inspection", found.name, exc_info=error)
            reason = "Internal: the model could not be loaded"
        self._models.refuse(found.key, None, reason, no_usable_version)

    # A load, step by step.

    async def load_inspected(
        self,
        found: FoundModel,
        inspection: Inspection,
        upload: Upload | None = None,
        waits_for_slot: bool = True,
        accepts: Accepts | None = None,
        outcome: LoadOutcome | None = None,
        forced: bool = False,
        client: str = "",
    ) -> None:
        """Brings all versions of the model into service, or none. Versions that are as they were stay in service.
        `forced`: an ensemble is loaded even if nothing has changed.

        A load that a model asks for while it is loaded takes no slot (`waits_for_slot`): its asker gave up its own, and
        would otherwise wait behind all loads of a start. `outcome` is what the startup loader has opened already.
        `client` is who asked.
        Raises Error with the reasons.
        """
        if isinstance(inspection.versions, Error):
            raise inspection.versions
        if inspection.ensemble is not None:
            await self._prepare_ensemble(found, inspection.ensemble)
            # Neither its folder nor its members have changed.
            if not (forced or self.ensembles.is_stale(found.key)) and self.is_up_to_date(found, inspection):
                return
        plan = self._plan(found, inspection, inspection.versions)
        # Versions that stay are READY all the time.
        self._models.loading(found.key, plan.to_open, found.name)
        # From here on each version is published or refused, and what was opened is closed if it is not published.
        try:
            if outcome is None:
                async with self.slots.acquired(found.name, client) if waits_for_slot else nullcontext():
                    outcome = await self._open(plan, looks_for_changes=accepts is not None)
            self._connect(plan, outcome, upload)
            self._check(found.key, outcome, accepts)
            versions = self._make_serving(outcome.result.opened)
        except Exception as error:
            await self._drop(plan, outcome, error)
            raise
        self._publish(plan, outcome, versions)

    async def _prepare_ensemble(self, found: FoundModel, config: ModelConfig) -> None:
        """Loads the members of an ensemble first. Raises Error if one is missing or does not fit."""
        try:
            await self.ensembles.prepare(found, config)
        except Error as error:
            log.error("failed to load '%s': %s: %s", found.name, error.word, error)
            # What serves is retired too: it may not fit its members any more.
            self.retire(found.key)
            raise

    def _plan(self, found: FoundModel, inspection: Inspection, versions: Sequence[int]) -> LoadPlan:
        origin = Origin.of(found, inspection)
        before = self._origins.get(found.key)
        kept: dict[int, ModelVersion] = {}
        # An ensemble has no instances to change, and is only loaded if its members changed: it is always opened again.
        if before is not None and inspection.ensemble is None:
            for version in self._models.ready_versions(found.key):
                # A version whose workers are gone for good is opened again, even if its files are the same.
                if version.number in versions and version.healthy and before.keeps(origin, version.number):
                    kept[version.number] = version
        return LoadPlan(found, inspection, versions, kept, origin)

    async def _open(self, plan: LoadPlan, looks_for_changes: bool) -> LoadOutcome:
        return await self.threads.open(
            load_or_resize,
            plan.found,
            plan.versions,
            {number: version.instances_now() for number, version in plan.kept.items()},
            self._backends,
            self._load_options,
            # Only a poll cares: a client that loads a model has finished writing it.
            plan.inspection.fingerprint if looks_for_changes else None,
            plan.inspection.draft,
        )

    def _connect(self, plan: LoadPlan, outcome: LoadOutcome, upload: Upload | None) -> None:
        """Connects opened versions to what only the event loop may use: an ensemble to its members, instances to the
        rate limiter. A version for which that fails is closed, and its error takes its place in the outcome."""
        versions, is_ensemble = outcome.result.versions, plan.inspection.ensemble is not None
        for number, change in outcome.resized.items():
            slots = plan.kept[number].loaded.limiter_slots
            if slots is not None:
                try:
                    slots.add(change.slots)
                except Invalid as error:
                    versions[number] = error
        for opened in outcome.result.opened:
            version = opened
            try:
                # Its members may have changed while it was opened.
                if is_ensemble:
                    version = self.ensembles.with_members(plan.found, opened)
                if version.limiter_slots is not None:
                    version.limiter_slots.register()
                versions[version.number] = version
            except Exception as error:
                versions[version.number] = self._unexpected(version, error)
                self._closing.close_unpublished(version)
            if upload is not None:
                self.uploads.use(upload, version)
        if is_ensemble:  # even if it failed: it is not loaded again before its members change
            self.ensembles.loaded(plan.found.key)

    @staticmethod
    def _unexpected(version: LoadedVersion, error: Exception) -> Error:
        """The reason of a version: the error if it is an Error, else an Internal one, and the traceback is logged."""
        if isinstance(error, Error):
            return error
        log.error(
            "model '%s' version %d: unexpected error when it was put into service; it is closed",
            version.config.name,
            version.number,
            exc_info=error,
            extra={"model": version.config.name, "version": version.number},
        )
        return Internal(f"{type(error).__name__}: {error}")

    def _check(self, key: str, outcome: LoadOutcome, accepts: Accepts | None) -> None:
        """Raises Error if the load failed. The reason of each version is kept for the repository index."""
        # `stop` has unloaded what served. Nothing would unload what comes into service after that.
        if self.ending:
            raise Unavailable("Server exiting")
        name, failures = outcome.result.name, outcome.result.failures
        for number, error in failures.items():
            about = {"model": name, "version": number}
            log.error("failed to load '%s' version %d: %s: %s", name, number, error.word, error, extra=about)
            log_advice(name, error)
            self._models.refuse(key, number, f"{error.word}: {error}")
        if failures:
            texts = [f"version {number} is at UNAVAILABLE state: {e.word}: {e};" for number, e in failures.items()]
            failure = Invalid("".join(texts))
            self.ensembles.model_failed(key, failure)
            raise failure
        if accepts is not None and outcome.changed and not accepts(outcome.changed):
            log.warning(
                "model '%s': its files changed while it was loaded (%s); it is loaded again once they stay the same",
                name,
                ", ".join(sorted(outcome.changed)[:3]) or "the folder is gone",
            )
            raise Unavailable("files of the model changed while it was loaded")

    def _publish(self, plan: LoadPlan, outcome: LoadOutcome, versions: Sequence[ModelVersion]) -> None:
        """Brings new versions into service, retires those that they replace, and resizes those that stay."""
        key = plan.found.key
        # Nothing below fails or waits, so no client sees half of a change.
        for number, change in outcome.resized.items():
            plan.kept[number].resize(change, self._closing.close_instance)
        staying = [plan.kept[number] for number in outcome.resized]
        self._models.publish(key, [*staying, *versions], self._closing.close_served)
        # A resize changes nothing that an ensemble depends on.
        if versions:
            self.ensembles.model_changed(key)
        for version in versions:
            about = {"model": version.name, "version": version.number}
            log.info("successfully loaded '%s'", version.name, extra=about)
        self._origins[key] = plan.origin

    async def _drop(self, plan: LoadPlan, outcome: LoadOutcome | None, error: Exception) -> None:
        """Closes what was opened. Versions that served before the load serve on (R11)."""
        if not isinstance(error, Error):
            reason = "Internal: it could not be published"
        elif isinstance(error, Unavailable):  # the load as a whole: the server ends, or the files changed (`_check`)
            reason = f"{error.word}: {error}"
        else:
            reason = UNLOADED  # another version failed; this one is fine, and is shown as Triton shows it
        failures = {} if outcome is None else outcome.result.failures
        for number in plan.versions:
            failure = failures.get(number)
            self._models.refuse(plan.found.key, number, reason if failure is None else f"{failure.word}: {failure}")
        if outcome is None:  # no thread took the load: nothing was opened
            return
        for version in outcome.result.opened:
            self._closing.close_unpublished(version)
        for number, change in outcome.resized.items():
            slots = plan.kept[number].loaded.limiter_slots
            if slots is not None:
                slots.discard(change.slots)
        if outcome.resized:
            await self.threads.close(outcome.undo)

    # Unloads.

    @contextmanager
    def giving_up(self, name: str) -> Iterator[None]:
        """While an unload of the model waits, the load under way builds no environment for it. If it waits for long,
        loads of the model end at their next step."""
        waiting = self._unloads.setdefault(name, [])
        waiting.append(since := monotonic())
        try:
            yield
        finally:
            waiting.remove(since)
            if not waiting:
                del self._unloads[name]

    def _is_overdue(self, name: str) -> bool:
        """Whether an unload of the model has waited for long. Any thread."""
        waiting = self._unloads.get(name)
        # The list may become empty meanwhile.
        return bool(waiting) and monotonic() - min(waiting or (), default=monotonic()) > UNLOAD_PATIENCE_SECONDS

    def unload(self, key: str) -> None:
        """The model takes no more requests (R14), nor do the ensembles that are made of it (R16)."""
        self._wait_for_members(self.ensembles.model_unloaded(key))
        self._take_out_of_service(key)
        self._models.awaits_members(key, False)

    def retire(self, key: str) -> None:
        """An ensemble that cannot be loaded leaves service. `refresh` loads it again when a member changes."""
        self._wait_for_members([*self.ensembles.model_retired(key), key])

    def _wait_for_members(self, ensembles: Iterable[str]) -> None:
        for key in ensembles:
            self._take_out_of_service(key)
            self._models.awaits_members(key, True)

    def unload_all(self) -> None:
        # An ensemble that goes before its members has none to take along.
        ensembles = self.ensembles.from_the_top()
        for key in [*ensembles, *sorted(set(self._models.keys()).difference(ensembles))]:
            self.unload(key)

    def _take_out_of_service(self, key: str) -> None:
        self._origins.pop(key, None)
        versions = self._models.ready_versions(key)
        if versions:
            self._models.retire(key, versions, self._closing.close_served)

    def _unloaded(self, version: ModelVersion) -> None:
        """Called when a version that served is closed."""
        self._models.gone(version)
        about = {"model": version.name, "version": version.number}
        log.info("successfully unloaded '%s' version %d", version.name, version.number, extra=about)

    async def refresh(self, lock: Lock) -> None:
        """Loads the ensembles again whose members changed, or which could not be loaded before, each under its lock."""
        for found in self.ensembles.wanted():
            if self.ensembles.is_stale(found.key):
                async with lock(found.name):
                    # Another load of the ensemble may have come first while this one waited for the lock.
                    if not self.ending and self.ensembles.is_stale(found.key):
                        await self.load_found(found, again=True)

    # The end.

    @property
    def closing(self) -> set[asyncio.Future[None]]:
        """The closing tasks under way."""
        return self._closing.under_way

    def kill(self) -> asyncio.Future[None]:
        """Closes the backends, which kills their processes: loads under way fail soon, and what hangs ends."""
        self.ending = True
        return self.threads.kill(self._backends.close)

    def abandon(self) -> None:
        """The threads take no more work. Removes all uploads."""
        self._closing.end()
        self.threads.abandon()
        self.uploads.abandon()


def log_advice(model: str, error: Error) -> None:
    """Logs the error's advice to the operator, if it has any."""
    if error.advice:
        log.warning("model '%s': %s", model, error.advice, extra={"model": model})
