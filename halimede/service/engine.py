"""The engine: the single door to the models for every front end (an `EnginePort`), and the owner of all mutable state.

Lives on one event-loop thread; loads run on threads of their own and come back to it. Knows no protocol: what it is
told and what it answers are plain values. Two engines run in one process without meeting.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import monotonic_ns
from typing import TypeVar

from halimede.backends.registry import create_backend
from halimede.errors import DecoupledModel, Error, Internal, Unavailable
from halimede.models.backend_pool import BackendPool
from halimede.models.lifecycle import ModelTable, plan
from halimede.models.loader import LoadOptions, LoadResult, load
from halimede.models.repository import Catalog, FoundModel, scan
from halimede.models.version import ModelVersion
from halimede.options import ServerOptions
from halimede.platform.gpus import visible_gpus
from halimede.platform.timers import Timers
from halimede.requests import InferRequest, Reply
from halimede.scheduling.inference import Inference
from halimede.scheduling.inline import TurnBudget
from halimede.service.answers import Answers
from halimede.service.port import Query
from halimede.service.statistics import Statistics

log = logging.getLogger(__name__)

A = TypeVar("A")

LEAST_CLOSE_SECONDS = 1.0
"""What models have to close even where the exit timeout is shorter."""


class EngineLoop:
    """The event loop as runners see it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timers = Timers(loop)
        self.budget = TurnBudget(loop.call_soon)
        self.call_soon: Callable[[Callable[[], None]], object] = loop.call_soon
        self.call_soon_threadsafe: Callable[..., object] = loop.call_soon_threadsafe
        self.call_at = self._timers.call_at

    def close(self) -> None:
        self._timers.close()


