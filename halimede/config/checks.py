"""The checks that a configuration must pass, in Triton's words and order (R41, R45, R46, R48, R53, S33).

A `*_problems` function yields all that is wrong; its `check_*` counterpart raises for the first. The topics of a
configuration (`batching`, `sequencing`, `states`, `ensembles`) have their own checks, which are called from here.
Pure, any thread.
"""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, pairwise
from math import isnan, prod
from typing import Any

from halimede.config.batching import (
    batcher_problems,
    latency_target_problems,
    missing_batcher_problems,
    queue_parameter_problems,
)
from halimede.config.ensembles import ensemble_problems
from halimede.config.identify import ENSEMBLE, platforms
from halimede.config.message import Message
from halimede.config.sequencing import sequence_problems
from halimede.errors import Internal, Invalid
from halimede.protocol import model_config_pb2 as pb
from halimede.tensors import BY_NUMBER

_TENSORRT = "tensorrt_plan"
_MIN_COMPUTE_CAPABILITY = 6.0
"""The CUDA compute capability that Triton names in its text about GPUs."""
_IMAGE_FORMATS = (pb.ModelInput.FORMAT_NHWC, pb.ModelInput.FORMAT_NCHW)
"""Formats that require three dims: the batch dimension is not among them."""
_SIZE_RULE = "must be integer >= 1, or -1 to indicate a variable-size dimension"
_LABEL = re.compile(r"(?!_)[a-zA-Z0-9_]+")
"""The names of metric tags that become labels: each gets an underscore in front, and Prometheus reserves two."""


def check_config(message: Message) -> None:
    """Checks everything but inputs, outputs, states and instance groups. Raises Invalid."""
    for problem in config_problems(message):
        raise Invalid(problem)


def config_problems(message: Message) -> Iterator[str]:
    """Everything for which `check_config` would raise."""
    yield from _backend_problems(message)
    yield from _filename_problems(message)
    if message.max_batch_size < 0:
        yield f"'max_batch_size' must be non-negative value for {message.name}"
    if message.HasField("dynamic_batching"):
        yield from batcher_problems(message)
    if message.HasField("sequence_batching"):
        yield from sequence_problems(message)
    yield from queue_parameter_problems(message)
    yield from latency_target_problems(message)
    yield from _metric_problems(message)
    yield from ensemble_problems(message)
    if message.HasField("sequence_batching") and message.response_cache.enable:
        yield (
            f"Response Cache does not currently support model {message.name} with sequence batching scheduler. "
            "Please disable the response cache."
        )
    yield from cache_problems(message)


def cache_problems(message: Message) -> Iterator[str]:
    """A model with decoupled responses cannot have a response cache (K6)."""
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
    """The model file must lie in the version's directory.

    A client may send a configuration with a load request. The server opens the file, or runs it if it is code.
    """
    filename = message.default_model_filename
    if filename.startswith("/") or os.path.normpath(filename).split("/", 1)[0] == os.pardir:
        yield f"'default_model_filename' must stay within the version directory for {message.name}, got '{filename}'"


def _metric_problems(message: Message) -> Iterator[str]:
    """Metric tags and the buckets of histograms (R55, R61, M27).

    Triton crashes for a tag that cannot name a label, and for buckets that do not ascend; the texts for these are ours.
    """
    for key in sorted(message.metric_tags):
        if not _LABEL.fullmatch(key):
            yield f"model '{message.name}': the metric tag '{key}' cannot be the name of a label"
    for control in message.model_metrics.metric_control:
        if not control.HasField("metric_identifier"):
            yield "metric control must specify 'metric_identifier'"
        if not control.metric_identifier.family:
            yield "metric identifier must specify non-empty 'family'"
        if not control.HasField("histogram_options"):
            yield "metric control must specify 'histogram_options'"
        bounds = control.histogram_options.buckets
        if not bounds:
            yield "histogram options must specify non-empty 'buckets'"
        # NaN compares false with everything, so it needs a check of its own.
        if any(map(isnan, bounds)) or any(before >= after for before, after in pairwise(bounds)):
            yield f"model '{message.name}': 'buckets' of '{control.metric_identifier.family}' must ascend"


def check_tensors(message: Message) -> None:
    """Checks inputs, then outputs, then batch inputs and batch outputs. Raises Invalid."""
    for problem in tensor_problems(message):
        raise Invalid(problem)


