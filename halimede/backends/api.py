"""The backend contract: the Protocols that a backend implements, and those that the server implements for it.

A backend implements `Backend`, `BackendModel` and `Instance`. The other Protocols for instances and models are
optional: the server looks whether an object has their members. The server implements `Batch` and `Responses` (in
`scheduling.execution`, and in `hosted.batch` for a child process).

A backend knows model configurations and tensors, and nothing of scheduling, the engine or protocols. `docs/
writing-a-backend.md` shows the use of all this.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, ParamSpec, Protocol, TypeGuard, runtime_checkable

import numpy.typing as npt

from halimede.backends.traits import DeviceKind, Traits
from halimede.config.model_config import DescribedTensor, Description, Incomplete, InstanceKind, ModelConfig
from halimede.devices import CopyCounter, Device, DeviceArray, HostArray
from halimede.errors import Cause, Error
from halimede.platform.hosts import ANYWHERE, HostPolicy, available_cores
from halimede.platform.worker_poller import WorkerPoller
from halimede.requests import InferRequest, Parameters
from halimede.tensors import Shape, Tensor
from halimede.workers.calls import CallPort

log = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]


class BatchedRequest(Protocol):
    """One request of a batch, for reading.

    request -- its inputs are checked, and reshaped for the model
    batch_size -- the number of its rows
    outputs -- the names of the outputs to answer with, never empty
    cancelled -- whether the client has gone
    """

    @property
    def request(self) -> InferRequest: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def outputs(self) -> Sequence[str]: ...
    @property
    def cancelled(self) -> bool: ...
    def when_cancelled(self, tell: Callable[[], None]) -> None:
        """Registers `tell`, which the server calls when the client goes. `tell` must not raise. On the event loop
        only."""
        ...


class Batch(Protocol):
    """The requests that an instance runs at once. Read by the thread that called `execute`."""

    @property
    def requests(self) -> Sequence[BatchedRequest]: ...

    def arrays(self) -> Arrays:
        """The inputs of all requests, gathered along the batch dimension, by name.

        For a batch of one they are views of the request's memory, unless they are small (`tensors.SMALL_BYTES`). BYTES
        are object arrays of `bytes`. An optional input that no request has is missing. A ragged input has the elements
        of all requests in one dimension; batch inputs are included (S36, S37). Marks the end of the input phase. Raises
        Error."""
        ...

    def parts(self, name: str) -> Sequence[Tensor]:
        """An input of each request where it is, without a copy: `Tensor.memory` has its kind and device. Raises
        KeyError if a request does not have it."""
        ...

    def shape(self, name: str) -> Shape:
        """The shape of an input gathered along the batch dimension. Raises KeyError."""
        ...

    def gather(self, name: str, into: HostArray | DeviceArray, device: Device | None = None) -> None:
        """Writes an input of all requests into an array of the backend, such as the runtime's own input tensor, pinned
        memory, or memory on `device`. The array has the shape `shape(name)` and the datatype of the input. Parts that
        are on this device are copied on the device. Not for ragged inputs. Marks the end of the input phase. Raises
        Error."""
        ...

    def arrays_of(self, i: int) -> Arrays:
        """The inputs of request `i`, in the form that `arrays` has for a batch of one. Raises Error."""
        ...


class Responses(Protocol):
    """Takes the answers to a batch. Any thread may call it, also after `execute` returned, unless a method says
    otherwise.

    `i` is the index of the request in the batch. A request of a model that is not decoupled gets exactly one response
    or error. If it has none when the batch has finished, and none was promised for later, it fails with Triton's text
    (H50).
    """

    def send(
        self, i: int, outputs: Sequence[Tensor] | None, final: bool = True, parameters: Parameters | None = None
    ) -> None:
        """Sends one response. With `final`, `outputs` may be None: the request gets no further response. Outputs that
        the client did not request are dropped.

        A response that is not final blocks the caller while the client does not read (G32). On the event loop it never
        blocks; there the backend calls `on_writable` before it lets the model continue."""
        ...

    def on_writable(self, i: int, resume: Callable[[], None]) -> None:
        """Calls `resume` once, when the client of request `i` takes more responses or has gone, or the request has
        ended; at once if that is already the case. `resume` must not raise. On the event loop only."""
        ...

    def fail(self, i: int, error: Error, final: bool = True) -> None:
        """Answers request `i` with an error."""
        ...

    def fail_all(self, error: Exception) -> None:
        """Answers each request of the batch without an answer with an error. An Error keeps its kind and text; any
        other exception becomes Internal, and the log gets its traceback."""
        ...

    def again(self, i: int) -> None:
        """Returns request `i` to the queue, to run once more (S72). Only for iterative sequence models; the request of
        any other model fails."""
        ...

    def scatter(self, outputs: Mapping[str, Any], device: Device | None = None) -> None:
        """Answers every request of the batch with its rows of `outputs`, as views. Marks the start of the output phase.

        Without `device`, `outputs` are numpy arrays. With it, they may also be arrays on the device that are not
        computed yet. The server then answers when the device has reached this point of its stream. If a reader needs an
        output on the host, the whole output is copied once, also asynchronously. Meanwhile the instance can take the
        next batch.

        Each array has the dtype of the configuration. For a batching model the first dimension is the batch, except
        for a batch output, which has the elements of all requests one after another (S39)."""
        ...

    def scatter_to(self, i: int, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        """Answers request `i` alone, with the outputs for the inputs that `arrays_of` returned."""
        ...

    def compute_times(self, input_end: int, output_start: int) -> None:
        """Sets the end of the input phase and the start of the output phase, in monotonic nanoseconds. For a backend
        whose batches run in another process, where these moments were measured."""
        ...

    def promise(self, later: Collection[int]) -> None:
        """Announces that these requests get their one answer after `execute` has returned, by a final `send` or `fail`.
        For a model that is not decoupled. Called within `execute` with Placement.THREAD, because the batch finishes
        when `execute` returns; with ASYNC and LOOP the backend passes `later` to `finished` instead."""
        ...

    def finished(self, later: Collection[int] = ()) -> None:
        """Ends the batch: the instance can take another one. Called exactly once per batch:

        - by the server, if the placement is THREAD or if `execute` raises
        - by the backend otherwise: on the loop if the placement is LOOP, on any thread if it is ASYNC

        `later` are the requests that get their one answer after this, by a final `send` or `fail`. For a model that is
        not decoupled."""
        ...


class Placement(Enum):
    """Who calls `Instance.execute`."""

    THREAD = "thread"
    """A thread of the instance; the call may block. If the model is `inline_safe`, also the event loop, while the calls
    are measured to be quick."""
    ASYNC = "async"
    """A thread of the instance. The call starts the batch and may return before the batch has finished. The backend
    calls `Responses.finished` on any thread, for its batches in any order. An instance has up to
    `BackendModel.in_flight` batches at a time."""
    LOOP = "loop"
    """The event loop. The call passes the batch on, for example to a worker process, and returns at once."""


P = ParamSpec("P")


def guarded(responses: Responses, work: Callable[P, None]) -> Callable[P, None]:
    """Wraps `work`, which ends a batch of Placement.ASYNC after `execute` has returned: the server does not see what it
    raises. The function that is returned calls `work`, then `finished`; if `work` raises, it calls `fail_all` first."""

    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            work(*args, **kwargs)
        except Exception as error:
            responses.fail_all(error)
        finally:
            responses.finished()

    return run


class Instance(Protocol):
    """One copy of a model. `BaseInstance` has defaults."""

    @property
    def healthy(self) -> bool:
        """Whether it can run a batch; False if, for example, its process has ended (P10). Read on the event loop; in a
        child process on any thread, after each batch."""
        ...

    def execute(self, batch: Batch, responses: Responses) -> None:
        """Runs the batch, or starts it, on the thread that `BackendModel.placement` names. An exception fails every
        request of the batch without an answer. An Error keeps its kind and text; any other exception becomes
        Internal."""
        ...

    def close(self) -> None:
        """Releases everything. Called on a thread of the server other than the event loop, when no batch runs. May
        block; must not raise."""
        ...


class BaseInstance:
    """An `Instance` that is always healthy and has nothing to release. A subclass adds `execute`."""

    __slots__ = ()
    healthy = True

    def close(self) -> None:
        """Nothing to release."""


@runtime_checkable
class Supervised(Protocol):
    """An instance that may fail and recover, such as a process that is restarted. On the event loop."""

    @property
    def restarts(self) -> int:
        """How often it has recovered."""
        ...

    def watch(self, changed: Callable[[bool, bool], None]) -> None:
        """Registers `changed`, which takes two arguments: whether the instance is healthy, and whether requests should
        wait because it will recover soon. The instance calls it whenever one of the two changes, and at once if it is
        not healthy now. After a failure it calls it before it answers the requests of the batch that failed."""
        ...


class Thread(Protocol):
    """A thread that does work in the order in which it was submitted."""

    def submit(self, work: Callable[[], None]) -> None: ...


class OnItsThread(Protocol):
    """An instance that brings its own thread, for a runtime that must be used on the thread that created it. The server
    calls `execute` on it."""

    @property
    def thread(self) -> Thread: ...


@runtime_checkable
class Rewarmed(Protocol):
    """A `Supervised` instance that is warmed up after each recovery, before it reports that it is healthy."""

    def warm_again_by(self, warm: Callable[[Callable[[], None]], object], /) -> None:
        """Gives the instance the function `warm`. Called on a load thread, after the first warm-up. The instance calls
        `warm(done)` on the event loop after each recovery; `warm` runs the warm-up batches and calls `done` when they
        have ended, whether they succeeded or not."""
        ...


@runtime_checkable
class SelfAssessing(Protocol):
    """An instance whose model may report its readiness (P9). On the event loop."""

    @property
    def reports_readiness(self) -> bool: ...
    def ask_ready(self, done: Callable[[bool], None], /) -> None:
        """Calls `done` once with the answer of the model, within seconds, possibly before this method returns. The
        answer is False if the instance is not healthy."""
        ...


class OnDevice(Protocol):
    """A model whose instances read and write tensors on a device. Its outputs stay there for the next step of an
    ensemble, if that runs on a device too."""

    @property
    def copies(self) -> CopyCounter:
        """The counter that the devices of all its instances share."""
        ...


def is_on_device(model: object) -> TypeGuard[OnDevice]:
    """Whether a model runs on a device. Faster than `isinstance`, which looks up all members."""
    return hasattr(model, "copies")


def is_supervised(instance: object) -> TypeGuard[Supervised]:
    """Whether an instance may fail and recover. Faster than `isinstance`, which would look up the members of the
    Protocol dozens of times for each of a thousand models."""
    return hasattr(instance, "watch")


def is_self_assessing(instance: object) -> TypeGuard[SelfAssessing]:
    """Whether the model of an instance may report its readiness. Faster than `isinstance`."""
    return hasattr(instance, "ask_ready")


@dataclass(frozen=True, slots=True)
class InstancePlace:
    """An instance that the server wants.

    name, kind, device_id -- of the instance; `device_id` is the number of the GPU if the kind is GPU
    index, total -- its number among all instances of the model version, and the number of these
    passive -- it never gets a batch
    host_policy -- the name of the host policy in its instance group, or empty
    host -- the cores and memory of that policy. They are in force for the thread that calls `create_instance`; threads
        and processes that the backend starts later must apply them too
    """

    name: str
    kind: InstanceKind
    device_id: int
    index: int
    total: int
    passive: bool = False
    host_policy: str = ""
    host: HostPolicy = ANYWHERE


class BackendModel(Protocol):
    """A version of a model, opened by its backend. `create_instance` is called on a load thread, `close` on a closing
    thread; both may block. `BaseModel` has defaults."""

    @property
    def placement(self) -> Placement: ...
    @property
    def inline_safe(self) -> bool:
        """Whether `execute` may run on the event loop while it is measured to be quick. Only for a model that runs no
        user code, waits for nothing, and answers only within `execute`."""
        ...

    @property
    def in_flight(self) -> int:
        """How many batches an instance can have at a time. With Placement.THREAD it is 1. If the requests are
        sequences, or if the server has a rate limiter, the server gives an instance one batch at a time."""
        ...

    @property
    def gathers(self) -> bool:
        """Whether the server starts batches in the next turn of the event loop instead of at once, so that a batch has
        all requests that arrived in this turn. Useful if starting a batch is expensive and the model is not on the
        loop. Not related to `Batch.gather`."""
        ...

    def create_instance(self, place: InstancePlace) -> Instance:
        """Raises Error."""
        ...

    def close(self) -> None: ...


class BaseModel:
    """A `BackendModel` whose instances run one batch at a time on threads of the server, and which has nothing to
    release. A subclass adds `create_instance`, and overrides what differs."""

    placement = Placement.THREAD
    inline_safe = False
    in_flight = 1
    gathers = False

    def close(self) -> None:
        """Nothing to release. The server closes the instances first."""


def _never() -> bool:
    """A function of the module, because a folder is pickled."""
    return False


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The files of a model version.

    model -- its directory in the repository
    version, number -- the version directory and its number
    code -- the file of a Python-based backend that serves the model (R83), or None
    opened -- `Description.opened` of the preceding `describe`, so that `open` need not open the files again, or None
    unwanted -- whether an unload waits for this load: what takes minutes may end
    bound -- what the program that runs the server gave instead of files, or None
    """

    model: Path
    version: Path
    number: int
    code: Path | None = None
    opened: object = field(default=None, compare=False, repr=False)
    unwanted: Callable[[], bool] = field(default=_never, compare=False, repr=False)
    bound: object = field(default=None, compare=False, repr=False)


