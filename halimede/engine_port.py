"""The engine's port: all that a front end may say to the engine, and the plain data that comes back.

What crosses is data only: no closures into a transport's state beyond the reply slot, no connections. In process the
port is the engine itself and a call is a direct call; a port that serialises every message may stand in its place.
Called on the event-loop thread; answers come by callback, possibly before the call returns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

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
class ServerMetadata(Query["ServerInfo"]):
    """Contract H9."""


@dataclass(frozen=True, slots=True)
class ModelReady(Query[bool]):
    """Contract H10, G4: False for a model that is known and not ready; NotFound for an unknown one."""

    model: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class ModelMetadata(Query["ModelInfo"]):
    """Contract H11."""

    model: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class ModelConfiguration(Query["ConfigInfo"]):
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
    """Contract M1 to M24; only what a model made by this name where one is given."""

    family: str = ""


@dataclass(frozen=True, slots=True)
class ModelTransaction(Query[bool]):
    """Whether the model is decoupled; the errors are those of an inference that finds no model (contract H14)."""

    model: str
    version: int = -1


class RegionKind(Enum):
    """The kinds of shared memory that clients register, by the protocol's word for them."""

    SYSTEM = "system"
    CUDA = "CUDA"


MEMORY_DISABLED: Final = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
"""What registering and unregistering are refused with (contract H90)."""


@dataclass(frozen=True, slots=True)
class RegisterSystemMemory(Query[None]):
    """Contract H91, H92: a part of the POSIX segment that `key` names. Numbers are below 2**64, otherwise unchecked."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class RegisterCudaMemory(Query[None]):
    """Contract H95: device memory of another process, by the `handle` of CUDA IPC."""

    name: str
    handle: bytes
    device_id: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class UnregisterMemory(Query[None]):
    """Contract H94: one region, or all of the kind where no name is given. No error where there is none."""

    kind: RegionKind
    name: str = ""


@dataclass(frozen=True, slots=True)
class SystemMemoryStatus(Query["list[SystemRegion]"]):
    """Contract H93: one region, or all of them by name."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class CudaMemoryStatus(Query["list[CudaRegion]"]):
    """Contract H96: one region, or all of them by name."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class RepositoryIndex(Query["list[IndexEntry]"]):
    """What the repositories hold, or only what is ready (contract H110, G7)."""

    ready: bool = False


@dataclass(frozen=True, slots=True)
class LoadModel(Query[None]):
    """Loads a model, or loads it again (contract H112 to H118, G8). Answered once it serves or has failed.

    `config` is a configuration as JSON in place of the one in the repository; `files` are paths within the model's
    directory and their contents, in place of that directory. `asker` as in UnloadModel.
    """

    model: str
    config: str | None = None
    files: tuple[tuple[str, bytes], ...] = ()
    asker: str | None = None


@dataclass(frozen=True, slots=True)
class UnloadModel(Query[None]):
    """Contract H116, G9. Answered once the model takes no more requests.

    `asker` is the model that asks for this while it is being loaded itself (contract P29), so that its load waits;
    empty for a model that serves, None for a client.
    """

    model: str
    dependents: bool = False
    asker: str | None = None


LOG_FORMATS: Final = ("default", "ISO8601", "json")


@dataclass(frozen=True, slots=True)
class LogSettings(Query["LogInfo"]):
    """What is logged, once the changes are made: pairs of a field of LogFacts and its new value (contract H124, G12).

    `refusal` is what is wrong with the rest of the request: the changes before it stay, and it is the answer.
    """

    changes: tuple[tuple[str, bool | int | str], ...] = ()
    refusal: Error | None = None


@dataclass(frozen=True, slots=True)
class TraceSettings(Query["TraceInfo"]):
    """How inferences of a model, or of all of them, are traced once the changes are made: pairs of a field of
    TraceFacts and its new value, None for that of the layer below (contract H121 to H123, G11, T2).

    `refusal` is what is wrong with the request, for when the model is known: then nothing is changed.
    """

    model: str = ""
    changes: tuple[tuple[str, tuple[str, ...] | int | None], ...] = ()
    refusal: Error | None = None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the server says of itself (contract H9)."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape` begins with -1 for the batch where the model batches (contract H11)."""

    name: str
    datatype: DataType
    shape: Shape


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model takes and gives (contract H11); `versions` are those that serve, or the one asked for."""

    name: str
    versions: tuple[int, ...]
    platform: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True, slots=True)
class ConfigInfo:
    """A model configuration, as the protocol's JSON and as a serialized protobuf ModelConfig."""

    json: str
    message: bytes


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of the repository index: a model version, or a model of which no version is known (contract H110)."""

    name: str
    version: int | None = None
    state: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LogInfo:
    """What is logged: `format` is one of LOG_FORMATS, an empty `file` the console."""

    file: str
    info: bool
    warning: bool
    error: bool
    verbose: int
    format: str


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """How inferences are traced: `level` holds TIMESTAMPS, TENSORS or nothing, one inference in `rate` is traced, until
    `count` were (-1: no limit)."""

    level: tuple[str, ...]
    rate: int
    count: int
    log_frequency: int
    file: str
    mode: str
    more: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Settings of the mode opentelemetry, with their values; it has no files."""


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
class ResponseCounts:
    """What became of the responses of one number, the first, the second and so on, of requests to a decoupled model.

    A success took what it took to compute it and to write its outputs; an empty response is one without outputs.
    """

    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()
    success: Duration = Duration()
    fail: Duration = Duration()
    empty_response: Duration = Duration()
    cancel: Duration = Duration()


RESPONSE_FIELDS: Final = tuple(field.name for field in fields(ResponseCounts))


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
    responses: tuple[ResponseCounts, ...] = ()


@dataclass(frozen=True, slots=True)
class SystemRegion:
    """A registered part of a POSIX segment (contract H93)."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """Registered device memory (contract H96)."""

    name: str
    device_id: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """The value of a series: how many observations were at most each of `bounds`, the last of which is infinite, and
    their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The value of a series: pairs of a quantile and what was observed there, how many were observed, and their sum."""

    quantiles: tuple[tuple[float, float], ...]
    count: int
    sum: float


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric: `kind` is "counter", "gauge", "summary" or "histogram"; `series` are pairs of labels and value, in
    order of exposition."""

    name: str
    help: str
    kind: str
    series: tuple[tuple[Mapping[str, str], float | Histogram | Summary], ...]


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
