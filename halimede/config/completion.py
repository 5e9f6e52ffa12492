"""Fills in what a configuration leaves out: defaults (R53, R71, S20), and what a model file or the code of a model says
(R72, R77, R82).

Changes messages in place; pure otherwise, any thread.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from halimede.config.message import Message, parse_values
from halimede.config.model_config import DescribedTensor, Description
from halimede.config.sequencing import fill_sequence_defaults
from halimede.errors import Internal, Invalid
from halimede.protocol import model_config_pb2 as pb

_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
"""The fields of the scheduling choice. Code may set one only if the configuration has none."""
_REPLACED = ("input", "output", "model_transaction_policy")
"""Fields that code replaces as a whole."""


def fill_defaults(message: Message) -> None:
    """Fills in the version policy, pinned memory, preferred batch sizes, and the idle time of sequences.

    Called again after a completion. What the first call filled in stays, as in Triton.
    """
    if not message.HasField("version_policy"):
        message.version_policy.latest.num_versions = 1
    batcher = message.dynamic_batching if message.HasField("dynamic_batching") else None
    if batcher and not batcher.preferred_batch_size and message.max_batch_size > 0:
        batcher.preferred_batch_size.append(message.max_batch_size)
    if message.HasField("sequence_batching"):
        fill_sequence_defaults(message)
    # Triton refuses an ensemble with `optimization` (S80).
    if not message.HasField("ensemble_scheduling"):
        for pinned in ("input_pinned_memory", "output_pinned_memory"):
            if not message.optimization.HasField(pinned):
                getattr(message.optimization, pinned).enable = True


def fill_instance_groups(message: Message, gpus: Sequence[int], default_cpu_count: int) -> None:
    """Adds a group if there is none, and fills in the name, kind, count and devices of each (R53).

    `gpus` are the devices of this machine. `default_cpu_count` is the count of a CPU group that sets none.
    """
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


def lacks_tensors(message: Message) -> bool:
    """Whether inputs or outputs are missing, so that the model file or its code must supply them (R72)."""
    return not (_has_inputs(message) and message.output)


def _has_inputs(message: Message) -> bool:
    return bool(message.input or message.batch_input)


def complete_from_description(message: Message, description: Description, default_max_batch_size: int) -> list[str]:
    """Batching and whichever of inputs and outputs are missing; returns warnings. Raises Invalid.

    Does nothing where nothing is missing: a full configuration is never altered (contract R73).
    """
    if not lacks_tensors(message):
        return []
    warnings = _complete_batching(message, description, default_max_batch_size)
    own_inputs, own_outputs = _of_sequences(message)
    if not _has_inputs(message):
        inputs = [tensor for tensor in description.inputs if tensor.name not in own_inputs]
        _fill(message.input, inputs, message.max_batch_size > 0)
    if not message.output:
        outputs = [tensor for tensor in description.outputs if tensor.name not in own_outputs]
        _fill(message.output, outputs, message.max_batch_size > 0)
    return warnings


def _complete_batching(message: Message, description: Description, default_max_batch_size: int) -> list[str]:
    name, warnings = message.name, []
    if not all(t.shape and t.shape[0] == -1 for t in (*description.inputs, *description.outputs)):
        if message.max_batch_size:
            raise Invalid(
                f"autofill failed for model '{name}': model does not support batching while non-zero max_batch_size "
                "is specified"
            )
        return []
    if message.max_batch_size == 0:
        message.max_batch_size = max(default_max_batch_size, 0)
        warnings.append(
            f"autofilled max_batch_size to {message.max_batch_size} for model '{name}' since batching is supporrted "
            "but no max_batch_size is specified in model configuration. Must specify max_batch_size to utilize "
            "autofill with a larger max batch size"  # "supporrted" is Triton's own spelling
        )
    if message.max_batch_size > 1 and not message.WhichOneof("scheduling_choice"):
        message.dynamic_batching.SetInParent()
    return warnings


def _of_sequences(message: Message) -> tuple[set[str], set[str]]:
    """The names of the inputs and outputs that the server fills or keeps: controls and states of sequences. The model
    file declares them; a configuration must not list them.
    """
    batching = message.sequence_batching
    controls = {control.name for control in batching.control_input}
    return controls | {s.input_name for s in batching.state}, {s.output_name for s in batching.state}


def _fill(specs: Any, tensors: Iterable[DescribedTensor], batching: bool) -> None:
    for tensor in tensors:
        spec = specs.add(name=tensor.name, data_type=tensor.datatype.number)
        dims = (tensor.shape or ())[1 if batching else 0 :]
        spec.dims.extend(dims or (1,))
        if batching and not dims:  # a scalar: dims may not be empty, so one element is reshaped to none
            spec.reshape.SetInParent()
        if tensor.optional:
            spec.optional = True


def complete_from_values(message: Message, values: Mapping[str, Any], origin: str) -> None:
    """Takes over what code may decide: batch size, tensors, decoupling, and a scheduler if there is none (R82).

    Ignores the rest of `values`. Raises Invalid, with a text that begins with `origin`, and Internal.
    """
    allowed = ("max_batch_size", *_REPLACED, *_SCHEDULERS)
    offered = parse_values({key: values[key] for key in allowed if key in values}, origin)
    if "max_batch_size" in values:
        message.max_batch_size = offered.max_batch_size
    for field in _REPLACED:
        if field in values:
            message.ClearField(field)
            getattr(message, field).MergeFrom(getattr(offered, field))
    _complete_scheduler(message, offered)


def _complete_scheduler(message: Message, offered: Message) -> None:
    chosen, wanted = message.WhichOneof("scheduling_choice"), offered.WhichOneof("scheduling_choice")
    if wanted and chosen is None:
        getattr(message, wanted).CopyFrom(getattr(offered, wanted))
    elif wanted and wanted != chosen:
        # Triton prints the number of the present choice twice.
        number = message.DESCRIPTOR.fields_by_name[chosen].number
        raise Internal(f"Cannot update scheduling choice from {number} to {number} when auto-completing.")
