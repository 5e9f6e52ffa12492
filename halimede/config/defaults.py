"""What a configuration leaves out and the server fills in (contract R53, R71, S20). Changes messages in place; pure
otherwise, any thread.
"""

from collections.abc import Sequence

from halimede.config.message import Message
from halimede.config.sequencing import fill_sequence_defaults
from halimede.protocol import model_config_pb2 as pb


def fill_defaults(message: Message) -> None:
    """The latest version, pinned memory, a preferred batch size where a dynamic batcher has none, and the
    idle time of sequences.

    Done again after a completion: what was filled stays, as in the real server.
    """
    if not message.HasField("version_policy"):
        message.version_policy.latest.num_versions = 1
    batcher = message.dynamic_batching if message.HasField("dynamic_batching") else None
    if batcher and not batcher.preferred_batch_size and message.max_batch_size > 0:
        batcher.preferred_batch_size.append(message.max_batch_size)
    if message.HasField("sequence_batching"):
        fill_sequence_defaults(message)
    if not message.HasField("ensemble_scheduling"):
        for pinned in ("input_pinned_memory", "output_pinned_memory"):
            if not message.optimization.HasField(pinned):
                getattr(message.optimization, pinned).enable = True


def fill_instance_groups(message: Message, gpus: Sequence[int], default_cpu_count: int) -> None:
    """At least one group, and for each its name, kind, count and devices. `gpus` are those of this machine."""
    if not message.instance_group:
        message.instance_group.add(name=message.name)
    for i, group in enumerate(message.instance_group):
        group.name = group.name or f"{message.name}_{i}"
        if group.kind == pb.ModelInstanceGroup.KIND_AUTO:
            fits = gpus and set(group.gpus) <= set(gpus)
            group.kind = pb.ModelInstanceGroup.KIND_GPU if fits else pb.ModelInstanceGroup.KIND_CPU
        if group.count < 1:
            group.count = default_cpu_count if group.kind == pb.ModelInstanceGroup.KIND_CPU else 1
        if group.kind == pb.ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)