class Severity(Enum):
    """How bad a problem of a model is.

    `ERROR`: the server does not load the model, or refuses its requests. `WARNING`: the server serves it, but probably
    not as its author meant. `NOTE`: something that only running the model's code can show.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Fault:
    """A problem that `halimede check` reports about a model. `file` and `line` say where it is, if that is known.
    `instead` says what would be right.

    `module` is a module that the model's code imports and that is not installed. `installs` is what `pip install` must
    get in the server's environment; empty if that would not help.
    """

    text: str
    file: Path | None = None
    line: int = 0
    instead: str = ""
    severity: Severity = Severity.ERROR
    cause: Cause | None = None
    module: str = ""
    installs: str = ""


@runtime_checkable
class Inspecting(Protocol):
    """A backend that can examine a model without serving it, for `halimede check`."""

    def runs_code(self, asked: Incomplete, /) -> bool:
        """Whether `describe` would run code that comes with the model."""
        ...

    def faults(
        self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str, /
    ) -> list[Fault]:
        """All problems of the model's files, and of its configuration unless `config` is None because the configuration
        is not complete. Runs no code of the model; must not raise Error. Called on any thread but the event loop."""
        ...


@runtime_checkable
class Probing(Protocol):
    """A backend whose files do not say everything about their tensors, and that can find out by running the model, for
    `halimede init`."""

    def probe(self, given: Sequence[DescribedTensor], folder: ModelFolder, filename: str, /) -> Description:
        """Runs the model on inputs of these datatypes and shapes, where -1 is a size of its choice. Returns what
        `describe` would. Raises Error."""
        ...


class Outline(Protocol):
    """What the source of a model shows without being run, for `halimede init` (`Traits.outline`)."""

    @property
    def completes(self) -> bool:
        """Whether the code may complete the configuration."""
        ...

    @property
    def reads(self) -> Collection[str]:
        """Names of inputs that the code mentions."""
        ...

    @property
    def writes(self) -> Collection[str]:
        """Names of outputs that the code mentions."""
        ...


@dataclass(frozen=True, slots=True)
class CpuShare:
    """The cores that a host policy allows, and the number of instances of a model that share them (D11)."""

    cores: frozenset[int]
    instances: int = 1

    @property
    def threads(self) -> int:
        """The number of threads for an instance with a pool of its own: its part of the cores, at least one."""
        return max(1, len(self.cores) // max(1, self.instances))

    @property
    def pool(self) -> int:
        """The size of a pool that all instances share, if the callers work in it too. A pool of this size has one
        worker fewer, so callers and workers together are one thread per core."""
        return max(1, len(self.cores) - self.instances + 1)


class ProcessThreads:
    """The number of threads of a runtime that has one setting per process. The first model that names a number fixes
    it. Load threads."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._fixing = Lock()
        self._fixed: tuple[int, str] | None = None
        self._is_default = False

    def fix(self, model: str, threads: int, default: bool = False) -> tuple[int, bool]:
        """Returns the number for the process, and whether this model fixed it; if so, the caller sets it in the
        runtime. A later model that wants another number only gets a line in the log.

        With `default`, nobody has named the number: it counts until a model names one."""
        with self._fixing:
            there = self._fixed
            if there is None or (self._is_default and not default):
                self._fixed, self._is_default = (threads, model), default
                log.info(
                    "backend '%s' has %d threads for the whole process, as model '%s' wants",
                    *(self._backend, threads, model),
                )
                return threads, True
        if there[0] != threads and not default:
            log.warning(
                "model '%s' wants %d threads of backend '%s', which has %d for the whole process since model '%s' "
                "was loaded; set the same number for all models of this backend",
                *(model, threads, self._backend, *there),
            )
        return there[0], False


