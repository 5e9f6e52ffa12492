"""A model configuration as everybody outside this room reads it: frozen values, complete and checked, made once a load.

The protobuf message stays inside `halimede.config`; what others need of it travels as text (`json`) and as bytes
(`message`). Pure values, any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from halimede.tensors import DataType, Shape


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output (contract R46, R47). `dims` without the batch dimension, -1 where any size goes.

    `reshape` is the shape the model itself sees (contract H71), None when it is `dims`.
    """

    name: str
    datatype: DataType
    dims: Shape
    reshape: Shape | None = None
    optional: bool = False
    allow_ragged_batch: bool = False
    label_filename: str = ""

    @property
    def model_dims(self) -> Shape:
        """The dims that the model sees: `reshape` where there is one."""
        return self.dims if self.reshape is None else self.reshape


class InstanceKind(Enum):
    """Where an instance runs, after KIND_AUTO was decided (contract R53)."""

    CPU = "CPU"
    GPU = "GPU"
    MODEL = "MODEL"


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """`count` instances of one kind, on each of `gpus` where the kind is GPU (contract R53)."""

    name: str
    kind: InstanceKind
    count: int = 1
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """The dynamic batcher's settings (contract S20). `preferred_batch_sizes` sorted, never empty unless the model's
    max_batch_size is 0."""

    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_us: int = 0


class VersionChoice(Enum):
    """Kind of a version policy (contract R44)."""

    LATEST = "latest"
    ALL = "all"
    SPECIFIC = "specific"


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which of the version directories are served: the `latest` n, all, or the listed ones (contract R44)."""

    choice: VersionChoice = VersionChoice.LATEST
    latest: int = 1
    specific: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything a load and a request need to know of a model's configuration.

    `json` is the configuration as the protocol prints it (contract H12, R62, R63), `message` the same as a serialized
    protobuf ModelConfig. `platform` may be empty; `model_filename` is the file or directory to open in a version
    directory. `parameters` are the string values.
    """

    name: str
    backend: str
    platform: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    model_filename: str
    instance_groups: tuple[InstanceGroup, ...]
    json: str
    message: bytes
    version_policy: VersionPolicy = VersionPolicy()
    dynamic_batching: DynamicBatching | None = None
    decoupled: bool = False
    parameters: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    graph_optimization_level: int | None = None
    """`optimization.graph.level`, None when not set (contract R75)."""


@dataclass(frozen=True, slots=True)
class DescribedTensor:
    """A tensor as a model file declares it: `shape` is full, -1 where symbolic, None where the rank is unknown."""

    name: str
    datatype: DataType
    shape: Shape | None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """What a model file says of itself, to complete a configuration from (contract R72)."""

    inputs: tuple[DescribedTensor, ...]
    outputs: tuple[DescribedTensor, ...]
