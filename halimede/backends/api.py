"""The backend contract: what a runtime must offer to the server, and what the server hands to it.

A backend module knows model configurations and tensors, and nothing of scheduling, the engine or protocols. The
protocols `Batch` and `Responses` are what it may expect; the scheduling room implements them.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy.typing as npt

from halimede.backends.traits import Traits
from halimede.config.model_config import Description, Incomplete, InstanceKind, ModelConfig
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
    """One request of a batch, to read: what was asked (its inputs checked and reshaped for the model), its rows, and
    whether the client has gone meanwhile. `outputs` are the names to answer with, never empty."""

    @property
    def request(self) -> InferRequest: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def outputs(self) -> Sequence[str]: ...
    @property
    def cancelled(self) -> bool: ...
    def when_cancelled(self, tell: Callable[[], None]) -> None:
        """Has `tell`, which must not raise, called when the client goes. On the event loop only."""
        ...


class Batch(Protocol):
    """The requests that an instance is to run at once. Read by the thread that `execute` was called on."""

    @property
    def requests(self) -> Sequence[BatchedRequest]: ...

    def arrays(self) -> Arrays:
        """The inputs of all requests gathered along the batch dimension, by name: views of request memory for a batch
        of one, unless they are small (`tensors.SMALL_BYTES`), BYTES as object arrays of `bytes`. Marks the end of the
        input phase. An optional input that no request has is absent. A ragged input is the elements of all requests in
        one dimension, and the inputs that the server makes of a batch are there too (S36, S37). May raise
        Error."""
        ...

    def parts(self, name: str) -> Sequence[Tensor]:
        """An input of each request as it came, never copied: its memory says where it is. Raises KeyError if the
        requests do not have it."""
        ...

    def shape(self, name: str) -> Shape:
        """The shape of an input gathered along the batch dimension. Raises KeyError."""
        ...

    def gather(self, name: str, into: HostArray | DeviceArray, device: Device | None = None) -> None:
        """Writes an input of all requests into an array of the backend's, of that shape and the input's datatype: the
        runtime's own input tensor, pinned memory, or memory on `device`. Parts that are on this device are copied
        there. Not for ragged inputs. Marks the end of the input phase. Raises Error."""
        ...

    def arrays_of(self, i: int) -> Arrays:
        """The inputs of this request alone, as `arrays` would have them for a batch of one. May raise Error."""
        ...


class Responses(Protocol):
    """Where the outcome of a batch goes. Every method may be called from any thread, also after `execute` returned.

    `i` is the index of the request in the batch. A request that is not decoupled gets exactly one final response or
    error; what is missing when the batch is finished, and was not promised for later, fails with the contract's text
    (H50).
    """

    def send(
        self, i: int, outputs: Sequence[Tensor] | None, final: bool = True, parameters: Parameters | None = None
    ) -> None:
        """One response; `outputs` None (only with final) says that no more come. Outputs not asked for are dropped.

        One that is not final blocks while the client does not read (G32), except on the event loop: there the caller
        asks by `on_writable` before it lets the model go on."""
        ...

    def on_writable(self, i: int, resume: Callable[[], None]) -> None:
        """Calls `resume`, which must not raise, once when the client of request `i` takes more responses, has gone, or
        the request is over; at once if that is so already. On the event loop only."""
        ...

    def fail(self, i: int, error: Error, final: bool = True) -> None: ...

    def again(self, i: int) -> None:
        """Has the scheduler run this request once more (S72)."""
        ...

    def scatter(self, outputs: Mapping[str, Any], device: Device | None = None) -> None:
        """Answers every request of the batch with its rows of `outputs` (views, no copy). Marks the output phase.

        Without `device` these are arrays of numpy's. With it they may be arrays on the device, which need not be
        computed yet: the answers go out when the device is there. What a request needs on the host is copied once, as a
        whole, in the meantime; the instance can take the next batch.

        Each array has the configuration's dtype and, for a batching model, the batch as first dimension, unless it is
        a batch output, which has the elements of all requests one behind the other (S39)."""
        ...

    def scatter_to(self, i: int, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        """Answers this request, whose inputs `arrays_of` gave."""
        ...

    def compute_times(self, input_end: int, output_start: int) -> None:
        """When the inputs were ready and the outputs began, in monotonic nanoseconds, where the backend knows better
        than the two marks above (a worker process)."""
        ...

    def promise(self, later: Collection[int]) -> None:
        """These requests of a model that is not decoupled get their one answer after `execute` returned, by a final
        `send` or `fail`. Called by `execute` itself, where it is the server that says `finished`."""
        ...

    def finished(self, later: Collection[int] = ()) -> None:
        """The instance can take another batch. Called once per batch: by the server when `execute` returns, except if
        the model's placement is LOOP or ASYNC, then by the backend: on the loop for LOOP, on any thread for ASYNC. Also
        if `execute` raises, by the server.

        `later` are the requests of a model that is not decoupled which get their one answer after this: a final `send`
        or `fail`, on the loop too."""
        ...


class Placement(Enum):
    """Who calls `Instance.execute`."""

    THREAD = "thread"
    """A thread of the instance; the call may block. With `inline_safe` also the loop, while it stays quick."""
    ASYNC = "async"
    """A thread of the instance. The call begins the batch and may return before it is over: the backend calls
    `Responses.finished`, on any thread, and may end batches in any order. Up to `BackendModel.in_flight` batches are
    under way in an instance."""
    LOOP = "loop"
    """The event loop; the call only passes the batch on (to a worker process) and returns at once."""


class Instance(Protocol):
    """One copy of a model."""

    @property
    def healthy(self) -> bool:
        """Whether it can run a batch; False when what it runs in is gone (P10). Asked on the event loop."""
        ...

    def execute(self, batch: Batch, responses: Responses) -> None:
        """Runs the batch. An exception fails every request of it that has no answer yet: an Error with its own text,
        anything else as Internal."""
        ...

    def close(self) -> None:
        """Gives everything back; called on a load thread when no batch runs. May block, does not raise."""
        ...


@runtime_checkable
class Supervised(Protocol):
    """An instance that may break and come back. On the event loop."""

    @property
    def restarts(self) -> int:
        """How often it came back."""
        ...

    def watch(self, changed: Callable[[bool, bool], None]) -> None:
        """Has `changed` told whether it is healthy, and whether it is expected back so soon that requests should wait
        for it: whenever that changes, and at once if it is not healthy already. It is told before the requests of a
        batch that broke off are answered."""
        ...


class Thread(Protocol):
    """Does what it is given, in order."""

    def submit(self, work: Callable[[], None]) -> None: ...


class OnItsThread(Protocol):
    """An instance that has a thread of its own, on which it was made: `execute` is called there."""

    @property
    def thread(self) -> Thread: ...


@runtime_checkable
class Rewarmed(Protocol):
    """An instance that may come back, and then is warmed up before it says that it is healthy."""

    def warm_again_by(self, warm: Callable[[Callable[[], None]], object], /) -> None:
        """On a load thread, after it was warmed up for the first time. `warm` is called on the event loop; it executes
        batches, and calls what it is given when that is over, however it ended."""
        ...


@runtime_checkable
class SelfAssessing(Protocol):
    """An instance whose model may report its readiness (P9). On the event loop."""

    @property
    def reports_readiness(self) -> bool: ...
    def ask_ready(self, done: Callable[[bool], None], /) -> None:
        """Tells `done` once what the model says, within seconds, possibly before this returns; False if the instance
        is not healthy."""
        ...


class OnDevice(Protocol):
    """A model whose instances run on a device and take tensors there."""

    @property
    def copies(self) -> CopyCounter:
        """That of the devices of all its instances."""
        ...


def is_on_device(model: object) -> TypeGuard[OnDevice]:
    """Whether a model runs on a device. Quicker than `isinstance`, which looks up all members."""
    return hasattr(model, "copies")


def is_supervised(instance: object) -> TypeGuard[Supervised]:
    """Whether an instance may break and come back. `isinstance` would look up the members of the protocol dozens of
    times, for each of a thousand models."""
    return hasattr(instance, "watch")


def is_self_assessing(instance: object) -> TypeGuard[SelfAssessing]:
    """Whether the model of an instance may report its readiness. Quicker than `isinstance`."""
    return hasattr(instance, "ask_ready")


@dataclass(frozen=True, slots=True)
class InstancePlace:
    """Name, kind and device of an instance to create, and its number among all instances of the model version.

    A `passive` one is given no batch. It is created by a thread for which `host` is in force; threads and processes
    that are started for it later must have it too. `host_policy` is the name that its group gives, or empty.
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
    """A version of a model, opened by its backend. Methods are called on a load thread and may block."""

    @property
    def placement(self) -> Placement: ...
    @property
    def inline_safe(self) -> bool:
        """No user code, no waiting: may run on the event loop while it is measured to be quick. Such a model answers
        from within `execute` only."""
        ...

    @property
    def in_flight(self) -> int:
        """How many batches an instance can have at a time; more than 1 only if `execute` returns before they are over.
        It gets one at a time if its requests are sequences, or if the server has a rate limiter."""
        ...

    @property
    def gathers(self) -> bool:
        """Whether a batch is better begun after everything that has arrived in this turn of the event loop."""
        ...

    def create_instance(self, place: InstancePlace) -> Instance:
        """Raises Error when it cannot."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Where a model lies: its directory in the repository, the version directory, and the version's number. `code` is
    the file that runs it where a Python-based backend serves it (R83). `opened` comes from the description
    that the backend gave of the model just now, for the `open` that follows."""

    model: Path
    version: Path
    number: int
    code: Path | None = None
    opened: object = field(default=None, compare=False, repr=False)


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
    """Something that keeps a model from being loaded, unless `severity` says that it is a warning or a note. `file` and
    `line` are to blame, if they are set. `instead` is what would be right."""

    text: str
    file: Path | None = None
    line: int = 0
    instead: str = ""
    severity: Severity = Severity.ERROR
    cause: Cause | None = None


