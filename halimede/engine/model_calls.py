"""What Python models can ask of the engine: inferences, readiness, loads and unloads, and metrics of their own.

Implements the protocol that `workers.calls` states. Event-loop thread only.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from halimede.custom_metrics import CustomMetrics
from halimede.engine_port import LoadModel, ModelReady, Query, UnloadModel
from halimede.errors import Error, Unavailable
from halimede.requests import InferRequest, Reply

A = TypeVar("A")


class EngineOfModels(Protocol):
    """The part of the engine that models use. `started` is true once the models of the start are loaded."""

    @property
    def started(self) -> bool: ...
    def infer(self, request: InferRequest, reply: Reply) -> int: ...
    def cancel(self, key: int) -> None: ...
    def instances_of(self, key: int) -> Sequence[object]: ...
    def is_queued(self, key: int) -> bool: ...
    def preempt_turn(self, key: int) -> bool: ...
    def serves(self, model: str, version: int) -> bool: ...
    def similar_to(self, model: str) -> str: ...
    def ask(self, query: Query[A], done: Callable[[A | Error], None]) -> None: ...


class ModelCalls:
    def __init__(self, engine: EngineOfModels, metrics: CustomMetrics) -> None:
        self._engine = engine
        self.metrics = metrics
        self.serves = engine.serves
        self.similar_to = engine.similar_to
        self.infer = engine.infer
        self.cancel = engine.cancel
        self.instances_of = engine.instances_of
        self.is_queued = engine.is_queued
        self.preempt_turn = engine.preempt_turn

    def is_ready(self, model: str, version: int, done: Callable[[bool], None]) -> None:
        """Calls `done` with the model's readiness. An unknown model is not ready; the real server says the same."""
        self._engine.ask(ModelReady(model, version), lambda ready: done(ready is True))

    def load(
        self,
        model: str,
        config: str | None,
        files: Sequence[tuple[str, bytes]],
        asker: str,
        done: Callable[[Error | None], None],
    ) -> None:
        self._control(LoadModel(model, config, tuple(files), asker), done)

    def unload(self, model: str, dependents: bool, asker: str, done: Callable[[Error | None], None]) -> None:
        self._control(UnloadModel(model, dependents, asker), done)

    def _control(self, query: Query[Any], done: Callable[[Error | None], None]) -> None:
        if not self._engine.started:
            # A model that is loaded at the start cannot load others: the start has fixed its list already (P28).
            done(Unavailable("Server not ready"))
        else:
            self._engine.ask(query, done)
