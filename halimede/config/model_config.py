"""A model configuration as all other rooms read it: frozen values, complete and checked, built once per load.

The protobuf message stays inside `halimede.config`. Other rooms get it as bytes (`message`) and as JSON (`json`), which
is made of these bytes on each call. Pure values, any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from halimede.config.batching import DynamicBatching, QueuePolicy
from halimede.config.ensembles import Ensemble
from halimede.config.message import parse_bytes
from halimede.config.rendering import json_text
from halimede.config.sequencing import SequenceBatching
from halimede.config.states import StateSpec
from halimede.config.versions import VersionPolicy
from halimede.tensors import DataType, Shape


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output (R46, R47). `dims` are without the batch dimension, -1 for any size.

    `reshape` is the shape that the model itself sees (H71), None if it is `dims`.
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


class BatchInputKind(Enum):
    """What the server computes for a batch input from its source input (S37)."""

    ELEMENT_COUNT = "BATCH_ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT = "BATCH_ACCUMULATED_ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"
    MAX_ELEMENT_COUNT_AS_SHAPE = "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
    ITEM_SHAPE = "BATCH_ITEM_SHAPE"
    ITEM_SHAPE_FLATTEN = "BATCH_ITEM_SHAPE_FLATTEN"


@dataclass(frozen=True, slots=True)
class BatchInput:
    """Inputs of a model that the server computes from the sizes of the input `source`, as INT32 or FP32 (S37)."""

    kind: BatchInputKind
    targets: tuple[str, ...]
    datatype: DataType
    source: str


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """Outputs that hold the results of all requests of a batch one after the other (S39).

    A variable size of an output takes the size that the request's input `source` has there.
    """

    targets: tuple[str, ...]
    source: str


class InstanceKind(Enum):
    """Where an instance runs, with KIND_AUTO resolved (R53)."""

    CPU = "CPU"
    GPU = "GPU"
    MODEL = "MODEL"


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """How much of a resource an instance needs while it runs (S100). A global resource is shared by all devices."""

    name: str
    count: int
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """`count` instances of one kind; for kind GPU, `count` on each of `gpus` (R53).

    Passive instances are created and get no batches. `host_policy` is empty if the configuration names none. Only the
    rate limiter reads `resources` and `priority`.
    """

    name: str
    kind: InstanceKind
    count: int = 1
    gpus: tuple[int, ...] = ()
    passive: bool = False
    host_policy: str = ""
    resources: tuple[ResourceNeed, ...] = ()
    priority: int = 0

    def host_policy_of(self, device: int) -> str:
        """The host policy of the group's instances on a device (C57)."""
        if self.host_policy:
            return self.host_policy
        return f"gpu_{device}" if self.kind is InstanceKind.GPU else self.kind.value.lower()


