"""From the protobuf message to the frozen values that everybody else reads. Pure, any thread."""

from types import MappingProxyType
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from halimede.config.message import Message
from halimede.config.model_config import (
    DynamicBatching,
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    TensorSpec,
    VersionChoice,
    VersionPolicy,
)
from halimede.config.rendering import json_text
from halimede.tensors import BY_NUMBER

_KINDS = {
    ModelInstanceGroup.KIND_CPU: InstanceKind.CPU,
    ModelInstanceGroup.KIND_GPU: InstanceKind.GPU,
    ModelInstanceGroup.KIND_MODEL: InstanceKind.MODEL,
}


def compile_config(message: Message) -> ModelConfig:
    """A message that passed its checks as a value."""
    graph = message.optimization.graph
    return ModelConfig(
        name=message.name,
        backend=message.backend,
        platform=message.platform,
        max_batch_size=message.max_batch_size,
        inputs=tuple(map(_tensor, message.input)),
        outputs=tuple(map(_tensor, message.output)),
        model_filename=message.default_model_filename,
        instance_groups=tuple(map(_group, message.instance_group)),
        json=json_text(message),
        message=message.SerializeToString(deterministic=True),
        version_policy=version_policy_of(message),
        dynamic_batching=_batching(message),
        decoupled=message.model_transaction_policy.decoupled,
        parameters=MappingProxyType({key: message.parameters[key].string_value for key in sorted(message.parameters)}),
        graph_optimization_level=graph.level if message.optimization.HasField("graph") else None,
    )


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


def _group(group: Any) -> InstanceGroup:
    return InstanceGroup(group.name, _KINDS[group.kind], group.count, tuple(group.gpus))


def _batching(message: Message) -> DynamicBatching | None:
    if not message.HasField("dynamic_batching"):
        return None
    batcher = message.dynamic_batching
    return DynamicBatching(tuple(sorted(set(batcher.preferred_batch_size))), batcher.max_queue_delay_microseconds)