def cpu_share(instances: int) -> CpuShare:
    """The share of a model with this number of instances, on the cores that the calling thread may use. On a load
    thread these are the cores of the host policy."""
    return CpuShare(available_cores(), max(1, instances))


@dataclass(frozen=True)
class BackendContext:
    """What the server gives to a backend when it creates it. `settings` are those of `--backend-config`."""

    loop: asyncio.AbstractEventLoop
    """The event loop of the server. It calls `execute` of models with Placement.LOOP."""
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    calls: CallPort | None = None
    """Calls to other models, for a backend that declares `Traits.calls_models`; None for any other."""
    worker_poller: WorkerPoller | None = None
    """Watches the processes that the backend starts; None if the backend only examines models."""
    process_threads: ProcessThreads = field(default_factory=lambda: ProcessThreads(""))
    environment_directory: Path | None = None
    """Where Python environments are built from lists of packages; None if none are built."""
    environment_limit: float = 1800.0
    """Seconds that such a build may take."""


class Backend(Protocol):
    """A runtime. The server creates one per engine from a `BackendContext`, on a load thread, when the first model
    needs it. With two homes, it creates one in each home that a model uses. `BaseBackend` has defaults."""

    @property
    def traits(self) -> Traits: ...

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        """The GPUs, out of those of the machine, that the installed runtime can use. KIND_GPU is refused for others."""
        ...

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description | Mapping[str, Any] | None:
        """Completes a configuration: returns what the model file declares, or the changed configuration as JSON values
        (for user code), or None. `Traits.completes` says when it is called. Called before `open`, on any thread but the
        event loop. Raises Error."""
        ...

    def open(self, config: ModelConfig, folder: ModelFolder) -> BackendModel:
        """Opens a model version, on a load thread. Raises Error, with Triton's texts for one of its backends (R74)."""
        ...

    def close(self) -> None:
        """Releases everything, also if models are still loading or open: the server ends. Must not raise."""
        ...


class BaseBackend:
    """A `Backend` that cannot complete a configuration and has nothing to release. A subclass adds `traits` and `open`,
    and overrides what differs."""

    traits: Traits

    def __init__(self, context: BackendContext) -> None:
        self.context = context

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        """All GPUs of the machine if the traits have GPUs, else none."""
        return gpus if DeviceKind.GPU in self.traits.devices else ()

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description | Mapping[str, Any] | None:
        return None

    def close(self) -> None:
        """Nothing to release."""
