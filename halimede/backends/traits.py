"""The declaration of a backend: a frozen value that can be read without importing the backend's runtime.

Each backend package exports one `TRAITS`. The configuration room, the loader, `check`, `init` and the response cache
read it, so none of them knows a backend by its name. Each field has a reader. What differs from model to model is no
trait but a member of `api.BackendModel`. Pure values, any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType


class Completes(Enum):
    """When the loader calls `Backend.describe` to complete a configuration."""

    NEVER = "never"
    MISSING = "missing"
    """Only if inputs or outputs are missing (R72)."""
    ALWAYS = "always"
    """For every configuration: user code may change it (R77)."""


class Home(Enum):
    """The process that runs the instances of a backend: the server itself, or one child process per instance."""

    SERVER = "server"
    CHILD = "child"


class DeviceKind(Enum):
    """The kinds of device that an instance can run on."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Format:
    """A format of model files that a backend opens.

    `filename` is the name in a version directory if the configuration gives none. `directory` says whether it must be
    a directory; None allows both. `platform` is the value of the field `platform` for this format.
    """

    filename: str
    platform: str = ""
    directory: bool | None = None
    ending: str = ""
    """The file name extension that `halimede init` accepts, such as ".pt"; empty if it accepts none."""
    companion: str = ""
    """The extension of a second file of the model, which `halimede init` copies too, such as ".bin"; empty if it has
    none."""
    marker: str = ""
    """The file in a directory by which `halimede init` recognizes it; if empty, one called `filename`."""
    fills_version: bool = False
    """Whether a directory that `halimede init` gets becomes the version directory itself, not a directory in it."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Everything that the server must know about a backend before it imports the backend's runtime."""

    name: str
    """The value of the field `backend` in a configuration (R42)."""
    implementation: str = ""
    """The class that implements `backends.api.Backend`, as "module:Class". Empty if this server does not have the
    backend and only knows its formats."""
    formats: tuple[Format, ...] = ()
    """The first one is the default; see `guesses_format`."""
    guesses_format: bool = True
    """Whether a configuration that names only the backend means the first format (R70)."""
    runtimes: tuple[str, ...] = ()
    """Values of the field `runtime` that the backend serves itself, besides its library's name (R43). For such a model
    no file name is filled in (BT33)."""
    aliases: tuple[str, ...] = ()
    """Names that people write by mistake; `halimede check` then proposes `name`."""
    extra: str = ""
    """The extra of the distribution that installs the runtime; empty if the runtime is always installed."""
    distribution: str = "halimede"
    """The distribution that has the extra."""
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Environment variables that the runtime needs, in workers too. They do not replace those of the operator."""
    alternative: str = ""
    """How a model of another framework can be served by this backend, as an imperative, for advice in error texts."""
    conversion: str = ""
    """How a model of this backend can be served although the server does not have the backend, as an imperative, for
    advice. Empty if nothing better than the `alternative` of the other backends is known."""

    conversions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What `halimede convert` can make for this backend. Each format has a function, as "module:function", that takes a
    `conversion.Conversion` and returns the path of the file that it wrote. It may run code of that file: the user chose
    it."""

    runs_user_code: bool = False
    """Whether files of a model are run as code. A client may not send such files without consent."""
    tensors_only: bool = False
    """Whether the models see only the tensors of a request. Then the response cache compares nothing else."""
    completes: Completes = Completes.MISSING
    optional_inputs: bool = False
    """Whether models can have optional inputs. If not, a load refuses them (BC7)."""
    ragged: bool = False
    """Whether models can have ragged inputs, batch inputs and batch outputs (S36, S37, S39). If not, a load refuses
    ragged inputs, and `halimede check` warns about the others."""
    states: bool = False
    """Whether models can have implicit states (S67). If not, `halimede check` warns about them."""
    checks_outputs: bool = True
    """Whether a response must have outputs of the configuration, with their datatypes. Triton does not check what
    Python models return (P77)."""
    runs_python_backends: bool = False
    """Whether it serves the models of `NAME/model.py` in the backend directory (R83)."""
    platforms: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Platforms whose models have no class of the backend. Each has the module with the class that serves them."""
    calls_models: bool = False
    """Whether models can call other models. Only then does the backend get `BackendContext.calls`."""

    devices: frozenset[DeviceKind] = frozenset({DeviceKind.CPU})
    """Without `GPU`, `halimede check` says so for instance groups of KIND_GPU, and `Backend.usable_gpus` returns ()."""
    cpu_instances: int = 1
    """The number of instances in an instance group of KIND_CPU without a count (R53). For other kinds it is one."""
    homes: tuple[Home, ...] = (Home.SERVER,)
    """The homes that instances may have; the first one is the default."""
    usual_home: str = ""
    """A function, as "module:function", for a backend whose default depends on the model: it takes a `ModelFolder`, the
    name of the model file and the field `runtime`, and returns a `Home`. It must not import the runtime."""
    starts_children: bool = False
    """Whether the backend itself starts the processes of its child home, with a program of its own."""

    outline: str = ""
    """A function, as "module:function", that reads the source of a model without running it and returns a
    `backends.api.Outline`."""

    @property
    def served(self) -> bool:
        """Whether this server can run its models."""
        return bool(self.implementation)

    @property
    def module(self) -> str:
        """The module of the implementation."""
        return self.implementation.partition(":")[0]
