"""How a signature completes a configuration (BF4, BF5), and whether a configuration fits it (BF6, BF7): in the words of
Triton's backend. Pure, any thread."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from halimede.backends.checks import problems as differences
from halimede.backends.tensorflow.signatures import Signature, SignatureTensor
from halimede.backends.texts import unexpected_tensor, wrong_input_count
from halimede.config.model_config import (
    BatchDimension,
    CompletionRules,
    DescribedTensor,
    Description,
    ModelConfig,
)
from halimede.errors import Cause, Invalid

RULES = CompletionRules(
    not_batching=(
        "unable to autofill for '{model}', configuration specified max-batch {given} but model signature does not "
        "support batching"
    ),
    chosen=(
        "autofilled max_batch_size to {limit} for model '{model}' since batching is supporrted but no max_batch_size "
        "is specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch "
        "size"
    ),  # "supporrted" is Triton's own spelling
    fills_listed=True,
    adds_unlisted=True,
)

Listed = Sequence[Mapping[str, Any]]
"""The inputs or outputs of a configuration, as JSON values."""


def describe_signature(signature: Signature, model: str, inputs: Listed, outputs: Listed, source: str) -> Description:
    """What completes a configuration that lists these tensors. Raises Invalid."""
    shown = {"input": _wanted(signature.inputs, ()), "output": _wanted(signature.outputs, outputs)}
    for word, tensors in shown.items():
        listed = {each["name"]: each for each in (inputs if word == "input" else outputs)}
        for tensor in tensors:
            if tensor.datatype is None:
                text = f"unable to process {word} '{tensor.name}' for '{model}', unsupported datatype '{tensor.kind}'"
                raise Invalid(text).blaming(Cause.FILE)
            if tensor.shape is None and not listed.get(tensor.name, {}).get("dims"):
                raise Invalid(_without_rank(word, tensor.name, model)).blaming(Cause.CONFIGURATION)
    return Description(
        tuple(map(_described, shown["input"])),
        tuple(map(_described, shown["output"])),
        batch=_batch_dimension(signature, model, inputs, outputs),
        source=source,
        rules=RULES,
    )


def _wanted(tensors: Sequence[SignatureTensor], listed: Listed) -> tuple[SignatureTensor, ...]:
    """All, or if some are listed only these: outputs may be left out of a configuration."""
    names = {each["name"] for each in listed}
    return tuple(tensor for tensor in tensors if not names or tensor.name in names)


def _without_rank(word: str, tensor: str, model: str) -> str:
    start = f"Unable to autofill for '{model}': the rank of model tensor '{tensor}' is 0"
    return f"{start} and dimensions are not defined" if word == "input" else f"{start} which is not supported"


def _described(tensor: SignatureTensor) -> DescribedTensor:
    assert tensor.datatype is not None
    return DescribedTensor(tensor.name, tensor.datatype, tensor.shape)


def _batch_dimension(signature: Signature, model: str, inputs: Listed, outputs: Listed) -> BatchDimension:
    """Whether the first dimension is the batch: it is of any size in all tensors, and the configuration does not list
    it among the dims of a tensor. A model with ragged inputs runs batches too."""
    if any(each.get("allow_ragged_batch") for each in inputs):
        return BatchDimension.SYMBOLIC
    known = [tensor.shape for tensor in (*signature.inputs, *signature.outputs) if tensor.shape is not None]
    if not all(shape[:1] == (-1,) for shape in known):
        return BatchDimension.NONE
    hints = set()
    for listed, tensors in ((inputs, signature.inputs), (outputs, signature.outputs)):
        shapes = {tensor.name: tensor.shape for tensor in tensors}
        for each in listed:
            shape, reshape = shapes.get(each["name"]), each.get("reshape")
            given = each.get("dims", ()) if reshape is None else reshape["shape"]
            if shape is not None and (given or reshape is not None):
                hints.add(len(given) < len(shape))
    if len(hints) > 1:
        text = (
            f"unable to autofill for '{model}', model tensor configurations are contradicting each other in terms of "
            "whether batching is supported"
        )
        raise Invalid(text).blaming(Cause.CONFIGURATION)
    return BatchDimension.NONE if hints == {False} else BatchDimension.SYMBOLIC


def problems(config: ModelConfig, signature: Signature, is_graph: bool) -> Iterator[Invalid]:
    """Everything in which a configuration and a signature differ. A frozen graph has no signature: its placeholders and
    the nodes that nobody reads are compared by name only (BF7)."""
    if not is_graph:
        yield from differences(config, Description(_known(signature.inputs), _known(signature.outputs)))
        return
    inputs, outputs = ({each.name for each in side} for side in (signature.inputs, signature.outputs))
    given = [spec.name for spec in config.model_inputs]
    given += [name for each in config.batch_inputs for name in each.targets]
    yield from (unexpected_tensor("input", name, inputs) for name in given if name not in inputs)
    wanted = [spec.name for spec in config.model_outputs]
    yield from (unexpected_tensor("output", name, outputs) for name in wanted if name not in outputs)
    if len(given) > len(inputs):
        yield wrong_input_count(config.name, len(given), len(inputs), at_most=True)


def _known(tensors: Sequence[SignatureTensor]) -> tuple[DescribedTensor, ...]:
    """Those that a request could carry."""
    return tuple(_described(tensor) for tensor in tensors if tensor.datatype is not None)
