"""Compiles the protobuf message to the frozen values of `model_config`, which all other rooms read.

The topics of a configuration (`batching`, `sequencing`, `ensembles`, `versions`) compile their own parts. Pure, any
thread.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from halimede.config.batching import default_queue_policy_of, dynamic_batching_of
from halimede.config.checks import cache_problems
from halimede.config.ensembles import ensemble_of
from halimede.config.message import Message, parse_bytes
from halimede.config.model_config import (
    BatchInput,
    BatchInputKind,
    BatchOutput,
    Incomplete,
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    ResourceNeed,
    TensorSpec,
    WarmupData,
    WarmupInput,
    WarmupSample,
)
from halimede.config.sequencing import sequence_batching_of
from halimede.config.versions import version_policy_of
from halimede.errors import Invalid
from halimede.protocol import model_config_pb2 as pb
from halimede.tensors import BY_NUMBER, UNKNOWN_DATATYPE

_KINDS = {
    pb.ModelInstanceGroup.KIND_CPU: InstanceKind.CPU,
    pb.ModelInstanceGroup.KIND_GPU: InstanceKind.GPU,
    pb.ModelInstanceGroup.KIND_MODEL: InstanceKind.MODEL,
}


def compile_config(message: Message) -> ModelConfig:
    """The value of a message that passed its checks."""
    return ModelConfig(
        name=message.name,
        backend=message.backend,
        platform=message.platform,
        max_batch_size=message.max_batch_size,
        inputs=tuple(map(_tensor, message.input)),
        outputs=tuple(map(_tensor, message.output)),
        model_filename=message.default_model_filename,
        instance_groups=tuple(map(_group, message.instance_group)),
        message=message.SerializeToString(deterministic=True),
        version_policy=version_policy_of(message),
        dynamic_batching=dynamic_batching_of(message),
        sequence_batching=sequence_batching_of(message),
        ensemble=ensemble_of(message),
        queue_policy=default_queue_policy_of(message),
        decoupled=message.model_transaction_policy.decoupled,
        parameters=_parameters(message),
        response_cache=message.response_cache.enable,
        runtime=message.runtime,
        metric_tags=_metric_tags(message),
        metric_buckets=_metric_buckets(message),
        warmup=tuple(_sample(sample) for sample in message.model_warmup if sample.batch_size),  # size 0 skips it (W1)
        batch_inputs=tuple(map(_batch_input, message.batch_input)),
        batch_outputs=tuple(map(_batch_output, message.batch_output)),
        agents=tuple(agent.name for agent in message.model_repository_agents.agents),
    )


def incomplete_of(message: Message) -> Incomplete:
    """What a backend needs to complete a message, which must have its instance groups."""
    return Incomplete(
        name=message.name,
        message=message.SerializeToString(deterministic=True),
        instances=sum(group.count * max(1, len(group.gpus)) for group in message.instance_group),
        parameters=_parameters(message),
    )


def _parameters(message: Message) -> Mapping[str, str]:
    given = message.parameters
    return MappingProxyType({key: given[key].string_value for key in sorted(given)})


def with_decoupling(config: ModelConfig, decoupled: bool) -> ModelConfig:
    """The configuration of an ensemble that is decoupled, or not, by its members (S89). Raises Invalid if it has a
    response cache that decoupling forbids.
    """
    message = parse_bytes(config.message)
    message.model_transaction_policy.decoupled = decoupled
    for problem in cache_problems(message):
        raise Invalid(problem)
    return compile_config(message)


def _tensor(spec: Any) -> TensorSpec:
    is_input = spec.DESCRIPTOR.name == "ModelInput"
    return TensorSpec(
        name=spec.name,
        datatype=BY_NUMBER[spec.data_type],
        dims=tuple(spec.dims),
        reshape=tuple(spec.reshape.shape) if spec.HasField("reshape") else None,
        optional=is_input and spec.optional,
        allow_ragged_batch=is_input and spec.allow_ragged_batch,
        label_filename="" if is_input else spec.label_filename,
    )


def _batch_input(spec: Any) -> BatchInput:
    kind = BatchInputKind(pb.BatchInput.Kind.Name(spec.kind))
    return BatchInput(kind, tuple(spec.target_name), BY_NUMBER[spec.data_type], spec.source_input[0])


def _batch_output(spec: Any) -> BatchOutput:
    return BatchOutput(tuple(spec.target_name), spec.source_input[0])


def _group(group: Any) -> InstanceGroup:
    limiter = group.rate_limiter
    # The last entry of a resource counts. `global` is a Python keyword.
    needs = {(each.name, getattr(each, "global")): each.count for each in limiter.resources}
    return InstanceGroup(
        name=group.name,
        kind=_KINDS[group.kind],
        count=group.count,
        gpus=tuple(group.gpus),
        passive=group.passive,
        host_policy=group.host_policy,
        resources=tuple(ResourceNeed(name, count, is_global) for (name, is_global), count in needs.items()),
        priority=limiter.priority,
    )


def _metric_tags(message: Message) -> Mapping[str, str]:
    """Label to value (R55)."""
    return MappingProxyType({f"_{key}": message.metric_tags[key] for key in sorted(message.metric_tags)})


def _metric_buckets(message: Message) -> Mapping[str, tuple[float, ...]]:
    """The upper bounds of the buckets of a histogram, by the name of its family; the last entry of a family counts
    (R61).
    """
    return MappingProxyType(
        {
            control.metric_identifier.family: tuple(control.histogram_options.buckets)
            for control in message.model_metrics.metric_control
        }
    )


_WARMUP_DATA = {"zero_data": WarmupData.ZERO, "random_data": WarmupData.RANDOM, "input_data_file": WarmupData.FILE}


def _sample(sample: Any) -> WarmupSample:
    """A warm-up sample. A count of 0 means 1 (W1)."""
    inputs = tuple(_warmup_input(name, sample.inputs[name]) for name in sorted(sample.inputs))
    return WarmupSample(sample.name, sample.batch_size, max(sample.count, 1), inputs)


def _warmup_input(name: str, data: Any) -> WarmupInput:
    kind = _WARMUP_DATA.get(data.WhichOneof("input_data_type") or "")
    datatype = BY_NUMBER.get(data.data_type, UNKNOWN_DATATYPE)
    return WarmupInput(name, datatype, tuple(data.dims), kind, data.input_data_file)
