"""From the protobuf message to the frozen values that everybody else reads. Pure, any thread."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from halimede.config.checks import cache_problems
from halimede.config.ensembles import ensemble_of
from halimede.config.measuring import buckets_of, tags_of
from halimede.config.message import Message, parse_bytes
from halimede.config.model_config import (
    BatchInput,
    BatchInputKind,
    BatchOutput,
    DynamicBatching,
    Incomplete,
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    ResourceNeed,
    TensorSpec,
    VersionChoice,
    VersionPolicy,
    WarmupData,
    WarmupInput,
    WarmupSample,
)
from halimede.config.pacing import latency_target
from halimede.config.queueing import default_policy, policy_of
from halimede.config.sequencing import sequence_batching_of
from halimede.errors import Invalid
from halimede.protocol import model_config_pb2 as pb
from halimede.tensors import BY_NUMBER, UNKNOWN_DATATYPE

_KINDS = {
    pb.ModelInstanceGroup.KIND_CPU: InstanceKind.CPU,
    pb.ModelInstanceGroup.KIND_GPU: InstanceKind.GPU,
    pb.ModelInstanceGroup.KIND_MODEL: InstanceKind.MODEL,
}


def compile_config(message: Message) -> ModelConfig:
    """A message that passed its checks as a value."""
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
        dynamic_batching=_batching(message),
        sequence_batching=sequence_batching_of(message),
        ensemble=ensemble_of(message),
        queue_policy=default_policy(message),
        decoupled=message.model_transaction_policy.decoupled,
        parameters=_parameters(message),
        response_cache=message.response_cache.enable,
        runtime=message.runtime,
        metric_tags=tags_of(message),
        metric_buckets=buckets_of(message),
        warmup=tuple(_sample(sample) for sample in message.model_warmup if sample.batch_size),
        batch_inputs=tuple(map(_batch_input, message.batch_input)),
        batch_outputs=tuple(map(_batch_output, message.batch_output)),
        agents=tuple(agent.name for agent in message.model_repository_agents.agents),
    )


def incomplete_of(message: Message) -> Incomplete:
    """Of a message with its instance groups, what a backend needs to complete it."""
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
    """The same, with what an ensemble is by its members (contract S89). Raises Invalid where that cannot be."""
    message = parse_bytes(config.message)
    message.model_transaction_policy.decoupled = decoupled
    for problem in cache_problems(message):
        raise Invalid(problem)
    return compile_config(message)


def version_policy_of(message: Message) -> VersionPolicy:
    """The version policy. One that is there and names no choice means all, as in the real server."""
    policy = message.version_policy
    match policy.WhichOneof("policy_choice"):
        case "latest":
            return VersionPolicy(VersionChoice.LATEST, latest=policy.latest.num_versions)
        case "specific":
            return VersionPolicy(VersionChoice.SPECIFIC, specific=tuple(policy.specific.versions))
        case _:
            return VersionPolicy(VersionChoice.ALL)


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
    needs = {(each.name, getattr(each, "global")): each.count for each in limiter.resources}  # the last word counts
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


def _batching(message: Message) -> DynamicBatching | None:
    if not message.HasField("dynamic_batching"):
        return None
    batcher = message.dynamic_batching
    levels = batcher.priority_levels
    return DynamicBatching(
        preferred_batch_sizes=tuple(sorted(set(batcher.preferred_batch_size))),
        max_queue_delay_us=batcher.max_queue_delay_microseconds,
        preserve_ordering=batcher.preserve_ordering,
        priority_levels=levels,
        default_priority_level=batcher.default_priority_level if levels else 0,
        level_policies=MappingProxyType(
            {level: policy_of(policy) for level, policy in batcher.priority_queue_policy.items() if levels}
        ),
        latency_target_us=latency_target(message),
    )


_WARMUP_DATA = {"zero_data": WarmupData.ZERO, "random_data": WarmupData.RANDOM, "input_data_file": WarmupData.FILE}


def _sample(sample: Any) -> WarmupSample:
    """A sample that runs: one of batch size 0 is skipped (contract W1)."""
    inputs = tuple(_warmup_input(name, sample.inputs[name]) for name in sorted(sample.inputs))
    return WarmupSample(sample.name, sample.batch_size, max(sample.count, 1), inputs)


def _warmup_input(name: str, data: Any) -> WarmupInput:
    kind = _WARMUP_DATA.get(data.WhichOneof("input_data_type") or "")
    datatype = BY_NUMBER.get(data.data_type, UNKNOWN_DATATYPE)
    return WarmupInput(name, datatype, tuple(data.dims), kind, data.input_data_file)
