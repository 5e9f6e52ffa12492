"""One engine of the cluster: a replica of the deployment `Engine`. On the event loop that Serve gives to it."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import TypeVar, cast

from ray import serve

from halimede.binding.run import apply_log, reasons
from halimede.engine.engine import Engine
from halimede.engine_port import MetricFamily, Query, RepositoryIndex
from halimede.errors import Error, Internal, Unavailable
from halimede.ray.process import portable, prepare
from halimede.ray.settings import Settings
from halimede.requests import Answer, InferRequest, Resume

log = logging.getLogger(__name__)

A = TypeVar("A")

Item = tuple[Answer, bool]
"""An answer, and whether it is the last one."""


class Replica:
    """Serves the models of the repository to the ingresses. With `models_per_replica` it loads a model when the first
    request asks for it, and then unloads the model that was used longest ago, if it holds too many.

    Every outcome of a request is an answer, also an error: nothing is raised, except when Serve starts the replica.
    """

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Serve awaits it
        prepare()
        options = settings.options(os.environ)
        self._timeout = options.exit_timeout_secs
        self._kept = frozenset(options.load_models)
        """Models that are loaded at the start and never leave."""
        self._engine = Engine(options, asyncio.get_running_loop(), apply_log)
        self._use: Callable[[str], Awaitable[object]] | None = None
        """Loads a model, unless it is loaded, and marks it as used."""
        if settings.models_per_replica:
            self._use = serve.multiplexed(max_num_models_per_replica=settings.models_per_replica)(self._loader())
        if not await self._engine.start() and options.exit_on_error:
            why = "; ".join(reasons(self._engine.models))
            await self._engine.stop(0)
            raise Internal(f"failed to load all models: {why}")

    def _loader(self) -> Callable[[str], Awaitable[object]]:
        """The function that Serve calls for a model that the replica does not hold. It is no method, because Serve
        keeps its table of models as an attribute of the function."""
        engine, kept = self._engine, self._kept

        async def load_model(model: str) -> object:
            await engine.load(model)

            async def unload() -> None:
                if model not in kept:
                    log.info("model '%s' is unloaded: other models were used since, and need its place", model)
                    await engine.unload(model, dependents=True)

            # Serve calls `__del__` when the model must leave. It is not one of the class, so Python never does.
            return SimpleNamespace(__del__=unload)

        return load_model

    async def _fetch(self, model: str) -> None:
        """Loads the model if it is in the repository and not loaded. If that fails, the engine knows why, and its
        answer to the request says so."""
        if self._use is None or not model:
            return
        loaded = self._engine.models.ready_versions
        # A name that does not exist must not cost a model its place.
        if not loaded(model) and not await self._exists(model):
            return
        try:
            await self._use(model)
            # A client has unloaded it since, or an ensemble it belongs to has left.
            if not loaded(model):
                await self._engine.load(model)
        except Error as error:
            log.warning("model '%s' cannot be loaded here: %s", model, error)

    async def _exists(self, model: str) -> bool:
        index = await self.ask(RepositoryIndex())
        return not isinstance(index, Error) and any(entry.name == model for entry in index)

    # Requests.

    async def infer(self, request: InferRequest) -> Answer:
        """Returns the only answer to a request for one. None: the model ended without a response."""
        first: Answer = None
        async for items in self.stream(request):
            for answer, _ in items:
                first = answer if first is None else first
        return first

    async def stream(self, request: InferRequest) -> AsyncIterator[list[Item]]:
        """Yields the answers in order, several at a time if they come fast. Cancels the inference if it is not read to
        its end."""
        await self._fetch(request.model_name)
        slot, over = _Slot(), False
        key = self._engine.infer(request, slot)
        try:
            while not over:
                items = [await slot.items.get()]
                while not slot.items.empty():
                    items.append(slot.items.get_nowait())
                over = items[-1][1]
                yield [(_portable(answer), final) for answer, final in items]
        finally:
            if not over:
                self._engine.cancel(key)

    # Questions.

    async def ask(self, query: Query[A]) -> A | Error:
        """Answers a question for the engine."""
        answered: asyncio.Future[A | Error] = asyncio.get_running_loop().create_future()
        self._engine.ask(query, lambda answer: None if answered.done() else answered.set_result(answer))
        return _plain(await answered)

    async def ask_about(self, model: str, query: Query[A]) -> A | Error:
        """Answers a question about a model, which is loaded for it."""
        await self._fetch(model)
        return await self.ask(query)

    async def part(self, query: Query[A]) -> tuple[str, A | Error]:
        """Answers a question that all replicas are asked, with the name of this one."""
        return serve.get_replica_context().replica_id.unique_id, await self.ask(query)

    async def reload(self, model: str) -> bool | Error:
        """Loads the model again if its files have changed. Returns False if the replica does not hold it."""
        if not self._engine.models.ready_versions(model):
            return False
        return await self._load(self._engine.load(model))

    async def load(self, model: str) -> bool | Error:
        """Loads the model because a client has asked for that."""
        if self._use is not None and await self._exists(model):
            return await self._load(self._use(model))
        return await self._load(self._engine.load(model))

    async def _load(self, loading: Awaitable[object]) -> bool | Error:
        try:
            await loading
        except Error as error:
            return error
        return True

    # Serve's own calls.

    async def check_health(self) -> None:
        """Serve replaces the replica if this raises."""
        if self._engine.stopping:
            raise Unavailable("the engine has stopped")

    async def __del__(self) -> None:
        """Serve calls this when the replica has answered its requests."""
        self._engine.announce_exit()
        await self._engine.stop(self._timeout)


class _Slot:
    """The reply slot of a request of another process."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[Item] = asyncio.Queue()

    def send(self, answer: Answer, final: bool) -> bool:
        self.items.put_nowait((answer, final))
        return True

    def on_writable(self, resume: Resume) -> None:
        resume()


def _portable(answer: Answer) -> Answer:
    try:
        return portable(answer)
    except Error as error:
        return error


def _plain(answer: A) -> A:
    """The answer as values that can be pickled: the labels of metrics are views of dicts."""
    if isinstance(answer, list) and answer and isinstance(answer[0], MetricFamily):
        families = [
            MetricFamily(each.name, each.help, each.kind, tuple((dict(labels), value) for labels, value in each.series))
            for each in cast(list[MetricFamily], answer)
        ]
        return cast(A, families)
    return answer
