"""A model configuration as all other rooms read it: frozen values, complete and checked, built once per load.

The protobuf message stays inside `halimede.config`. Other rooms get it as bytes (`message`) and as JSON (`json`), which
is made of these bytes on each call. Pure values, any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from halimede.config.batching import DynamicBatching, QueuePolicy
from halimede.config.ensembles import Ensemble
from halimede.config.message import parse_bytes
from halimede.config.rendering import json_text, value_at
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
        """The dims that the model sees: `reshape` if it is set, else `dims`."""
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

    @property
    def json(self) -> str:
        """The configuration as the protocol prints it (H12, R62, R63). Made on each call: a load does not need it."""
        return json_text(parse_bytes(self.message))

    def value(self, path: str) -> Any:
        """What the configuration says at a path such as "optimization.graph.level" (`rendering.value_at`): for fields
        that only one backend reads."""
        return value_at(parse_bytes(self.message), path)

    def values(self, *paths: str) -> list[Any]:
        """What it says at several paths."""
        message = parse_bytes(self.message)
        return [value_at(message, path) for path in paths]

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


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A configuration that a backend may complete: all of it, and how many instances the model will have."""

    name: str
    message: bytes
    instances: int
    parameters: Mapping[str, str]

    @property
    def json(self) -> str:
        """All of it, as the protocol prints it."""
        return json_text(parse_bytes(self.message))

    def value(self, path: str) -> Any:
        """What it says at a path such as "optimization.graph.level" (`rendering.value_at`)."""
        return value_at(parse_bytes(self.message), path)

    def values(self, *paths: str) -> list[Any]:
        """What it says at several paths."""
        message = parse_bytes(self.message)
        return [value_at(message, path) for path in paths]


class BatchDimension(Enum):
    """What the tensors of a model file say of batches."""

    SYMBOLIC = "symbolic"
    """Their first dimension takes any number of rows."""
    FIXED = "fixed"
    """Their first dimension is a batch of one size."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class DescribedTensor:
    """A tensor as a model file declares it: `shape` is full, -1 for a symbolic size, None for an unknown rank.
    `layout` has a letter for each dimension, with N for the batch, or is empty."""

    name: str
    datatype: DataType
    shape: Shape | None
    optional: bool = False
    layout: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """Shapes for which a model was optimized: the smallest, the best and the largest of each input, by its name."""

    shapes: Mapping[str, tuple[Shape, Shape, Shape]]


@dataclass(frozen=True, slots=True)
class CompletionRules:
    """How a description completes a configuration. Each of Triton's backends does it in its own way, so each backend
    here brings its own rules and texts.

    The texts are formats for {model}, {given} (the configured batch size) and {limit} (the model's, or the default).
    """

    not_batching: str = "model '{model}': it cannot run batches, and max_batch_size is {given}"
    """For a configuration that asks for batches that the model cannot run."""
    not_batching_fails: bool = True
    """Whether that is an error, and not a warning."""
    too_large: str = "model '{model}': max_batch_size is {given}, and it can run batches of {limit} at most"
    chosen: str = "model '{model}': max_batch_size is 0 or absent, and is {limit} now"
    """A warning about the batch size that was filled in."""
    fills_listed: bool = False
    """Whether datatypes and dims are filled in for tensors that the configuration lists without them."""
    adds_unlisted: bool = False
    """Whether tensors are added to a list that the configuration has."""
    any_dynamic_makes_all: bool = False
    """Whether all dims of a tensor become -1 if one of them is."""
    ragged: bool = False
    """Whether inputs that are filled in can be ragged."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a model file declares, to complete a configuration from (R72).

    `opened` is what the backend had to open for that, so that the load need not open it again.
    """

    inputs: tuple[DescribedTensor, ...]
    outputs: tuple[DescribedTensor, ...]
    opened: object = field(default=None, compare=False, repr=False)
    batch: BatchDimension | None = None
    """None if the layouts tell, or, without layouts, the first dimensions."""
    max_batch_size: int | None = None
    """The largest batch that the model can run, None if it does not say."""
    profiles: tuple[Profile, ...] = ()
    states: tuple[str, ...] = ()
    """What the runtime keeps from one run of an instance to the next."""
    warnings: tuple[str, ...] = ()
    """For the log."""
    source: str = "the model's file"
    """What was read, for the log."""
    rules: CompletionRules = CompletionRules()

    @property
    def batch_dimension(self) -> BatchDimension:
        """Whether the model can run batches: what the backend says, what the layouts say, or the first dimensions."""
        tensors = (*self.inputs, *self.outputs)
        if self.batch is not None:
            return self.batch
        if any(each.layout for each in tensors):
            batches = [each.shape[each.layout.index("N")] for each in tensors if each.shape and "N" in each.layout]
            if len(batches) < len(tensors):
                return BatchDimension.NONE
            return BatchDimension.SYMBOLIC if set(batches) == {-1} else BatchDimension.FIXED
        is_symbolic = all(each.shape and each.shape[0] == -1 for each in tensors)
        return BatchDimension.SYMBOLIC if is_symbolic else BatchDimension.NONE

    @property
    def batch_limit(self) -> int | None:
        """The largest batch: the model's own word, or what its profiles allow: of each the smallest, of all the largest
        (BR4)."""
        if self.max_batch_size is not None or not self.profiles:
            return self.max_batch_size
        return max(min(largest[0] for _, _, largest in each.shapes.values() if largest) for each in self.profiles)
