"""Fills in what a configuration leaves out: defaults (R53, R71, S20), and what a model file or the code of a model says
(R72, R77, R82).

Changes messages in place; pure otherwise, any thread.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halimede.config.message import Message, parse_values
from halimede.config.model_config import BatchDimension, CompletionRules, DescribedTensor, Description
from halimede.config.sequencing import fill_sequence_defaults
from halimede.errors import Internal, Invalid
from halimede.protocol import model_config_pb2 as pb
from halimede.tensors import Shape

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


def automatic_groups(message: Message) -> frozenset[int]:
    """The places of the instance groups whose kind is KIND_AUTO."""
    automatic = pb.ModelInstanceGroup.KIND_AUTO
    return frozenset(i for i, group in enumerate(message.instance_group) if group.kind == automatic)


def fall_back_to_cpu(message: Message, gpus: Sequence[int]) -> list[str]:
    """Takes GPUs that are not among `gpus` out of the instance groups. A group that has none left becomes KIND_CPU,
    with as many instances as it has on one GPU. Returns what has changed, one text for each group.

    KIND_AUTO with a list of GPUs counts as well: it is refused as a CPU group that names GPUs (R53).
    """
    changes = []
    for i, group in enumerate(message.instance_group):
        if group.kind not in (pb.ModelInstanceGroup.KIND_GPU, pb.ModelInstanceGroup.KIND_AUTO):
            continue
        wanted = list(group.gpus)
        left = [gpu for gpu in wanted if gpu in gpus]
        needs_one = group.kind == pb.ModelInstanceGroup.KIND_GPU and not wanted and not gpus
        if wanted == left and not needs_one:
            continue
        name = f"instance group '{group.name or f'{message.name}_{i}'}'"
        asked = _names_of(wanted) if wanted else "a GPU"
        group.ClearField("gpus")
        if left:
            group.gpus.extend(left)
            changes.append(f"{name} asks for {asked} and runs on {_names_of(left)} only")
            continue
        group.kind = pb.ModelInstanceGroup.KIND_CPU
        group.count = max(group.count, 1)
        group.ClearField("secondary_devices")
        instances = f"{group.count} instance{'s' if group.count > 1 else ''}"
        changes.append(f"{name} asks for {asked} and runs on the CPU, with {instances}")
    return changes


def _names_of(gpus: Sequence[int]) -> str:
    return f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"


def lacks_tensors(message: Message) -> bool:
    """Whether inputs or outputs are missing, so that the model file or its code must supply them (R72)."""
    return not (_has_inputs(message) and message.output)


def _has_inputs(message: Message) -> bool:
    return bool(message.input or message.batch_input)


@dataclass(frozen=True, slots=True)
class Completed:
    """What became of a completion: warnings to log, and the fields that were filled in."""

    warnings: list[str]
    fields: list[str]


def complete_from_description(message: Message, description: Description, default_max_batch_size: int) -> Completed:
    """Fills in the batch size, and whichever of inputs and outputs are missing, by the description's rules. Raises
    Invalid.

    Does nothing if nothing is missing: a full configuration is not altered (R73), unless the rules say so.
    """
    rules = description.rules
    if not (lacks_tensors(message) or rules.fills_listed or rules.adds_unlisted):
        return Completed([], [])
    completed = Completed(list(description.warnings), [])
    _complete_batching(message, description, default_max_batch_size, completed)
    if description.states and not message.HasField("sequence_batching"):
        completed.warnings.append(
            f"model '{message.name}' keeps states from one request to the next ({', '.join(description.states)}), and "
            "its requests are not sequences: set sequence_batching"
        )
    own_inputs, own_outputs = _of_sequences(message)
    lists = (
        ("input", _has_inputs(message), description.inputs, own_inputs),
        ("output", bool(message.output), description.outputs, own_outputs),
    )
    for field, is_listed, tensors, own in lists:
        specs = getattr(message, field)
        wanted = [tensor for tensor in tensors if tensor.name not in own]
        listed = {spec.name: spec for spec in specs}
        filled = False
        if rules.fills_listed:
            for tensor in wanted:
                if tensor.name in listed:
                    filled |= _fill_listed(listed[tensor.name], tensor, message.max_batch_size > 0, rules)
        if not is_listed or rules.adds_unlisted:
            missing = [tensor for tensor in wanted if tensor.name not in listed]
            filled |= bool(missing)
            _fill(specs, missing, message.max_batch_size > 0, rules, rules.ragged and field == "input")
        if filled:
            completed.fields.append(field)
    return completed


def _complete_batching(message: Message, description: Description, default: int, completed: Completed) -> None:
    rules, given = description.rules, int(message.max_batch_size)
    limit = description.batch_limit
    words = {"model": message.name, "given": given, "limit": default if limit is None else limit}
    if description.batch_dimension is not BatchDimension.SYMBOLIC and limit is None:
        if given and rules.not_batching_fails:
            raise Invalid(rules.not_batching.format(**words))
        if given:
            completed.warnings.append(rules.not_batching.format(**words))
        return
    if limit is not None and given > limit:
        raise Invalid(rules.too_large.format(**words))
    if given == 0:
        message.max_batch_size = max(words["limit"], 0)
        completed.fields.append("max_batch_size")
        completed.warnings.append(rules.chosen.format(**words))
    if message.max_batch_size > 1 and not message.WhichOneof("scheduling_choice"):
        message.dynamic_batching.SetInParent()
        completed.fields.append("dynamic_batching")


def _of_sequences(message: Message) -> tuple[set[str], set[str]]:
    """The names of the inputs and outputs that the server fills or keeps: controls and states of sequences. The model
    file declares them too, and they are not filled in.
    """
    batching = message.sequence_batching
    controls = {control.name for control in batching.control_input}
    return controls | {s.input_name for s in batching.state}, {s.output_name for s in batching.state}


def _fill(specs: Any, tensors: Iterable[DescribedTensor], batching: bool, rules: CompletionRules, ragged: bool) -> None:
    for tensor in tensors:
        spec = specs.add(name=tensor.name, data_type=tensor.datatype.number)
        dims = _dims(tensor, batching, rules)
        spec.dims.extend(dims or (1,))
        if batching and not dims:  # a scalar: dims may not be empty, so one element is reshaped to none
            spec.reshape.SetInParent()
        if tensor.optional:
            spec.optional = True
        if ragged:
            spec.allow_ragged_batch = True


def _fill_listed(spec: Any, tensor: DescribedTensor, batching: bool, rules: CompletionRules) -> bool:
    """Fills in what a tensor of the configuration lacks; whether it lacked something."""
    lacked = not spec.data_type or not spec.dims
    if not spec.data_type:
        spec.data_type = tensor.datatype.number
    if not spec.dims:
        spec.dims.extend(_dims(tensor, batching, rules) or (1,))
    return lacked


def _dims(tensor: DescribedTensor, batching: bool, rules: CompletionRules) -> Shape:
    dims = (tensor.shape or ())[1 if batching else 0 :]
    return (-1,) * len(dims) if rules.any_dynamic_makes_all and -1 in dims else dims


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
