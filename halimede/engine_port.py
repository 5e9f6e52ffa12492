"""The engine port: all that a front end may ask of the engine, and the plain values of the answers.

Only data crosses it: no connections, and no closures beside the reply slot. In process the port is the engine itself,
and a call is a direct call. A port that serialises each message can take its place. Event-loop thread only; answers
come by callback, possibly before the call returns.
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
    """A question to the engine whose answer is an `A`. Version -1 means that none is given."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ServerLive(Query[bool]):
    """Whether the server runs (H7). Unavailable while it is exiting."""


@dataclass(frozen=True, slots=True)
class ServerReady(Query[bool]):
    """Whether the server is ready for requests (H8). Unavailable while it is exiting."""


@dataclass(frozen=True, slots=True)
class ServerMetadata(Query["ServerInfo"]):
    """Name, version and extensions of the server (H9)."""


@dataclass(frozen=True, slots=True)
class ModelReady(Query[bool]):
    """Whether a model version is ready (H10, G4). False for a known model that is not ready, NotFound for an unknown
    one."""

    model: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class ModelMetadata(Query["ModelInfo"]):
    """Inputs, outputs and versions of a model (H11)."""

    model: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class ModelConfiguration(Query["ConfigInfo"]):
    """The configuration of a model version, completed (H12)."""

    model: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class ModelStatistics(Query["list[ModelCounts]"]):
    """The statistics of a model, or of all models if `model` is empty (H119)."""

    model: str = ""
    version: int = -1


@dataclass(frozen=True, slots=True)
class Metrics(Query["list[MetricFamily]"]):
    """All metrics (M1 to M24). With `family`, only the family of that name that models define."""

    family: str = ""


@dataclass(frozen=True, slots=True)
class ModelTransaction(Query[bool]):
    """Whether a model is decoupled. Fails with the error of an inference if the model is not ready (H14)."""

    model: str
    version: int = -1


class RegionKind(Enum):
    """The kinds of shared memory that clients register. The values are the protocol's words."""

    SYSTEM = "system"
    CUDA = "CUDA"


MEMORY_DISABLED: Final = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
"""The error of registering and unregistering if shared memory is disabled (H90)."""


@dataclass(frozen=True, slots=True)
class RegisterSystemMemory(Query[None]):
    """Registers a part of the POSIX segment `key` (H91, H92). Numbers are below 2**64 and otherwise unchecked."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class RegisterCudaMemory(Query[None]):
    """Registers device memory of another process, by its CUDA IPC handle (H95)."""

    name: str
    handle: bytes
    device_id: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class UnregisterMemory(Query[None]):
    """Unregisters one region, or all of a kind if no name is given. An unknown name is no error (H94)."""

    kind: RegionKind
    name: str = ""


@dataclass(frozen=True, slots=True)
class SystemMemoryStatus(Query["list[SystemRegion]"]):
    """One system region, or all of them, sorted by name (H93)."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class CudaMemoryStatus(Query["list[CudaRegion]"]):
    """One CUDA region, or all of them, sorted by name (H96)."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class RepositoryIndex(Query["list[IndexEntry]"]):
    """The models of the repositories, or only those that are ready (H110, G7)."""

    ready: bool = False


@dataclass(frozen=True, slots=True)
class LoadModel(Query[None]):
    """Loads or reloads a model (H112 to H118, G8). Answered when it serves or has failed.

    `config` is a configuration as JSON that replaces the repository's. `files` are pairs of a path within the model
    directory and its content; they replace that directory. `asker` is the model that asks for this while it is being
    loaded itself: its load waits for this one. It is empty for a model that serves and None for a client (P29).
    `client` is the address of that client.
    """

    model: str
    config: str | None = None
    files: tuple[tuple[str, bytes], ...] = ()
    asker: str | None = None
    client: str = ""


@dataclass(frozen=True, slots=True)
class UnloadModel(Query[None]):
    """Unloads a model, and with `dependents` also those that it is made of (H116, G9).

    Answered when the model takes no more requests. `asker` is the model that asks for this while it is being loaded
    itself; it is empty for a model that serves and None for a client (P29).
    """

    model: str
    dependents: bool = False
    asker: str | None = None


LOG_FORMATS: Final = ("default", "ISO8601", "json")


@dataclass(frozen=True, slots=True)
class LogSettings(Query["LogInfo"]):
    """Changes log settings and returns those in force (H124, G12).

    `changes` are pairs of a field of `LogInfo` and its new value. `refusal` is the error of the rest of the request:
    the changes before it are made, and it is the answer.
    """

    changes: tuple[tuple[str, bool | int | str], ...] = ()
    refusal: Error | None = None


@dataclass(frozen=True, slots=True)
class TraceSettings(Query["TraceInfo"]):
    """Changes trace settings of one model, or of all if `model` is empty, and returns those in force (H121 to H123,
    G11).

    `changes` are pairs of a field of `TraceInfo` and its new value; None takes the value of the layer below (T2).
    `refusal` is the error of the request. It is the answer if the model is known, and nothing is changed.
    """

    model: str = ""
    changes: tuple[tuple[str, tuple[str, ...] | int | None], ...] = ()
    refusal: Error | None = None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server's metadata (H9)."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output of a model. If the model batches, `shape` begins with -1 (H11)."""

    name: str
    datatype: DataType
    shape: Shape


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's metadata (H11). `versions` are the ready versions, or the one that was asked for."""

    name: str
    versions: tuple[int, ...]
    platform: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True, slots=True)
