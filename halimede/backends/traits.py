"""What a backend declares of itself: a frozen value that can be read without importing the backend's runtime.

Each backend package exports one `TRAITS`. The configuration room, the loader, `check`, `init`, the response cache and
the documents read it, so none of them knows a backend by its name. Pure values, any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType


class Reads(Enum):
    """What `Instance.execute` works on."""

    BATCH = "batch"
    """Arrays of the whole batch, gathered along the first dimension."""
    REQUESTS = "requests"
    """Each request by itself."""


class Completes(Enum):
    """When the loader asks `Backend.describe` for what a configuration leaves open."""

    NEVER = "never"
    MISSING = "missing"
    """Only if inputs or outputs are missing (R72)."""
    ALWAYS = "always"
    """For every configuration: user code may change it (R77)."""


class Threads(Enum):
    """How far the number of CPU threads of the runtime can be set."""

    MODEL = "model"
    """For each model by itself."""
    PROCESS = "process"
    """Once per process: the first model that is opened decides."""
    NONE = "none"
    """Not at all, or the runtime has no threads of its own."""


class Home(Enum):
    """The process in which a backend's instances run."""

    SERVER = "server"
    CHILD = "child"


class Device(Enum):
    """What an instance can run on."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of model file that a backend opens.

    `filename` is the name in a version directory if the configuration gives none. `directory` says whether it must be
    a directory, None if it may be either. `platform` is the word that stands for this format in a configuration.
    """

    filename: str
    platform: str = ""
    directory: bool | None = None
    ending: str = ""
    """Of files that `halimede init` takes, such as ".pt"; empty if it takes none."""
    fills_version: bool = False
    """Whether a directory given to `halimede init` becomes the version directory, and not one in it."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Everything that the server must know of a backend before it imports the backend's runtime."""

    name: str
    """What `backend` says in a configuration (R42)."""
    implementation: str = ""
    """Where the class lies that implements `backends.api.Backend`, as "module:Class". Empty if this server does not
    have the backend and only knows its formats."""
    formats: tuple[Format, ...] = ()
    """The first one is used if neither the configuration nor the files tell; see `guesses_format`."""
    guesses_format: bool = True
    """Whether a configuration that names the backend alone means its first format (R70)."""
    aliases: tuple[str, ...] = ()
    """What people write by mistake for `name`; `halimede check` proposes `name` then."""
    extra: str = ""
    """The extra of the distribution that installs the runtime; empty if it is always there."""
    distribution: str = "halimede"
    """The distribution that has the extra."""
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Environment variables that the runtime must find, in workers too; set unless the operator has set them."""
    alternative: str = ""
    """What somebody can do to have a model of another framework served by this backend, as an imperative."""

    runs_user_code: bool = False
    """Whether files of a model are run as code (so that a client may not send them without consent)."""
    tensors_only: bool = False
    """Whether the models see nothing of a request but its tensors. The response cache need not look at more then."""
    reads: Reads = Reads.BATCH
    completes: Completes = Completes.MISSING
    optional_inputs: bool = False
    ragged: bool = False
    """Whether models can have ragged inputs, batch inputs and batch outputs (S36, S37, S39)."""
    states: bool = False
    """Whether models can have implicit states (S67)."""
    runs_python_backends: bool = False
    """Whether it serves the models of `NAME/model.py` in the backend directory (R83)."""
    calls_models: bool = False
    """Whether models can call other models: the backend is given a port for that."""
    gathers: bool = False
    """Whether a batch is better begun after everything that has arrived in a turn of the event loop."""

    devices: frozenset[Device] = frozenset({Device.CPU})
    cpu_instances: int = 1
    """How many instances an instance group of KIND_CPU has if it gives no count (R53). Other kinds have one."""
    in_flight: int = 1
    """How many batches an instance has at a time, unless the model says otherwise."""
    threads: Threads = Threads.NONE
    homes: tuple[Home, ...] = (Home.SERVER,)
    """Where instances may run; the first one is used if the operator does not choose."""
    starts_children: bool = False
    """Whether the backend starts the children of its child home itself, with a program of its own."""

    outline: str = ""
    """A function, as "module:function", that reads the source of a model without running it: `backends.api.Outline`."""

    @property
    def served(self) -> bool:
        """Whether this server can run its models."""
        return bool(self.implementation)

    @property
    def module(self) -> str:
        """The module of the implementation."""
        return self.implementation.partition(":")[0]
