"""A model configuration as everybody outside this room reads it: frozen values, complete and checked, made once a load.

The protobuf message stays inside `halimede.config`; what others need of it travels as bytes (`message`) and as text
(`json`), which is made of those for whoever asks. Pure values, any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from halimede.config.ensembles import Ensemble
from halimede.config.message import parse_bytes
from halimede.config.rendering import json_text, value_at
from halimede.config.sequencing import SequenceBatching
from halimede.config.states import StateSpec
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


class BatchInputKind(Enum):
    """What a batch input tells of its source input (contract S37), n being the number of requests in the batch."""

    ELEMENT_COUNT = "BATCH_ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT = "BATCH_ACCUMULATED_ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"
    MAX_ELEMENT_COUNT_AS_SHAPE = "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
    ITEM_SHAPE = "BATCH_ITEM_SHAPE"
    ITEM_SHAPE_FLATTEN = "BATCH_ITEM_SHAPE_FLATTEN"


@dataclass(frozen=True, slots=True)
class BatchInput:
    """A model's inputs `targets` that the server makes of the sizes of the input `source`, INT32 or FP32."""

    kind: BatchInputKind
    targets: tuple[str, ...]
    datatype: DataType
    source: str


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """Outputs that lie one behind the other for all requests of a batch; each request's part has the shape of its input
    `source` where the configuration leaves a size open (contract S39)."""

    targets: tuple[str, ...]
    source: str


class InstanceKind(Enum):
    """Where an instance runs, after KIND_AUTO was decided (contract R53)."""

    CPU = "CPU"
    GPU = "GPU"
    MODEL = "MODEL"


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """What an instance needs of a resource while it runs (contract S100): of its own device, or of the server's."""

    name: str
    count: int
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """`count` instances of one kind, on each of `gpus` where the kind is GPU (contract R53).

    `passive` ones are created and given no batch. `host_policy` is the name given, or empty. `resources` and `priority`
    matter to the rate limiter only.
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
        """The policy of its instances on a device (contract C57)."""
        if self.host_policy:
            return self.host_policy
        return f"gpu_{device}" if self.kind is InstanceKind.GPU else self.kind.value.lower()


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How requests may wait (contract S27 to S31): at most `max_size` of them and for `timeout_us`, 0 for no limit.

    `allow_override`: a request may ask for less time. `delays`: one that waited too long is served after all others
    instead of being rejected.
    """

    max_size: int = 0
    timeout_us: int = 0
    allow_override: bool = False
    delays: bool = False


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """The dynamic batcher's settings (contract S20). `preferred_batch_sizes` sorted, never empty unless the model's
    max_batch_size is 0.

    `priority_levels` are numbered from 1, the most urgent; 0 for none (contract S26). `level_policies` are those of
    the levels that have one of their own. `latency_target_us`, where it is not 0, is what an adaptive delay shall keep.
    """

    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    level_policies: Mapping[int, QueuePolicy] = field(default_factory=lambda: MappingProxyType({}))
    latency_target_us: int = 0


class WarmupData(Enum):
    """What the input of a warm-up sample is made of (contract W3)."""

    ZERO = "zero"
    RANDOM = "random"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """An input of a warm-up sample: `dims` without the batch dimension, `datatype` UNKNOWN_DATATYPE and `data` None
    where the configuration does not say; `file` lies in the model's folder `warmup`."""

    name: str
    datatype: DataType
    dims: Shape
    data: WarmupData | None
    file: str = ""


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """`batch_size` requests of one row each, run together `count` times before an instance serves (contract W1)."""

    name: str
    batch_size: int
    count: int
    inputs: tuple[WarmupInput, ...]


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

    `message` is all of it as a serialized protobuf ModelConfig. `platform` may be empty; `model_filename` is the file
    or directory to open in a version directory. `parameters` are the string values.
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
    version_policy: VersionPolicy = VersionPolicy()
    dynamic_batching: DynamicBatching | None = None
    sequence_batching: SequenceBatching | None = None
    ensemble: Ensemble | None = None
    """The steps of a model that is made of others and has no backend."""
    queue_policy: QueuePolicy = QueuePolicy()
    """Of all requests but those of a priority level with a policy of its own (contract S27, D4)."""
    decoupled: bool = False
    parameters: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def json(self) -> str:
        """The configuration as the protocol prints it (contract H12, R62, R63). Made anew for each who asks: a load
        does without."""
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
        """How many instances of groups that name this policy (empty: none) are given batches: they share its cores."""
        return sum(
            group.count * max(1, len(group.gpus))
            for group in self.instance_groups
            if group.host_policy == host_policy and not group.passive
        )

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """What the server keeps of each sequence for the model (contract S67)."""
        return self.sequence_batching.states if self.sequence_batching is not None else ()

    @property
    def control_inputs(self) -> tuple[TensorSpec, ...]:
        """What the server tells the model of each request of a sequence, as the inputs that they are (contract S58)."""
        batching = self.sequence_batching
        controls = batching.controls if batching is not None else ()
        return tuple(TensorSpec(control.name, control.datatype, (1,)) for control in controls)

    @property
    def state_inputs(self) -> tuple[TensorSpec, ...]:
        """The states as the inputs that the model reads them from; no client gives them."""
        return tuple(TensorSpec(state.input_name, state.datatype, state.dims) for state in self.states)

    @property
    def state_outputs(self) -> tuple[TensorSpec, ...]:
        """The states as the outputs that the model writes the next ones to, those that are no outputs of `outputs`."""
        listed = {spec.name for spec in self.outputs}
        return tuple(
            TensorSpec(state.output_name, state.datatype, state.dims)
            for state in self.states
            if state.output_name not in listed
        )

    @property
    def model_inputs(self) -> tuple[TensorSpec, ...]:
        """What the model is given: with what the server adds to the requests of a sequence."""
        return (*self.inputs, *self.control_inputs, *self.state_inputs)

    @property
    def model_outputs(self) -> tuple[TensorSpec, ...]:
        """What the model answers with: with what the server keeps."""
        return (*self.outputs, *self.state_outputs)

    response_cache: bool = False
    """Whether responses may be kept and sent again, where the server has a cache (contract K1)."""
    runtime: str = ""
    """What runs it where that is not its backend's own: `model.py` of a Python-based one (contract R43)."""
    warmup: tuple[WarmupSample, ...] = ()
    metric_tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Labels of its metrics besides its name and version (contract R55)."""
    metric_buckets: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """The bounds of a histogram that the model has other buckets of, by the family's name (contract R61)."""
    batch_inputs: tuple[BatchInput, ...] = ()
    batch_outputs: tuple[BatchOutput, ...] = ()
    agents: tuple[str, ...] = ()
    """The repository agents that it names."""


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
    """A tensor as a model file declares it: `shape` is full, -1 where symbolic, None where the rank is unknown.
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
    chosen: str = "model '{model}': max_batch_size was not given and is {limit} now"
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
    """What a model file says of itself, to complete a configuration from (contract R72). `opened` is what its backend
    had to open for that, and need not open again."""

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