class Engine:
    """Create it on the loop that it shall live on; `start` loads the models, `stop` lets go of them."""

    def __init__(self, options: ServerOptions, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._loop = loop
        self._gpus = visible_gpus(os.environ)
        self._engine_loop = EngineLoop(loop)
        self._models = ModelTable()
        self._statistics: dict[tuple[str, int], Statistics] = {}
        self._inferences: dict[int, tuple[Inference, ModelVersion]] = {}
        self._keys = count(1)
        self._drained: Callable[[], None] | None = None
        self._backends = BackendPool(lambda name: create_backend(name, loop, options.backend_settings(name)))
        self._load_threads = ThreadPoolExecutor(options.model_load_thread_count, "load")
        self._answers = Answers(options, self._models, self._statistics)

    @property
    def models(self) -> ModelTable:
        """The state table, to look at."""
        return self._models

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._answers.exiting

    # Coming up and going down.

    async def start(self) -> bool:
        """Loads all models; False when one of them failed. Raises Error when a repository cannot be read."""
        catalog = await self._loop.run_in_executor(self._load_threads, scan, self._options.model_repositories)
        for name in catalog.duplicates:
            log.error("failed to poll model '%s': not unique across all model repositories", name)
            self._models.refuse(name, None, "model appears in two or more repositories")
        failed = await self._load_all(catalog)
        self._answers.ready = True
        return not failed and not catalog.duplicates

    async def _load_all(self, catalog: Catalog) -> bool:
        """Loads what the catalogue has and the table has not; whether anything failed."""
        todo = plan(self._models.names(), catalog.models)
        for name in todo.load:
            self._models.loading(name)
        return any(await asyncio.gather(*(self._load(catalog.models[name]) for name in todo.load)))

    async def _load(self, found: FoundModel) -> bool:
        """Loads one model on a load thread and publishes what came of it; whether it failed."""
        options = LoadOptions(
            auto_complete=self._options.auto_complete_config,
            config_name=self._options.model_config_name,
            retries=self._options.model_load_retry_count,
            settings=self._options.backend_settings,
            gpus=self._gpus,
        )
        result = await self._loop.run_in_executor(self._load_threads, load, found, self._backends, options)
        try:
            self._publish(result)
        except Exception:
            log.exception("publishing model '%s' broke", found.name)
            self._models.refuse(found.name, None, "Internal: the model was loaded and could not be published")
            return True
        return result.failed

    def _publish(self, result: LoadResult) -> None:
        if result.error is not None:
            log.error("failed to load '%s': %s", result.name, result.error)
            self._models.refuse(result.name, None, f"{result.error.word}: {result.error}")
        for number, loaded in result.versions.items():
            if isinstance(loaded, Error):
                log.error("failed to load '%s' version %d: %s: %s", result.name, number, loaded.word, loaded)
                self._models.refuse(result.name, number, f"{loaded.word}: {loaded}")
                continue
            statistics = self._statistics[result.name, number] = Statistics()
            start_at = self._options.delay_scheduler
            self._models.publish(ModelVersion(loaded, self._engine_loop, statistics, self._settled, start_at))
            log.info("successfully loaded '%s' version %d", result.name, number)

    async def give_up(self) -> None:
        """Makes a `start` under way end soon: no further model is opened, workers that still load are killed."""
        await self._loop.run_in_executor(None, self._backends.close)

    async def stop(self, timeout: float) -> bool:
        """Takes no more inferences, waits for those that were begun, then closes all models: up to `timeout` seconds in
        all, but at least one for the models. False when something was still running, and runs on."""
        until = self._loop.time() + timeout
        self._answers.exiting = True
        finished = await self._drain(timeout)
        if finished:
            finished = await self._unload_all(max(until - self._loop.time(), LEAST_CLOSE_SECONDS))
        self._load_threads.shutdown(wait=False)
        self._engine_loop.close()
        return finished

    async def _drain(self, timeout: float) -> bool:
        """Waits for the inferences that were begun; whether all of them ended in time."""
        drained = asyncio.Event()
        self._drained = drained.set
        if self._inferences:
            try:
                await asyncio.wait_for(drained.wait(), timeout)
            except TimeoutError:
                log.error("%d inferences did not finish within %g s", len(self._inferences), timeout)
                return False
        return True

    async def _unload_all(self, timeout: float) -> bool:
        """Closes every version, and the backends after them, which kill what does not close in time."""
        closing: list[asyncio.Future[None]] = []

        def closed(version: ModelVersion) -> None:
            version.close()
            closing.append(self._loop.run_in_executor(None, version.loaded.close))

        for name in plan(self._models.names(), ()).unload:
            for version in self._models.ready_versions(name):
                self._models.retire(version, closed)
        pending: set[asyncio.Future[None]] = set()
        if closing:
            _, pending = await asyncio.wait(closing, timeout=timeout)
        if pending:
            log.error("%d models did not close within %g s", len(pending), timeout)
        await self._loop.run_in_executor(None, self._backends.close)
        return not pending

    # Inference.

    def infer(self, request: InferRequest, reply: Reply) -> int:
        start = monotonic_ns()
        try:
            if self.stopping:
                raise Unavailable("Server exiting")
            version = self._models.find(request.model_name, request.version)
            if version.decoupled and not request.decoupled_ok:
                raise DecoupledModel("the model is decoupled and the request takes a single response")
            key = next(self._keys)
            inference = version.infer(key, request, reply, start)
        except Error as error:
            error.refused = True
            reply.send(error, True)
            return 0
        except Exception as error:
            log.exception("a request to model '%s' broke", request.model_name)
            reply.send(Internal(f"{type(error).__name__}: {error}"), True)
            return 0
        self._inferences[key] = (inference, version)
        version.submit(inference)
        return key

    def cancel(self, key: int) -> None:
        begun = self._inferences.get(key)
        if begun is not None:
            inference, version = begun
            version.cancel(inference)

    def _settled(self, inference: Inference) -> None:
        del self._inferences[inference.key]
        if self._drained is not None and not self._inferences:
            self._drained()

    # Questions.

    def ask(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        answer: A | Error = self._answers.answer(query)
        done(answer)
