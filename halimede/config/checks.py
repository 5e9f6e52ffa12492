"""The checks that a configuration must pass, in Triton's words (contract R41, R45, R46, R48, R53, S33).

Each raises for the first thing that is wrong. Pure, any thread.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod
from typing import Any

from halimede.config.ensembles import ensemble_problems
from halimede.config.identify import ENSEMBLE, platforms
from halimede.config.measuring import metric_problems
from halimede.config.message import Message
from halimede.config.pacing import missing_batcher, pacing_problems
from halimede.config.queueing import parameter_problems
from halimede.config.sequencing import sequence_problems
from halimede.errors import Internal, Invalid
from halimede.protocol import model_config_pb2 as pb
from halimede.tensors import BY_NUMBER

_TENSORRT = "tensorrt_plan"
_MIN_COMPUTE_CAPABILITY = 6.0
_THREE_DIMS = (pb.ModelInput.FORMAT_NHWC, pb.ModelInput.FORMAT_NCHW)
_SIZE_RULE = "must be integer >= 1, or -1 to indicate a variable-size dimension"


def check_config(message: Message) -> None:
    """Everything but inputs, outputs and instance groups. Raises Invalid."""
    for problem in config_problems(message):
        raise Invalid(problem)


def config_problems(message: Message) -> Iterator[str]:
    """All that `check_config` could say."""
    yield from _backend_problems(message)
    yield from _filename_problems(message)
    if message.max_batch_size < 0:
        yield f"'max_batch_size' must be non-negative value for {message.name}"
    if message.HasField("dynamic_batching"):
        yield from _batcher_problems(message)
    if message.HasField("sequence_batching"):
        yield from sequence_problems(message)
    yield from parameter_problems(message)
    yield from pacing_problems(message)
    yield from metric_problems(message)
    yield from ensemble_problems(message)
    if message.HasField("sequence_batching") and message.response_cache.enable:
        yield (
            f"Response Cache does not currently support model {message.name} with sequence batching scheduler. "
            "Please disable the response cache."
        )
    yield from cache_problems(message)


def cache_problems(message: Message) -> Iterator[str]:
    """Contract K6."""
    if message.model_transaction_policy.decoupled and message.response_cache.enable:
        yield (
            f"Response Cache does not currently support model {message.name} with 'decoupled' transaction policy. "
            "Please disable the response cache."
        )


def _backend_problems(message: Message) -> Iterator[str]:
    name, platform, backend = message.name, message.platform, message.backend
    if not backend and platform != ENSEMBLE:
        yield f"unexpected platform type '{platform}' for {name}"
    if backend and platform == ENSEMBLE:
        yield f"Ensemble model '{name}' must have platform type '{ENSEMBLE}' and empty backend type"
    if backend in platforms().values() and platforms().get(platform) != backend:
        yield f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}"


def _filename_problems(message: Message) -> Iterator[str]:
    """What is opened, and run where it is code, lies in the version's directory: a configuration may come from afar."""
    filename = message.default_model_filename
    if filename.startswith("/") or os.path.normpath(filename).split("/", 1)[0] == os.pardir:
        yield f"'default_model_filename' must stay within the version directory for {message.name}, got '{filename}'"


def _batcher_problems(message: Message) -> Iterator[str]:
    name, batcher = message.name, message.dynamic_batching
    for size in batcher.preferred_batch_size:
        if size <= 0:
            yield f"dynamic batching preferred size must be positive for {name}"
        if size > message.max_batch_size:
            yield f"dynamic batching preferred size must be <= max batch size for {name}"
    levels = batcher.priority_levels
    if levels:
        if not 1 <= batcher.default_priority_level <= levels:
            yield f"default priority level must be in range [1, {levels}] for {name}"
        if not all(1 <= level <= levels for level in batcher.priority_queue_policy):
            yield f"priority queue policy must have priority level in range [1, {levels}] for {name}"
    if batcher.preserve_ordering:
        if levels > 1:
            yield f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        policies = (batcher.default_queue_policy, *batcher.priority_queue_policy.values())
        if any(p.default_timeout_microseconds and p.timeout_action == pb.ModelQueuePolicy.DELAY for p in policies):
            yield f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"


def check_tensors(message: Message) -> None:
    """The inputs, then the outputs, then what is made of a whole batch. Raises Invalid."""
    for problem in tensor_problems(message):
        raise Invalid(problem)


def tensor_problems(message: Message) -> Iterator[str]:
    """All that `check_tensors` could say."""
    for word, specs in (("input", message.input), ("output", message.output)):
        for spec in specs:
            for problem in _tensor_problems(spec, word, message):
                yield f"{problem} for {message.name}"
    for problem in chain(_batch_io_problems(message), missing_batcher(message)):
        yield f"{problem} for {message.name}"


