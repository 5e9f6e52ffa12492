"""How a plan completes a configuration (BR3 to BR5), and whether a configuration fits it (BR6, BR10, BR11). Pure, any
thread."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from halimede.backends.tensorrt.plan import Plan, PlanTensor
from halimede.backends.texts import unexpected_tensor, wrong_input_count, wrong_shape
from halimede.config.model_config import ModelConfig, TensorSpec
from halimede.errors import Cause, Invalid
from halimede.tensors import Shape

Fields = Mapping[str, Any]


def complete(plan: Plan, model: str, given: Fields, profiles: tuple[int, ...]) -> dict[str, Any]:
    """The fields of a configuration that follow from the plan, as JSON values. `given` has its max_batch_size, input,
    output, and whether it has a scheduler. Raises Invalid."""
    batches = _supports_batches(plan, model, given)
    limit = plan.batch_limit(profiles) if batches else 0
    size = int(given["max_batch_size"])
    if batches and size > limit:
        text = f"configuration specified max-batch {size} but TensorRT engine only supports max-batch {limit}"
        raise Invalid(f"autofill failed for model '{model}': {text}").blaming(Cause.CONFIGURATION)
    fields: dict[str, Any] = {"max_batch_size": (size or limit) if batches else 0}
    if limit > 1 and not given["has_scheduler"]:
        fields["dynamic_batching"] = {}
    for word, tensors in (("input", plan.inputs), ("output", plan.outputs)):
        listed = given[word] or [{"name": tensor.name} for tensor in tensors]
        fields[word] = [_completed(each, plan.tensor(each["name"]), fields["max_batch_size"] > 0) for each in listed]
    return fields


def _supports_batches(plan: Plan, model: str, given: Fields) -> bool:
    """Dims that are one shorter than the plan's say that the first size is the batch. Without dims it is, if the plan
    has batches at all."""
    hints = set()
    for each in (*given["input"], *given["output"]):
        tensor = plan.tensor(each["name"])
        if each.get("allow_ragged_batch"):
            hints.add(True)
        elif tensor is not None and each.get("dims") and not tensor.is_shape_tensor:
            hints.add(len(each["dims"]) < len(tensor.shape))
    if len(hints) > 1:
        text = (
            f"unable to autofill for '{model}', model tensor configurations are contradicting each other in terms of "
            "whether batching is supported"
        )
        raise Invalid(text).blaming(Cause.CONFIGURATION)
    if hints:
        return hints.pop()
    return all(tensor.shape for tensor in plan.tensors if not tensor.is_shape_tensor)


def _completed(listed: Fields, tensor: PlanTensor | None, batching: bool) -> dict[str, Any]:
    fields = {key: value for key, value in listed.items() if key != "dims" or value}
    if tensor is None:  # `problems` names it
        return fields
    if fields.get("data_type", "TYPE_INVALID") == "TYPE_INVALID":
        fields["data_type"] = tensor.datatype.config_name
    if "dims" not in fields:
        fields["dims"] = list(configured_shape(tensor, batching)) or [1]
    fields["is_shape_tensor"] = tensor.is_shape_tensor
    fields["is_non_linear_format_io"] = not tensor.is_linear
    return fields


def configured_shape(tensor: PlanTensor, batching: bool) -> Shape:
    """The dims that a configuration gives a tensor: without the batch, which in a shape tensor is one value (BR10)."""
    if not batching:
        return tensor.shape
    return (tensor.shape[0] - 1,) if tensor.is_shape_tensor and tensor.shape else tensor.shape[1:]


def problems(config: ModelConfig, plan: Plan, instance: str) -> Iterator[Invalid]:
    """Everything in which configuration and plan differ."""
    computed = [name for each in config.batch_inputs for name in each.targets]
    expected = len(config.model_inputs) + len(computed)
    if expected > len(plan.inputs):
        yield wrong_input_count(config.name, expected, len(plan.inputs), at_most=True)
    batching = config.max_batch_size > 0
    marks = {each["name"]: each for field in ("input", "output") for each in config.value(field) or ()}
    for word, specs, tensors in (
        ("input", config.model_inputs, plan.inputs),
        ("output", config.model_outputs, plan.outputs),
    ):
        for spec in specs:
            tensor = next((each for each in tensors if each.name == spec.name), None)
            if tensor is None:
                yield unexpected_tensor(word, spec.name, (each.name for each in tensors))
                continue
            if tensor.datatype is not spec.datatype:
                yield Invalid(
                    f"unexpected datatype {tensor.datatype.config_name} for inference {word} '{spec.name}', expecting "
                    f"{spec.datatype.config_name} for {instance}"
                )
            yield from _shape_problems(config.name, spec, tensor, batching)
            yield from _mark_problems(config.name, word, tensor, marks.get(spec.name, {}))
    given = {spec.name for spec in config.model_inputs} | set(computed)
    for tensor in plan.inputs:
        if tensor.name not in given:
            yield Invalid(f"expected configuration for input '{tensor.name}' for {instance}")


def _shape_problems(model: str, spec: TensorSpec, tensor: PlanTensor, batching: bool) -> Iterator[Invalid]:
    if spec.allow_ragged_batch or (tensor.is_shape_tensor and not tensor.shape):
        return
    mine, its = spec.model_dims, configured_shape(tensor, batching)
    fits = len(mine) == len(its) and all(a == b or -1 in (a, b) for a, b in zip(mine, its, strict=True))
    if not fits and not (mine == (1,) and its == ()):
        yield wrong_shape(model, spec.name, tensor.shape, (-1, *mine) if batching else mine, batching)


def _mark_problems(model: str, word: str, tensor: PlanTensor, marks: Fields) -> Iterator[Invalid]:
    where = f"{word} '{tensor.name}' for model '{model}'"
    if tensor.is_shape_tensor and not marks.get("is_shape_tensor"):
        yield Invalid(f"{where} is a shape tensor but the model configuration doesn't mark it as a shape tensor.")
    if not tensor.is_shape_tensor and marks.get("is_shape_tensor"):
        yield Invalid(f"{where} is incorrectly marked as a shape tensor in the model configuration.")
    if bool(marks.get("is_non_linear_format_io")) is tensor.is_linear:
        uses, said = ("linear", "true") if tensor.is_linear else ("non-linear", "false")
        yield Invalid(
            f"{where} uses a {uses} IO format, but 'is_non_linear_format_io' is incorrectly set to {said} in the model "
            "configuration."
        )


def graph_batches(specs: Sequence[Fields], config: ModelConfig) -> tuple[int, ...]:
    """The batch sizes for which CUDA graphs are recorded (BR12). Raises Invalid."""
    most = config.max_batch_size
    for each in specs:
        size = int(each.get("batch_size", 0))
        if most == 0 and size != 0:
            raise Invalid("graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0")
        if most > 0 and not 1 <= size <= most:
            raise Invalid(f"graph spec expects 'batch_size' to be >= 1 and <= {most}")
    if specs:
        return tuple(sorted({int(each.get("batch_size", 0)) for each in specs}))
    if most == 0:
        return (0,)
    preferred = config.dynamic_batching.preferred_batch_sizes if config.dynamic_batching is not None else ()
    sizes = {1, *preferred, most} if config.dynamic_batching is not None else {1, 2, 3, 4, 6, 8, 12, 16, most}
    return tuple(sorted(size for size in sizes if size <= most))