@runtime_checkable
class Inspecting(Protocol):
    """A backend that can look at a model without serving it: `halimede check`."""

    def runs_code(self, asked: Incomplete, /) -> bool:
        """Whether `describe` would run code that comes with the model."""
        ...

    def faults(
        self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str, /
    ) -> list[Fault]:
        """Everything that it finds. `config` is None if the configuration is not complete: then the files alone are
        looked at. Runs nothing of the model's own; does not raise Error. Called on a load thread."""
        ...


class Outline(Protocol):
    """What the source of a model shows without being run: for `halimede init` (`Traits.outline`)."""

    @property
    def completes(self) -> bool:
        """Whether its code may complete its configuration."""
        ...

    @property
    def reads(self) -> Collection[str]:
        """Names of the inputs that stand in the code."""
        ...

    @property
    def writes(self) -> Collection[str]:
        """Names of the outputs that stand in the code."""
        ...


@dataclass(frozen=True, slots=True)
class CpuShare:
    """The cores of the operator, as a host policy leaves them, and how many instances of a model share them (D11)."""

    cores: frozenset[int]
    instances: int = 1

    @property
    def threads(self) -> int:
        """The threads of one instance that has a pool of its own: its part of the cores, at least one."""
        return max(1, len(self.cores) // max(1, self.instances))

    @property
    def pool(self) -> int:
        """The threads of a pool that all instances share and whose callers work too: the callers and the pool's workers
        (one less than this number) together are as many threads as there are cores."""
        return max(1, len(self.cores) - self.instances + 1)


class ProcessThreads:
    """The number of threads of a runtime that has one setting per process. The first model fixes
    it. Load threads."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._fixed: Future[tuple[int, str]] = Future()

    def fix(self, model: str, threads: int) -> tuple[int, bool]:
        """The number that the process has, and whether this model fixed it: then the caller sets it. A later model that
        wants another one is named in the log."""
        try:
            self._fixed.set_result((threads, model))
        except InvalidStateError:
            there, first = self._fixed.result()
            if there != threads:
                log.warning(
                    "model '%s' wants %d threads of backend '%s', which has %d for the whole process since model '%s' "
                    "was loaded; set the same number for all models of this backend",
                    *(model, threads, self._backend, there, first),
                )
            return there, False
        log.info(
            "backend '%s' has %d threads for the whole process, as model '%s' wants", self._backend, threads, model
        )
        return threads, True


def cpu_share(instances: int) -> CpuShare:
    """The share of a model with so many instances, on the cores that the calling thread may use: a host policy is in
    force for it."""
    return CpuShare(available_cores(), max(1, instances))


@dataclass(frozen=True)
class BackendContext:
    """What the server gives a backend when it creates it. `settings` are those of `--backend-config`."""

    loop: asyncio.AbstractEventLoop
    """The event loop: batches of models that are placed there come from it."""
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    calls: CallPort | None = None
    """Where models call others; only for a backend that declares `calls_models`."""
    worker_poller: WorkerPoller | None = None
    """Watches processes that the backend starts; None for one that only looks at models."""
    process_threads: ProcessThreads = field(default_factory=lambda: ProcessThreads(""))


class Backend(Protocol):
    """A runtime. Created once per engine, when the first model needs it, on a load thread, from a `BackendContext`."""

    @property
    def traits(self) -> Traits: ...

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        """Those of the machine's GPUs that this runtime, as it is installed, can run on."""
        ...

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description | Mapping[str, Any] | None:
        """What can be completed of a configuration: what the file declares, or (user code) a changed configuration as
        JSON values, or None. Called on a load thread, before `open`. Raises Error."""
        ...

    def open(self, config: ModelConfig, folder: ModelFolder) -> BackendModel:
        """Opens a model version. Raises Error with the words of the contract (R74)."""
        ...

    def close(self) -> None: ...
