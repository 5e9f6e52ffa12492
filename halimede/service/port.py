"""The engine's port: all that a front end may say to the engine, and the plain data that comes back.

What crosses is data only: no closures into a transport's state beyond the reply slot, no connections. In process the
port is the engine itself and a call is a direct call; a port that serialises every message may stand in its place.
Called on the event-loop thread; answers come by callback, possibly before the call returns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from halimede.errors import Error
from halimede.requests import InferRequest, Reply
from halimede.tensors import DataType, Shape

A = TypeVar("A")


class Query(Generic[A]):
    """A question to the engine whose answer is an `A`. Version -1 stands for "none given"."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ServerLive(Query[bool]):
    """Contract H7. Unavailable while the server is exiting."""


@dataclass(frozen=True, slots=True)
class ServerReady(Query[bool]):
    """Contract H8."""


@dataclass(frozen=True, slots=True)
class ServerMetadata(Query["ServerFacts"]):
    """Contract H9."""


@dataclass(frozen=True, slots=True)
class ModelReady(Query[bool]):
    """Contract H10, G4: False for a model that is known and not ready; NotFound for an unknown one."""

    model: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class ModelMetadata(Query["ModelFacts"]):
    """Contract H11."""

    model: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class ModelConfiguration(Query["ConfigFacts"]):
    """Contract H12."""

    model: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class ModelStatistics(Query["list[ModelCounts]"]):
    """Contract H119; an empty `model` asks for all of them."""

    model: str = ""
    version: int = -1


@dataclass(frozen=True, slots=True)
class Metrics(Query["list[MetricFamily]"]):
    """Contract M1 to M11."""


@dataclass(frozen=True, slots=True)
class ModelTransaction(Query[bool]):
    """Whether the model is decoupled; the errors are those of an inference that finds no model (contract H14)."""

    model: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class ServerFacts:
    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """`shape` begins with -1 for the batch where the model batches (contract H11)."""

    name: str
    datatype: DataType
    shape: Shape


@dataclass(frozen=True, slots=True)
class ModelFacts:
    name: str
    versions: tuple[int, ...]
    platform: str
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]


@dataclass(frozen=True, slots=True)
class ConfigFacts:
    """A model configuration, as the protocol's JSON and as a serialized protobuf ModelConfig."""

    json: str
    message: bytes


@dataclass(frozen=True, slots=True)
class Duration:
    """How many times something happened and the nanoseconds it took in sum."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What was executed at one batch size."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """The statistics of one model version (contract H119); `last_inference` in milliseconds since the epoch.

    `inference` holds success, fail, queue, compute_input, compute_infer, compute_output, cache_hit and cache_miss in
    that order.
    """

    name: str
    version: int
    last_inference: int
    inference_count: int
    execution_count: int
    inference: Mapping[str, Duration]
    batches: tuple[BatchCounts, ...]


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric: `kind` is "counter" or "gauge"; `series` are pairs of labels and value, in order of exposition."""

    name: str
    help: str
    kind: str
    series: tuple[tuple[Mapping[str, str], float], ...]


class EnginePort(Protocol):
    """What a front end holds."""

    def infer(self, request: InferRequest, reply: Reply) -> int:
        """Starts an inference and returns the key to cancel it with. Every outcome, also a refusal at once, goes to
        the reply slot."""
        ...

    def cancel(self, key: int) -> None:
        """The client of this inference has gone. Nothing happens when it is over or unknown."""
        ...

    def ask(self, query: Query[A], done: Callable[[A | Error], None]) -> None: ...
