"""The engine: the one entry to the models for every front end (it implements `EnginePort`), and the owner of all state.

It lives on one event-loop thread. Loads run on other threads and report their results to it. It knows no protocol:
questions and answers are plain values. Two engines in one process share no state of the server (ARCHITECTURE.md).
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, islice
from pathlib import Path
from time import monotonic_ns
from typing import Any, TypeVar, cast

from halimede.backends.api import BackendContext, ProcessThreads
from halimede.backends.runtimes import origin_of
from halimede.cache.api import CacheCounts
from halimede.cache.registry import open_cache
from halimede.engine.answers import Answers
from halimede.engine.classification import ClassifyingReply
from halimede.engine.late_start import LateStart, answers_may_lie_afar, far_strings, frame_all
from halimede.engine.log_settings import Logging
from halimede.engine.model_calls import ModelCalls
from halimede.engine.response_cache import CachedCall, CacheInterceptor, ResponseCache
from halimede.engine.shared_answers import SharedAnswers
from halimede.engine.shared_memory import Lease, SharedMemory
from halimede.engine.tracing import open_tracing
from halimede.engine_port import (
    LoadModel,
    ModelReady,
    ModelStatistics,
    Query,
    RepositoryIndex,
    ServerReady,
    UnloadModel,
)
from halimede.errors import Cancelled, DecoupledModel, Error, Internal, Unavailable
from halimede.loading.model_loads import ModelLoads
from halimede.loading.repository_control import RepositoryControl
from halimede.measurement.loop_lag import LoopLag
from halimede.measurement.machine import Machine
from halimede.measurement.metrics import custom_metrics
from halimede.measurement.scrape import Measuring, latencies_of
from halimede.measurement.statistics import Statistics
from halimede.models.backend_pool import backends_in
from halimede.models.lifecycle import ModelTable, NamespacedTable
from halimede.models.loader import LoadedVersion
from halimede.models.readiness import ask_all
from halimede.models.repository import Catalog, FoundModel
from halimede.models.version import ModelVersion
from halimede.models.warmup import count_runs
from halimede.options import LogOptions, ServerOptions, suggestion
from halimede.platform.cuda import load_driver
from halimede.platform.gpu_meters import open_gpus
from halimede.platform.gpus import visible_gpus
from halimede.platform.limits import most_files
from halimede.platform.offload import OffloadPool
from halimede.platform.scratch import user_cache
from halimede.platform.slices import run_in_slices
from halimede.platform.timers import Timers
from halimede.platform.worker_poller import WorkerPoller
from halimede.requests import InferRequest, Reply, Stamp
from halimede.scheduling.inference import SETTLED, Inference, State
from halimede.scheduling.inline import TurnBudget
from halimede.scheduling.rate_limiter import RateLimiter

log = logging.getLogger(__name__)

A = TypeVar("A")

LEAST_CLOSE_SECONDS = 1.0
"""Time for the models to close, even if the exit timeout is shorter."""
MAX_COMPARED = 1000
"""Names of models that a name is compared with: each takes some microseconds."""
MAX_NAME = 100
"""Characters of a name that is compared with others."""


class EngineLoop:
    """The event loop as the runners see it, with the engine's timers and its budget of inline work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timers = Timers(loop)
        self.budget = TurnBudget(loop.call_soon)
        self.call_soon: Callable[[Callable[[], None]], object] = loop.call_soon
        self.call_soon_threadsafe: Callable[..., object] = loop.call_soon_threadsafe
        self.call_at = self._timers.call_at

    def close(self) -> None:
        self._timers.close()