class WarmupData(Enum):
    """Where the data of a warm-up input comes from (W3)."""

    ZERO = "zero"
    RANDOM = "random"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """An input of a warm-up sample. `dims` are without the batch dimension.

    `datatype` is UNKNOWN_DATATYPE and `data` None if the configuration does not set them. `file` is a name in the
    model's folder `warmup`.
    """

    name: str
    datatype: DataType
    dims: Shape
    data: WarmupData | None
    file: str = ""


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """`batch_size` requests of one row each, run together `count` times before an instance serves (W1)."""

    name: str
    batch_size: int
    count: int
    inputs: tuple[WarmupInput, ...]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a load and a request need to know of a model's configuration.

    `message` is the whole configuration as a serialized protobuf ModelConfig. `platform` may be empty. `model_filename`
    is the file or directory to open in a version directory. `parameters` has the string values.
    """

    name: str
    backend: str
    platform: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    model_filename: str
    instance_groups: tuple[InstanceGroup, ...]
    message: bytes
    version_policy: VersionPolicy = field(default_factory=VersionPolicy)
    dynamic_batching: DynamicBatching | None = None
    sequence_batching: SequenceBatching | None = None
    ensemble: Ensemble | None = None
    """The steps of an ensemble, which has no backend; None for other models."""
    queue_policy: QueuePolicy = field(default_factory=QueuePolicy)
    """For all requests except those of a priority level with a policy of its own (S27, D4)."""
    decoupled: bool = False
    parameters: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    graph_optimization_level: int | None = None
    """`optimization.graph.level`, None when not set (contract R75)."""

    @property
    def json(self) -> str:
        """The configuration as the protocol prints it (H12, R62, R63). Made on each call: a load does not need it."""
        return json_text(parse_bytes(self.message))

    def instances_beside(self, host_policy: str) -> int:
        """The number of active instances of all groups with this host policy: they share its cores. An empty string
        stands for groups that name none.
        """
        return sum(
            group.count * max(1, len(group.gpus))
            for group in self.instance_groups
            if group.host_policy == host_policy and not group.passive
        )

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """The states that the server keeps for each sequence (S67)."""
        return self.sequence_batching.states if self.sequence_batching is not None else ()

    @property
    def control_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that tell the model about each request's place in its sequence (S58). The server fills them."""
        batching = self.sequence_batching
        controls = batching.controls if batching is not None else ()
        return tuple(TensorSpec(control.name, control.datatype, (1,)) for control in controls)

    @property
    def state_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs from which the model reads its states (S67). The server fills them."""
        return tuple(TensorSpec(state.input_name, state.datatype, state.dims) for state in self.states)

    @property
    def state_outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs to which the model writes its next states, without those that `outputs` lists too (S67)."""
        listed = {spec.name for spec in self.outputs}
        return tuple(
            TensorSpec(state.output_name, state.datatype, state.dims)
            for state in self.states
            if state.output_name not in listed
        )

    @property
    def model_inputs(self) -> tuple[TensorSpec, ...]:
        """All inputs of the model: those of requests, and those that the server fills."""
        return (*self.inputs, *self.control_inputs, *self.state_inputs)

    @property
    def model_outputs(self) -> tuple[TensorSpec, ...]:
        """All outputs of the model: those of responses, and the states that the server keeps."""
        return (*self.outputs, *self.state_outputs)

    response_cache: bool = False
    """Whether responses are cached, if the server has a response cache (K1)."""
    runtime: str = ""
    """The file that runs the model instead of its backend's own: `model.py` of a Python-based backend (R43)."""
    warmup: tuple[WarmupSample, ...] = ()
    metric_tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Labels of the model's metrics, besides its name and version (R55)."""
    metric_buckets: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """The upper bounds of the buckets of histograms, by the family's name, if the model sets its own (R61)."""
    batch_inputs: tuple[BatchInput, ...] = ()
    batch_outputs: tuple[BatchOutput, ...] = ()
    agents: tuple[str, ...] = ()
    """The names of its repository agents (R22)."""
    has_extras: bool = False
    """Whether it asks more of a runtime than is said here: accelerators, operators, other files for some GPUs."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A configuration that a backend may complete: what can decide how the model is opened to be looked at, as
    `ModelConfig` has it, and how many instances it shall have in all."""

    name: str
    message: bytes
    instances: int
    parameters: Mapping[str, str]
    graph_optimization_level: int | None = None
    has_extras: bool = False

    @property
    def json(self) -> str:
        """What a Python model's `auto_complete_config` is given."""
        return json_text(parse_bytes(self.message))


@dataclass(frozen=True, slots=True)
class DescribedTensor:
    """A tensor as a model file declares it: `shape` is full, -1 where symbolic, None where the rank is unknown."""

    name: str
    datatype: DataType
    shape: Shape | None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """What a model file declares, to complete a configuration from (R72).

    `opened` is what the backend had to open for that, so that the load need not open it again.
    """

    inputs: tuple[DescribedTensor, ...]
    outputs: tuple[DescribedTensor, ...]
    opened: object = field(default=None, compare=False, repr=False)