class ConfigInfo:
    """A model configuration: as the protocol's JSON, and as a serialized protobuf `ModelConfig`."""

    json: str
    message: bytes


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One entry of the repository index: a model version, or a model without known versions (H110)."""

    name: str
    version: int | None = None
    state: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LogInfo:
    """The log settings. `format` is one of `LOG_FORMATS`; an empty `file` means the console."""

    file: str
    info: bool
    warning: bool
    error: bool
    verbose: int
    format: str


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """The trace settings. `level` holds TIMESTAMPS, TENSORS or nothing. One request in `rate` is traced, until `count`
    traces were made (-1: no limit)."""

    level: tuple[str, ...]
    rate: int
    count: int
    log_frequency: int
    file: str
    mode: str
    more: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Settings of the mode `opentelemetry` with their values."""


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened, and the sum of its nanoseconds."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """The executions at one batch size."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


@dataclass(frozen=True, slots=True)
class ResponseCounts:
    """The responses with one index (first, second, ...) of requests to a decoupled model, by how they ended.

    The duration of a success is that of computing it and of writing its outputs. An empty response has no outputs.
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
    """The statistics of one model version (H119). `last_inference` is in milliseconds since the epoch.

    The keys of `inference` are success, fail, queue, compute_input, compute_infer, compute_output, cache_hit and
    cache_miss, in that order.
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
    """A registered part of a POSIX segment (H93)."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """Registered device memory (H96)."""

    name: str
    device_id: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """The value of a series: the cumulative number of observations up to each bound, and their sum. The last bound is
    infinite."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The value of a series: pairs of a quantile and its value, the number of observations, and their sum."""

    quantiles: tuple[tuple[float, float], ...]
    count: int
    sum: float


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric. `kind` is "counter", "gauge", "summary" or "histogram". `series` are pairs of labels and value, in
    the order in which they are written."""

    name: str
    help: str
    kind: str
    series: tuple[tuple[Mapping[str, str], float | Histogram | Summary], ...]


class EnginePort(Protocol):
    """The engine as a front end sees it."""

    def infer(self, request: InferRequest, reply: Reply) -> int:
        """Starts an inference. Returns its key for `cancel`, or 0 if it was refused. Every outcome, also the refusal,
        goes to the reply slot."""
        ...

    def cancel(self, key: int) -> None:
        """The client of this inference has gone. Does nothing if the inference is over or unknown."""
        ...

    def ask(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        """Calls `done` once, with the answer to the query or an error."""
        ...