class Engine:
    """Create it on the event loop that it lives on. `start` loads the models, `stop` closes them.

    `apply_log` is called when a client changes the log settings. `catalog_of` scans repositories, on a thread. `bound`
    lists the models that the program adds to them.
    """

    def __init__(
        self,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        apply_log: Callable[[LogOptions], None] = lambda options: None,
        catalog_of: Callable[[Sequence[str]], Catalog] | None = None,
        bound: Callable[[], Iterable[FoundModel]] = tuple,
    ) -> None:
        self._options = options
        self._loop = loop
        gpus = visible_gpus(os.environ)
        self._engine_loop = EngineLoop(loop)
        self._models = NamespacedTable() if options.model_namespacing else ModelTable()
        self._statistics: dict[tuple[str, int], Statistics] = {}
        self._inferences: dict[int, tuple[Inference, ModelVersion]] = {}
        self._keys = count(1)
        self._drained: Callable[[], None] | None = None
        self._stopping = False
        self._offload = OffloadPool(loop, threads=2)
        self._machine = Machine(options.measuring, lambda: open_gpus(os.environ) if gpus else None)
        self._lag = LoopLag(self._engine_loop.call_at)
        metrics = custom_metrics()
        calls = ModelCalls(self, metrics)
        worker_poller = self._worker_poller = WorkerPoller()
        backends = backends_in(
            lambda name: BackendContext(
                *(loop, options.backend_settings(name), calls, worker_poller, ProcessThreads(name)),
                environment_directory=_environment_directory(options),
                environment_limit=options.environment_limit_secs,
            )
        )
        limiter = self._limiter(options)
        loads = ModelLoads(options, loop, self._models, backends, gpus, self._make_serving, limiter)
        self._repository = RepositoryControl(options, loop, self._models, loads, catalog_of, bound)
        self._shared_memory = SharedMemory(options.allow_client_shm, load_driver if gpus else None, files=most_files())
        self._leases: dict[int, Lease] = {}
        self._late: dict[int, LateStart] = {}
        """By key, inferences that have not begun because their strings are being read."""
        self.tracing = open_tracing(self._models, options.trace)
        elsewhere = {
            **self._shared_memory.answers,
            **Measuring(
                options.measuring,
                self._models,
                self._statistics,
                metrics,
                self._machine,
                self._lag,
                self._oldest_waiting,
                self._cache_counts,
            ).answers,
            **Logging(options.log, apply_log).answers,
            **self.tracing.answers,
        }
        self._cache: ResponseCache | None = None
        self._answers = Answers(options, self._models, self._statistics, elsewhere)
        self._of_all_models: dict[type[Query[Any]], SharedAnswers] = {
            # A model that is asked whether it is ready may take long, or have no answer.
            ServerReady: SharedAnswers(self._ask, self._engine_loop.call_soon, in_turn=False),
            RepositoryIndex: SharedAnswers(self._ask, self._engine_loop.call_soon),
            ModelStatistics: SharedAnswers(self._ask, self._engine_loop.call_soon),
        }

    @property
    def models(self) -> ModelTable:
        """The state table, for reading."""
        return self._models

    @property
    def backends(self) -> list[tuple[str, str, Mapping[str, str]]]:
        """Name, location and settings of each backend that a ready model uses (L6)."""
        models, options = self._models, self._options
        names = {version.config.backend for record in models for version in models.ready_versions(record.key)}
        return [
            (name, origin_of(name, options.backend_directory), options.backend_settings(name))
            for name in sorted(filter(None, names))
        ]

    @property
    def started(self) -> bool:
        """Whether the start has finished loading models."""
        return self._answers.ready

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    # Start and stop.

    def open_cache(self) -> None:
        """Opens the response cache if the options ask for one. Raises Error if its options are invalid. `start` calls
        it too; the command calls it earlier, to refuse wrong options before anything else happens."""
        if self._cache is not None:
            return
        opened = open_cache(self._options.cache_config, self._options.cache_directory, self._engine_loop)
        if opened is not None:
            cache, single_flight = opened
            self._cache = ResponseCache(cache, self._offload, self._loop.call_soon, single_flight)

    def _cache_counts(self) -> CacheCounts | None:
        return None if self._cache is None else self._cache.counts

    def _oldest_waiting(self) -> dict[ModelVersion, int]:
        """Since when the oldest queued inference waits, by version, in monotonic nanoseconds."""
        found: dict[ModelVersion, int] = {}
        # A dict keeps the order of arrival, so the first inference of a version is its oldest.
        for inference, version in self._inferences.values():
            if version not in found and inference.state is not State.SETTLED and version.is_queued(inference):
                found[version] = inference.times[Stamp.REQUEST_START]
        return found

    async def start(self) -> bool:
        """Loads the models. Returns False if one of them failed. Raises Error if a repository cannot be read."""
        self.open_cache()
        if self._options.metrics.allowed or self._options.measuring.on_http:
            self._machine.start()
            self._lag.start()
        fine = await self._repository.start()
        self._answers.ready = True
        return fine

    async def load(self, model: str) -> None:
        """Loads a model for the program that runs the server, in any mode of model control. Raises Error."""
        await self._repository.load(LoadModel(model))

    async def unload(self, model: str, dependents: bool = False) -> None:
        """Likewise. Returns as soon as the model takes no more requests. With `dependents` the members that only it
        needed are unloaded too."""
        await self._repository.unload(UnloadModel(model, dependents))

    def _limiter(self, options: ServerOptions) -> RateLimiter | None:
        """The rate limiter, if the options ask for one: it is off by default (S100)."""
        return RateLimiter(options.rate_limit_resources, self._loop.call_soon) if options.rate_limit else None

    def _make_serving(self, loaded: Sequence[LoadedVersion]) -> list[ModelVersion]:
        """Makes serving versions of loaded ones. Their statistics start with their warm-up (W2), but only after all
        versions were made: if one fails, the versions that serve now keep theirs."""
        fresh = [Statistics(latencies_of(each.config, self._options.measuring)) for each in loaded]
        versions = [self._serving_version(each, statistics) for each, statistics in zip(loaded, fresh, strict=True)]
        for version, statistics in zip(versions, fresh, strict=True):
            run_in_slices(count_runs(version.loaded.warmed, statistics), lambda _: None, self._loop.call_soon)
            # A ready version with this number, which it will replace.
            if self._models.serves(version.key, version.number):
                statistics.follow(self._statistics[version.key, version.number])  # its metrics continue (M26)
            self._statistics[version.key, version.number] = statistics
            if self._cache is not None and version.config.response_cache:
                version.intercept_with(CacheInterceptor(self._cache, version, statistics).submit)
        return versions

    def _serving_version(self, loaded: LoadedVersion, statistics: Statistics) -> ModelVersion:
        return ModelVersion(
            loaded,
            self._engine_loop,
            statistics,
            self._settled,
            start_at=self._options.delay_scheduler,
            start_backlog=self._options.backlog_delay_scheduler,
            inline=self._options.inline_execution,
        )

    async def give_up(self) -> None:
        """Aborts a `start` in progress: opens no further model and kills the workers that are still loading."""
        await self._repository.give_up()

    def announce_leave(self) -> None:
        """The server will stop soon: from now on it is not ready, so that load balancers choose another one. It is
        live, and serves everybody."""
        self._answers.leaving = True

    def announce_exit(self) -> None:
        """The server is about to stop: from now on it is neither live nor ready (H7, L9). Inferences are still taken,
        those of connections that clients have kept."""
        self._answers.exiting = True

    async def stop(self, timeout: float) -> bool:
        """Refuses new inferences, waits for those in flight, then closes all models.

        All of it shares one deadline, in `timeout` seconds (C3). It is later in two cases: the models have at least
        `LEAST_CLOSE_SECONDS` to close, and those that do not close in time are killed, which takes at most
        `KILL_SECONDS` more. Returns False if something was still running then; it is left behind.
        """
        until = self._loop.time() + timeout
        self._answers.exiting = self._stopping = True
        finished = await self._drain(until, timeout)
        if finished:
            finished = await self._unload(until)
        if finished:
            self._shared_memory.close()
            if self._cache is not None:
                self._cache.close()
            self._offload.close()  # it is empty: it works on answers only, and all were sent
        self._repository.abandon()
        self._machine.stop()
        self.tracing.close()
        self._engine_loop.close()
        return finished

    @property
    def under_way(self) -> int:
        """The number of inferences that have not ended."""
        return len(self._inferences) + len(self._late)

    async def _drain(self, until: float, timeout: float) -> bool:
        """Waits for the inferences in flight, with a line each second (L9). Returns whether all of them ended in
        time."""
        drained = asyncio.Event()
        self._drained = drained.set
        log.info("Waiting for in-flight requests to complete.")
        self._say_in_flight(until)
        while self._inferences or self._late:
            left = until - self._loop.time()
            if left <= 0:
                log.error("shutdown: %d inferences did not finish within %g s", self.under_way, timeout)
                return False
            # A model that still runs may begin calls of other models.
            drained.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(drained.wait(), min(left, 1.0))
            self._say_in_flight(until)
        log.info("All models are stopped, unloading models")
        return True

    def _say_in_flight(self, until: float) -> None:
        counts = Counter((version.name, version.number) for _, version in self._inferences.values())
        left = self._seconds_until(until)
        log.info("Timeout %d: Found %d model versions that have in-flight inferences", left, len(counts))
        for (name, number), found in counts.items():
            log.info("Model '%s' (version %d) has %d in-flight inferences", name, number, found)

    async def _unload(self, until: float) -> bool:
        """Closes the models, with a line each second (L9). Returns whether all of it ended in time."""
        limit = max(until, self._loop.time() + LEAST_CLOSE_SECONDS)
        unloading = asyncio.ensure_future(self._repository.stop(limit))
        while not unloading.done():
            self._say_live(until)
            await asyncio.wait({unloading}, timeout=1.0)
        self._say_live(until)
        return unloading.result()

    def _say_live(self, until: float) -> None:
        log.info(
            "Timeout %d: Found %d live models and %d in-flight non-inference requests",
            *(self._seconds_until(until), self._models.live, self._repository.under_way),
        )

    def _seconds_until(self, until: float) -> int:
        return max(0, round(until - self._loop.time()))

    # Inference.

    def infer(self, request: InferRequest, reply: Reply) -> int:
        """Starts an inference. Returns its key for `cancel`, or 0 if it was refused; `reply` gets the refusal."""
        start = monotonic_ns()
        # Under load a turn of the loop takes long. Workers that finished a batch get the next one within it.
        if start >= self._worker_poller.due:
            self._worker_poller.look(start)
        try:
            # Models that serve the last requests may still call other models.
            if self._stopping and not request.inner:
                raise Unavailable("Server exiting")
            version = self._models.find(request.model_name, request.version)
            if version.decoupled and not request.decoupled_ok:
                raise DecoupledModel("the model is decoupled and the request takes a single response")
            if request.classes is not None or (request.in_regions and answers_may_lie_afar(request)):
                batching = version.config.max_batch_size > 0
                classes = request.classes or {}
                reply = ClassifyingReply(reply, classes, version.loaded.labels, batching, self._offload)
            key = next(self._keys)
            if request.in_regions:
                begun = self._infer_in_regions(version, key, request, reply, start)
                if begun is None:
                    return key
                inference = begun
            else:
                inference = version.infer(key, request, reply, start)
        except Exception as error:
            _refuse(request, reply, error)
            return 0
        self._submit(version, key, inference)
        return key

    def _submit(self, version: ModelVersion, key: int, inference: Inference) -> None:
        version.submit(inference)
        # A model that runs inline has answered already; only an answer that is still being classified is in flight.
        if inference.state is not SETTLED or _under_way(inference):
            self._inferences[key] = (inference, version)

    def _infer_in_regions(
        self, version: ModelVersion, key: int, request: InferRequest, reply: Reply, start: int
    ) -> Inference | None:
        """Starts an inference with tensors in the client's shared memory. A lease keeps the regions until it is over.
        Returns None if it begins later."""
        lease = self._shared_memory.resolve(request)
        strings = far_strings(request)
        # Another request must not overtake one of a sequence.
        if not strings or version.keeps_order:
            return self._leased(version, key, request, reply, start, lease)
        # It may be unloaded meanwhile.
        version.hold()
        late = self._late[key] = LateStart(version, key, request, reply, start, lease)
        self._offload(partial(frame_all, strings), partial(self._framed, late))
        return None

    def _framed(self, late: LateStart, failure: Error | None) -> None:
        """Starts an inference whose strings another thread has read."""
        del self._late[late.key]
        try:
            if late.cancelled or failure is not None:
                self._shared_memory.end(late.lease)
                raise failure or Cancelled("Cancelled")
            inference = self._leased(late.version, late.key, late.request, late.reply, late.start, late.lease)
        except Exception as error:
            _refuse(late.request, late.reply, error)
        else:
            self._submit(late.version, late.key, inference)
        late.version.let_go()
        self._tell_drained()

    def _leased(
        self, version: ModelVersion, key: int, request: InferRequest, reply: Reply, start: int, lease: Lease
    ) -> Inference:
        """Makes the inference that holds the lease. Ends the lease and raises Error if it does not fit the model."""
        try:
            inference = version.infer(key, request, reply, start)
        except BaseException:
            self._shared_memory.end(lease)
            raise
        inference.destinations = lease.destinations or None
        self._leases[key] = lease
        return inference

    def cancel(self, key: int) -> None:
        """The client of this inference has gone. Ignores keys of inferences that are over."""
        begun = self._inferences.get(key)
        if begun is None:
            late = self._late.get(key)
            if late is not None:
                late.cancelled = True
            return
        inference, version = begun
        reply = inference.reply
        if isinstance(reply, CachedCall):
            reply = reply.slot
        if isinstance(reply, ClassifyingReply):
            reply.cancel()
        if inference.state is not State.SETTLED:
            version.cancel(inference)

    def is_queued(self, key: int) -> bool:
        """Whether the inference waits for an instance, or for the response cache before that."""
        begun = self._inferences.get(key)
        return begun is not None and begun[1].is_queued(begun[0])

    def instances_of(self, key: int) -> Sequence[object]:
        """The instances that an inference waits for: those of its model version, or, if these wait for resources, the
        instances that hold them. Empty if the inference is over."""
        begun = self._inferences.get(key)
        if begun is None:
            return ()
        inference, version = begun
        return version.blockers_of(inference)

    def preempt_turn(self, key: int) -> bool:
        """Runs a queued inference out of turn if resources allow. Returns whether it did."""
        begun = self._inferences.get(key)
        return begun is not None and begun[0].state is State.QUEUED and begun[1].preempt_turn()

    def _settled(self, inference: Inference) -> None:
        """Called when the runner has settled an inference. It is over when its answers are sent: until then they may be
        views of the client's shared memory."""
        if not inference.key:  # a step of an ensemble: only the ensemble's own inference has a key
            return
        slot = _under_way(inference)
        if slot is not None:
            slot.when_sent(partial(self._over, inference))
        else:
            self._over(inference)

    def _over(self, inference: Inference) -> None:
        """Ends the lease on shared memory and forgets the inference."""
        if inference.request.in_regions:
            self._shared_memory.end(self._leases.pop(inference.key))
        if self._inferences.pop(inference.key, None):
            self._tell_drained()

    def _tell_drained(self) -> None:
        if self._drained is not None and not self._inferences and not self._late:
            self._drained()

    # Questions.

    def ask(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        shared = self._of_all_models.get(type(query))
        if shared is None or (isinstance(query, ModelStatistics) and query.model):
            self._ask(query, done)
        else:
            shared.ask(query, done)

    def _ask(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        if type(query) in self._repository.operations:
            self._repository.begin(query, done)
            return
        answer = self._answers.answer(query)
        if isinstance(answer, Generator):
            run_in_slices(answer, done, self._engine_loop.call_soon)
            return
        asked = self._answers.to_be_asked(query) if answer is True else ()
        if asked:
            ask_all(asked, cast(Callable[[bool], None], done))
        else:
            done(answer)

    def serves(self, model: str, version: int) -> bool:
        """Whether the model takes requests, without asking its own `is_ready`."""
        return self._answers.answer(ModelReady(model, version)) is True

    def similar_to(self, model: str) -> str:
        """A sentence with the nearest name of a model, to append, if there is no such model; else empty."""
        # With namespaces, several models may have the name.
        if self.models.keys_of(model):
            return ""
        return suggestion(model[:MAX_NAME], [record.name for record in islice(self.models, MAX_COMPARED)])


def _refuse(request: InferRequest, reply: Reply, error: Exception) -> None:
    """Answers a request that does not begin, because of its own fault or an internal error."""
    if isinstance(error, Error):
        error.refused = True
        reply.send(error, True)
        return
    about = {"model": request.model_name, "version": request.version, "request_id": request.id}
    log.error(
        "model '%s': a request failed because of an internal error", request.model_name, exc_info=error, extra=about
    )
    reply.send(Internal(f"{type(error).__name__}: {error}"), True)


def _environment_directory(options: ServerOptions) -> Path | None:
    """Where Python environments are built; None if none are."""
    if not options.build_environments:
        return None
    return Path(options.environment_directory or user_cache(os.environ) / "environments")


def _under_way(inference: Inference) -> ClassifyingReply | None:
    """The reply slot of a settled inference if its answers are still being classified, else None."""
    if inference.request.classes is None and not inference.request.in_regions:
        return None
    reply = inference.reply
    if isinstance(reply, CachedCall):
        reply = reply.slot
    return reply if isinstance(reply, ClassifyingReply) and reply.under_way else None