def tensor_problems(message: Message) -> Iterator[str]:
    """Everything for which `check_tensors` would raise."""
    for word, specs in (("input", message.input), ("output", message.output)):
        for spec in specs:
            for problem in _tensor_problems(spec, word, message):
                yield f"{problem} for {message.name}"
    for problem in chain(_batch_io_problems(message), missing_batcher_problems(message)):
        yield f"{problem} for {message.name}"


def _batch_io_problems(message: Message) -> Iterator[str]:
    """Batch inputs and batch outputs must name known tensors, and one source input each (S38, S39)."""
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
    if spec.kind not in kinds.values():  # JSON accepts any number for an enum
        yield f"unknown batch {word} kind '{spec.kind}'"
    elif len(spec.source_input) != 1:
        yield f"batch {word} kind '{kinds.Name(spec.kind)}' expects 1 source input, got {len(spec.source_input)}"


def _source_problems(message: Message, spec: Message) -> Iterator[str]:
    inputs = {each.name for each in message.input}
    yield from (f"unknown source input name '{name}'" for name in spec.source_input if name not in inputs)


def _tensor_problems(spec: Message, word: str, message: Message) -> Iterator[str]:
    yield from _shape_problems(spec, f"model {word} ", message.max_batch_size)
    if word == "input" and spec.format in _IMAGE_FORMATS and len(spec.dims) != 3:
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
    """The element counts between variable dimensions must be equal: [2, 4, -1, 6] may become [8, -1, 1, 6]."""
    if not all(map(_is_size, shape)):
        yield f"reshape dimensions {_SIZE_RULE}"
    counts, new_counts = _counts_between_variables(dims), _counts_between_variables(shape)
    # Triton has this text only if both shapes have variable dimensions; else it has the next one.
    if len(counts) > 1 and len(new_counts) > 1 and len(counts) != len(new_counts):
        yield "has different number of variable-size dimensions for dims and reshape"
    if counts != new_counts:
        yield "has different size for dims and reshape"


def _counts_between_variables(dims: Sequence[int]) -> list[int]:
    """The element counts before, between and after the variable dimensions."""
    ends = [i for i, dim in enumerate(dims) if dim == -1]
    starts = [0, *(end + 1 for end in ends)]
    return [prod(dims[start:end]) for start, end in zip(starts, [*ends, len(dims)], strict=True)]


def check_instance_groups(message: Message, gpus: Sequence[int], automatic: Collection[int] = ()) -> None:
    """Checks the groups with their defaults filled in. `gpus` are the devices of this machine, `automatic` the places
    of the groups whose kind was KIND_AUTO.

    Raises Invalid, and Internal for an unknown kind (R53).
    """
    for place, group in enumerate(message.instance_group):
        where = f"instance group {group.name} of model {message.name}"
        if group.kind == pb.ModelInstanceGroup.KIND_GPU:
            _check_gpus(group, where, gpus)
        elif group.kind not in _KIND_NAMES:
            raise Internal(f"{where} has unexpected kind KIND_AUTO")
        elif group.gpus:
            text = f"{where} has kind {_KIND_NAMES[group.kind]} but specifies one or more GPUs"
            raise _no_gpu(text) if place in automatic else Invalid(text)
        if group.profile and message.platform != _TENSORRT:
            # The missing space before "specifies" is Triton's.
            raise Invalid(
                f"{where} and platform {message.platform}specifies profile field which is only supported for "
                "TensorRT models"
            )


_KIND_NAMES = {pb.ModelInstanceGroup.KIND_CPU: "KIND_CPU", pb.ModelInstanceGroup.KIND_MODEL: "KIND_MODEL"}


def _check_gpus(group: Message, where: str, gpus: Sequence[int]) -> None:
    if not group.gpus:
        raise _no_gpu(f"{where} has kind KIND_GPU but no GPUs are available")
    for gpu in group.gpus:
        if gpu not in gpus:
            raise _no_gpu(
                f"{where} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required CUDA "
                f"compute compatibility of {_MIN_COMPUTE_CAPABILITY:f} are: {', '.join(map(str, gpus))}"
            )


def _no_gpu(text: str) -> Invalid:
    error = Invalid(text)
    error.advice = "the flag --gpu-fallback=cpu runs it on the CPU"
    return error