def _batch_io_problems(message: Message) -> Iterator[str]:
    """Contract S38, S39."""
    for spec in message.batch_input:
        yield from _kind_problems("input", pb.BatchInput.Kind, spec)
        if spec.data_type not in (pb.TYPE_INT32, pb.TYPE_FP32):
            yield "batch input data type must be TYPE_INT32 or TYPE_FP32"
        yield from _source_problems(message, spec)
    outputs = {spec.name for spec in message.output}
    for spec in message.batch_output:
        yield from _kind_problems("output", pb.BatchOutput.Kind, spec)
        yield from _source_problems(message, spec)
        for i, target in enumerate(spec.target_name):
            if target not in outputs:
                yield f"unknown target output name '{target}'"
            if target in spec.target_name[:i]:
                yield f"target output name '{target}' can only be specified once"


def _kind_problems(word: str, kinds: Any, spec: Message) -> Iterator[str]:
    if spec.kind not in kinds.values():  # JSON may say a number
        yield f"unknown batch {word} kind '{spec.kind}'"
    elif len(spec.source_input) != 1:
        yield f"batch {word} kind '{kinds.Name(spec.kind)}' expects 1 source input, got {len(spec.source_input)}"


def _source_problems(message: Message, spec: Message) -> Iterator[str]:
    inputs = {each.name for each in message.input}
    yield from (f"unknown source input name '{name}'" for name in spec.source_input if name not in inputs)


def _tensor_problems(spec: Message, word: str, message: Message) -> Iterator[str]:
    yield from _shape_problems(spec, f"model {word} ", message.max_batch_size)
    if word == "input" and spec.format in _THREE_DIMS and len(spec.dims) != 3:
        yield "model input NHWC/NCHW require 3 dims"
    if message.platform != _TENSORRT and spec.is_shape_tensor:
        yield "shape tensors are only supported for TensorRT platform"
    if message.platform != _TENSORRT and spec.is_non_linear_format_io:
        yield "Non-linear IO format is only supported for the TensorRT platform"


def _shape_problems(spec: Message, prefix: str, max_batch_size: int) -> Iterator[str]:
    if not spec.name:
        yield f"{prefix}must specify 'name'"
    named = f"{prefix}'{spec.name}' "
    if spec.data_type not in BY_NUMBER:
        yield f"{named}must specify 'data_type'"
    if not spec.dims:
        yield f"{named}must specify 'dims'"
    is_reshaped = spec.HasField("reshape")
    if is_reshaped and not spec.reshape.shape and max_batch_size == 0:
        yield f"{named}cannot have empty reshape for non-batching model as scalar tensors are not supported"
    if not all(map(_is_size, spec.dims)):
        yield f"{named}dimension {_SIZE_RULE}"
    if is_reshaped:
        yield from (named + problem for problem in _reshape_problems(spec.dims, spec.reshape.shape))


def _is_size(dim: int) -> bool:
    return dim >= 1 or dim == -1


def _reshape_problems(dims: Sequence[int], shape: Sequence[int]) -> Iterator[str]:
    """Between variable dimensions, both must have as many elements: [2, 4, -1, 6] may become [8, -1, 1, 6]."""
    if not all(map(_is_size, shape)):
        yield f"reshape dimensions {_SIZE_RULE}"
    runs, new_runs = _runs(dims), _runs(shape)
    if len(runs) > 1 and len(new_runs) > 1 and len(runs) != len(new_runs):
        yield "has different number of variable-size dimensions for dims and reshape"
    if runs != new_runs:
        yield "has different size for dims and reshape"


def _runs(dims: Sequence[int]) -> list[int]:
    """The element counts before, between and behind the variable dimensions."""
    ends = [i for i, dim in enumerate(dims) if dim == -1]
    starts = [0, *(end + 1 for end in ends)]
    return [prod(dims[start:end]) for start, end in zip(starts, [*ends, len(dims)], strict=True)]


def check_instance_groups(message: Message, gpus: Sequence[int]) -> None:
    """The groups after their defaults were filled in. Raises Invalid, Internal for a kind that nobody knows."""
    for group in message.instance_group:
        where = f"instance group {group.name} of model {message.name}"
        if group.kind == pb.ModelInstanceGroup.KIND_GPU:
            _check_gpus(group, where, gpus)
        elif group.kind not in _KIND_NAMES:
            raise Internal(f"{where} has unexpected kind KIND_AUTO")
        elif group.gpus:
            raise Invalid(f"{where} has kind {_KIND_NAMES[group.kind]} but specifies one or more GPUs")
        if group.profile and message.platform != _TENSORRT:
            raise Invalid(
                f"{where} and platform {message.platform}specifies profile field which is only supported for "
                "TensorRT models"
            )


_KIND_NAMES = {pb.ModelInstanceGroup.KIND_CPU: "KIND_CPU", pb.ModelInstanceGroup.KIND_MODEL: "KIND_MODEL"}


def _check_gpus(group: Message, where: str, gpus: Sequence[int]) -> None:
    if not group.gpus:
        raise Invalid(f"{where} has kind KIND_GPU but no GPUs are available")
    for gpu in group.gpus:
        if gpu not in gpus:
            raise Invalid(
                f"{where} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required CUDA "
                f"compute compatibility of {_MIN_COMPUTE_CAPABILITY:f} are: {', '.join(map(str, gpus))}"
            )
