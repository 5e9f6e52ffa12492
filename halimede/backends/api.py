"""The backend contract: what a runtime must offer to the server, and what the server hands to it.

A backend module knows model configurations and tensors, and nothing of scheduling, the engine or protocols. The
protocols `Batch` and `Responses` are what it may expect; the scheduling room implements them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy.typing as npt

from halimede.config.model_config import Description, Incomplete, InstanceKind, ModelConfig
from halimede.errors import Error
from halimede.platform.hosts import ANYWHERE, HostPolicy
from halimede.requests import InferRequest, Parameters
from halimede.tensors import Tensor

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
        one dimension, and the inputs that the server makes of a batch are there too (contract S36, S37). May raise
        Error."""
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

        One that is not final blocks while the client does not read (contract G32), except on the event loop: who
        answers from there asks by `on_writable` before it lets a model go on."""
        ...

    def on_writable(self, i: int, resume: Callable[[], None]) -> None:
        """Calls `resume`, which must not raise, once when the client of request `i` takes more responses, has gone, or
        the request is over: at once where that is so already. On the event loop only."""
        ...

    def fail(self, i: int, error: Error, final: bool = True) -> None: ...

    def again(self, i: int) -> None:
        """The scheduler shall run this request once more (contract S72)."""
        ...

    def scatter(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        """Answers every request of the batch with its rows of `outputs` (views, no copy). Marks the output phase.

        Each array has the configuration's dtype and, for a batching model, the batch as first dimension, unless it is
        a batch output, which has the elements of all requests one behind the other (contract S39)."""
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
        """The instance can take the next batch. Called once per batch: by the server when `execute` returns, except
        where the model's placement is LOOP, then by the backend, on the loop.

        `later` are the requests of a model that is not decoupled which get their one answer after this: a final `send`
        or `fail`, on the loop too."""
        ...


class Placement(Enum):
    """Who calls `Instance.execute`."""

    THREAD = "thread"
    """A thread of the instance; the call may block. With `inline_safe` also the loop, while it stays quick."""
    LOOP = "loop"
    """The event loop; the call only passes the batch on (to a worker process) and returns at once."""


class Instance(Protocol):
    """One copy of a model that can run one batch at a time."""

    @property
    def healthy(self) -> bool:
        """Whether it can run a batch; False when what it runs in is gone (contract P10). Asked on the event loop."""
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
        for it: whenever that changes, and at once where it is not healthy already. It is told before the requests of a
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
    """An instance whose model may have a say in its readiness (contract P9). On the event loop."""

    @property
    def reports_readiness(self) -> bool: ...
    def ask_ready(self, done: Callable[[bool], None], /) -> None:
        """Tells `done` once what the model says, within seconds, possibly before this returns; False where the instance
        is not healthy."""
        ...


def is_supervised(instance: object) -> TypeGuard[Supervised]:
    """As `isinstance`, which looks up the members of a protocol dozens of times: a thousand models ask."""
    return hasattr(instance, "watch")


def is_self_assessing(instance: object) -> TypeGuard[SelfAssessing]:
    """As `is_supervised`."""
    return hasattr(instance, "ask_ready")


@dataclass(frozen=True, slots=True)
class InstancePlace:
    """Name, kind and device of an instance to create, and its number among all instances of the model version.

    A `passive` one is given no batch. It is created by a thread for which `host` is in force; threads and processes
    that are started for it later shall have it too. `host_policy` is the name that its group gives, or empty.
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

    def create_instance(self, place: InstancePlace) -> Instance:
        """Raises Error when it cannot."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Where a model lies: its directory in the repository, the version directory, and the version's number. `code` is
    the file that runs it where a Python-based backend serves it (contract R83). `opened` comes from the description
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
    """What stands between a model and its load, where it is no warning or note; `file` and `line` where one is to
    blame."""

    text: str
    file: Path | None = None
    line: int = 0
    instead: str = ""
    severity: Severity = Severity.ERROR


@runtime_checkable
class Inspecting(Protocol):
    """A backend that can look at a model without serving it: `halimede check`."""

    def runs_code(self, config_json: str, /) -> bool:
        """Whether `describe` would run code that comes with the model."""
        ...

    def faults(
        self, config_json: str, config: ModelConfig | None, folder: ModelFolder, filename: str, /
    ) -> list[Fault]:
        """Everything that it finds. `config` is None where the configuration is not complete: then the files alone are
        looked at. Runs nothing of the model's own; does not raise Error. Called on a load thread."""
        ...


class Backend(Protocol):
    """A runtime. Created once per engine at first need, on a load thread, with its `--backend-config` settings."""

    @property
    def name(self) -> str: ...

    @property
    def default_instance_count(self) -> int:
        """How many instances a CPU group without a count has (contract R53)."""
        ...

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        """Those of the machine's GPUs that this runtime, as it is installed, can run on."""
        ...

    @property
    def describes_always(self) -> bool:
        """Whether `describe` has a say in every configuration (user code, contract R77), not only in one that lacks
        its inputs or outputs."""
        ...

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description | Mapping[str, Any] | None:
        """What can be completed of a configuration: what the file declares, or (user code) a changed configuration as
        JSON values, or None. Called on a load thread, before `open`. Raises Error."""
        ...

    def open(self, config: ModelConfig, folder: ModelFolder) -> BackendModel:
        """Opens a model version. Raises Error with the words of the contract (R74)."""
        ...

    def close(self) -> None: ...
