"""The engine port of an ingress: requests and questions go to the replicas of the cluster.

On the event loop of the ingress. A request that the port has taken is answered, whatever happens to its replica.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException

from halimede.engine_port import (
    LoadModel,
    LogSettings,
    Metrics,
    ModelStatistics,
    ModelTransaction,
    Query,
    RepositoryIndex,
    ServerLive,
    ServerReady,
    TraceSettings,
    UnloadModel,
)
from halimede.errors import Cancelled, Error, Internal, Unavailable, Unsupported
from halimede.ray.merging import merged_index, merged_metrics, merged_statistics
from halimede.ray.settings import Settings
from halimede.requests import Answer, InferRequest, Reply

log = logging.getLogger(__name__)

A = TypeVar("A")

READY_SECONDS = 5.0
"""How long a question about readiness waits for a replica."""
ALL_SECONDS = 30.0
"""How long a question waits that all replicas are asked."""
TRANSACTION_SECONDS = 1.0
"""How long the answer is kept whether a model is decoupled."""


class RayPort:
    """`engines` is the handle of the deployment `Engine`."""

    def __init__(self, engines: Any, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self._engines = engines
        self._multiplexed = settings.models_per_replica > 0
        self._retries = settings.retries
        self._may_sleep = settings.may_sleep
        self._loop = loop
        self._keys = count(1)
        self._inferences: dict[int, asyncio.Task[None]] = {}
        self._questions: set[asyncio.Task[Any]] = set()
        self._transactions: dict[ModelTransaction, asyncio.Task[Any]] = {}
        """The last answers whether models are decoupled."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By session, the lock that each request of a sequence holds until it is answered."""
        self._exiting = False

    def announce_exit(self) -> None:
        """The ingress is about to leave: from now on it is neither live nor ready (H7)."""
        self._exiting = True

    # Inference.

    def infer(self, request: InferRequest, reply: Reply) -> int:
        key, slot = next(self._keys), _Slot(reply, self._loop)
        task = self._inferences[key] = self._loop.create_task(self._infer(request, slot))

        def over(_: object) -> None:
            del self._inferences[key]
            # It may have been cancelled before its first step.
            slot.end(Cancelled("Cancelled"))

        task.add_done_callback(over)
        return key

    def cancel(self, key: int) -> None:
        task = self._inferences.get(key)
        if task is not None:
            task.cancel()

    async def _infer(self, request: InferRequest, slot: "_Slot") -> None:
        try:
            if request.correlation_id:
                session = f"{request.model_name}/{request.correlation_id}"
                # A replica may start two calls in any order. The requests of a sequence have one.
                async with self._turns.setdefault(session, asyncio.Lock()):
                    await self._send(request, slot, session)
            else:
                await self._send_until_answered(request, slot)
            slot.end(Internal("the replica ended the request without a last answer"))
        except Exception as error:
            slot.end(_error_of(error, request.model_name))

    async def _send_until_answered(self, request: InferRequest, slot: "_Slot") -> None:
        """Sends a request, and sends it again if the replica is lost before it has answered. Nothing else may happen
        because of an inference, so it may run twice."""
        for left in range(self._retries, -1, -1):
            try:
                await self._send(request, slot, "")
                return
            except RayError as error:
                if isinstance(error, RayTaskError) or slot.begun or not left:
                    raise
                log.warning(
                    "model '%s': a request is sent again, because its replica was lost: %s",
                    *(request.model_name, type(error).__name__),
                )

    async def _send(self, request: InferRequest, slot: "_Slot", session: str) -> None:
        engines = self._to(request.model_name, session)
        if not request.decoupled_ok:
            response = engines.options(method_name="infer").remote(request)
            try:
                slot.send(await response, True)
            except asyncio.CancelledError:
                response.cancel()
                raise
            return
        stream = engines.options(method_name="stream", stream=True).remote(request)
        try:
            async for items in stream:
                for answer, final in items:
                    if not slot.send(answer, final):
                        await slot.writable()
        except asyncio.CancelledError:
            stream.cancel()
            raise

    def _to(self, model: str, session: str = "") -> Any:
        """The handle for requests and questions about a model."""
        chosen = {"multiplexed_model_id": model} if self._multiplexed and model else {}
        if session:
            chosen["session_id"] = session
        return self._engines.options(**chosen) if chosen else self._engines

    # Questions.

    def ask(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        # gRPC asks this for each request of a stream. One answer for all keeps the requests in their order.
        task = self._transactions.get(query) if isinstance(query, ModelTransaction) else None
        if task is None:
            task = self._loop.create_task(self._answer(query))
            self._questions.add(task)
            task.add_done_callback(self._questions.discard)
            if isinstance(query, ModelTransaction):
                self._transactions[query] = task
                task.add_done_callback(lambda task: self._keep(query, task))
        task.add_done_callback(lambda task: done(task.result()))

    def _keep(self, query: ModelTransaction, task: "asyncio.Task[Any]") -> None:
        """Keeps an answer for a while, but no error: the model may be loaded next."""
        seconds = 0.0 if isinstance(task.result(), Error) else TRANSACTION_SECONDS
        self._loop.call_later(seconds, self._transactions.pop, query)

    async def _answer(self, query: Query[Any]) -> Any:
        try:
            return await self._asked(query)
        except Exception as error:
            return _error_of(error, getattr(query, "model", ""))

    async def _asked(self, query: Query[Any]) -> Any:
        match query:
            case ServerLive() | ServerReady() if self._exiting:
                raise Unavailable("Server exiting")
            case ServerLive():
                return True
            case ServerReady():
                return self._may_sleep or await self._is_ready(query)
            case ModelStatistics():
                return merged_statistics(_good(await self._all("part", query)))
            case RepositoryIndex():
                return merged_index(_good(await self._all("part", query)))
            case Metrics():
                parts = await self._all("part", query)
                return merged_metrics((name, answer) for name, answer in parts if not isinstance(answer, Error))
            case LoadModel():
                return await self._load(query)
            case UnloadModel():
                _good(await self._all("part", query))
                return None
            case LogSettings(changes=changes, refusal=refusal) | TraceSettings(changes=changes, refusal=refusal):
                if changes or refusal:
                    raise Unsupported("the settings of a cluster are those of its deployment, and cannot be changed")
        model = getattr(query, "model", "")
        return await self._to(model).options(method_name="ask_about").remote(model, query)

    async def _is_ready(self, query: ServerReady) -> bool | Error:
        asking = self._engines.options(method_name="ask").remote(query)
        try:
            return cast(bool | Error, await asyncio.wait_for(asking, READY_SECONDS))
        except (TimeoutError, RayError, RayServeException):
            return False

    async def _load(self, query: LoadModel) -> Error | None:
        if query.config is not None or query.files:
            raise Unsupported(
                f"failed to load '{query.model}': a cluster takes no configuration and no files with a load request; "
                "change the model repository"
            )
        if not self._multiplexed:
            parts = await self._all("part", query)
            return next((answer for _, answer in parts if isinstance(answer, Error)), None)
        # All replicas that hold the model must serve the same files.
        outcomes: list[bool | Error] = await self._all("reload", query.model)
        if True not in outcomes and not any(isinstance(each, Error) for each in outcomes):
            outcomes = [await self._to(query.model).options(method_name="load").remote(query.model)]
        return next((each for each in outcomes if isinstance(each, Error)), None)

    async def _all(self, method: str, *arguments: object) -> list[Any]:
        """Asks all replicas; there may be none. Those that are lost meanwhile do not count."""
        asked = self._engines.broadcast(method, *arguments)
        try:
            found = await asked.results_async(timeout_s=ALL_SECONDS, return_exceptions=True)
        except DeploymentUnavailableError:
            return []
        return [each for each in found if not isinstance(each, BaseException) or isinstance(each, Error)]


def _good(parts: Sequence[tuple[str, Any]]) -> list[Any]:
    """The answers of the replicas that have one. Raises the error of one if none has."""
    answers = [answer for _, answer in parts]
    good = [answer for answer in answers if not isinstance(answer, Error)]
    if answers and not good:
        raise cast(Error, answers[0])
    return good


def _error_of(error: Exception, model: str) -> Error:
    """What the client is told."""
    if isinstance(error, Error):
        return error
    if isinstance(error, RayTaskError):
        log.error("model '%s': a replica failed because of an internal error", model, exc_info=error)
        return Internal(f"{type(error.cause).__name__}: {error.cause}")
    if isinstance(error, RayError):
        log.warning("model '%s': a request failed, because its replica was lost: %s", model, type(error).__name__)
        return Unavailable("the replica that served the request was lost; a sequence must be started again")
    if isinstance(error, RayServeException | TimeoutError):
        return Unavailable(f"no replica can serve the request: {error}")
    log.error("model '%s': a request failed because of an internal error", model, exc_info=error)
    return Internal(f"{type(error).__name__}: {error}")


class _Slot:
    """A reply slot that knows whether an answer was sent, and takes no more after the last one."""

    def __init__(self, reply: Reply, loop: asyncio.AbstractEventLoop) -> None:
        self.begun = False
        self._over = False
        self._reply = reply
        self._loop = loop

    def send(self, answer: Answer, final: bool) -> bool:
        if self._over:
            return True
        self.begun, self._over = True, final
        return self._reply.send(answer, final)

    def end(self, error: Error) -> None:
        """Ends the request with an error, unless it has ended."""
        self.send(error, True)

    async def writable(self) -> None:
        """Waits until the reader takes more."""
        free: asyncio.Future[None] = self._loop.create_future()
        self._reply.on_writable(lambda: None if free.done() else free.set_result(None))
        await free
