"""Does a configuration fit what a model file declares? The checks of contract R74, in their words.

Compares two plain descriptions and knows nothing of a runtime. Pure, any thread.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from halimede.backends.texts import unexpected_tensor, wrong_input_count, wrong_shape
from halimede.config.model_config import DescribedTensor, Description, ModelConfig, TensorSpec
from halimede.errors import Invalid
from halimede.tensors import DataType, Shape, shape_text


class _Named(NamedTuple):
    """An input that no request has."""

    name: str
    datatype: DataType


def check(config: ModelConfig, model: Description) -> None:
    """Raises Invalid unless the model can be served as configured. An optional tensor of `model` is an initializer that
    a request may override. Outputs may be left out of a configuration, inputs may not."""
    for rule in _rules(config, model):
        rule()


def problems(config: ModelConfig, model: Description) -> Iterator[Invalid]:
    """All that `check` could raise."""
    for rule in _rules(config, model):
        try:
            rule()
        except Invalid as error:
            yield error


def _rules(config: ModelConfig, model: Description) -> Iterator[Callable[[], None]]:
    yield partial(_check_input_count, config, model)
    for spec in config.inputs:
        yield partial(_check_input, config, spec, model)
    cut = {name for each in config.batch_outputs for name in each.targets}
    for spec in config.outputs:
        yield partial(_check_output, config, spec, model, spec.name in cut)
    yield partial(_check_batch_inputs, config, model)
    yield partial(_check_sequence, config, model)


def _check_input(config: ModelConfig, spec: TensorSpec, model: Description) -> None:
    if spec.optional and config.max_batch_size > 0:
        raise Invalid(
            f"unable to load model '{config.name}', optional input '{spec.name}' is not supported for models that "
            "support batching"
        )
    tensor = _check_tensor(config, spec, "input", model.inputs)
    if spec.allow_ragged_batch:
        _check_ragged(config, spec, tensor)
    else:
        # A configured size may stand where the model takes any.
        _check_shape(config, spec, tensor.shape, exact=False)


def _check_output(config: ModelConfig, spec: TensorSpec, model: Description, is_cut: bool) -> None:
    tensor = _check_tensor(config, spec, "output", model.outputs)
    if not is_cut:
        # The real server requires -1 for outputs if the model has -1: the model does not guarantee a size.
        _check_shape(config, spec, tensor.shape, exact=True)


def _check_input_count(config: ModelConfig, model: Description) -> None:
    expected = len(config.inputs) + sum(len(each.targets) for each in config.batch_inputs)
    expected += len(config.control_inputs) + len(config.states)
    least = sum(not tensor.optional for tensor in model.inputs)
    if not least <= expected <= len(model.inputs):
        provided = least if expected < least else len(model.inputs)
        raise wrong_input_count(config.name, expected, provided)


def _check_tensor(
    config: ModelConfig, spec: TensorSpec | _Named, word: str, tensors: Sequence[DescribedTensor]
) -> DescribedTensor:
    tensor = next((t for t in tensors if t.name == spec.name), None)
    if tensor is None:
        raise unexpected_tensor(word, spec.name, (t.name for t in tensors))
    if tensor.datatype is not spec.datatype:
        raise Invalid(
            f"unable to load model '{config.name}', configuration expects datatype {spec.datatype.config_name} for "
            f"{word} '{spec.name}', model provides {tensor.datatype.config_name}"
        )
    return tensor


def _check_batch_inputs(config: ModelConfig, model: Description) -> None:
    for each in config.batch_inputs:
        for name in each.targets:
            _check_tensor(config, _Named(name, each.datatype), "input", model.inputs)


def _check_sequence(config: ModelConfig, model: Description) -> None:
    """What the server adds to the requests of a sequence, and what it keeps of their answers (S58, S67)."""
    for control in config.control_inputs:
        _check_tensor(config, control, "input", model.inputs)
    for spec in config.state_inputs:
        _check_shape(config, spec, _check_tensor(config, spec, "input", model.inputs).shape, exact=False)
    for spec in config.state_outputs:
        _check_shape(config, spec, _check_tensor(config, spec, "output", model.outputs).shape, exact=False)


def _check_ragged(config: ModelConfig, spec: TensorSpec, tensor: DescribedTensor) -> None:
    """A ragged input reaches the model in one dimension, whatever its shape in a request (S36)."""
    where = f"unable to load model '{config.name}', configuration expects model provides input with shape [-1] "
    if spec.optional:
        raise Invalid(f"{where}for ragged input '{spec.name}', which is not supported for optional input")
    if tensor.shape != (-1,):
        provided = shape_text(tensor.shape or ())
        raise Invalid(f"{where} for ragged input '{spec.name}', model provides {provided}")


def _check_shape(config: ModelConfig, spec: TensorSpec, shape: Shape | None, exact: bool) -> None:
    if shape is None:
        return
    if not shape and not config.max_batch_size:
        _check_scalar(config, spec)
        return
    if config.max_batch_size > 0 and shape[:1] != (-1,):
        raise Invalid(
            f"model '{config.name}', tensor '{spec.name}': for the model to support batching the shape should have at "
            "least 1 dimension and the first dimension must be -1; but shape expected by the model is "
            f"{shape_text(shape)}"
        )
    full = (-1, *spec.model_dims) if config.max_batch_size > 0 else spec.model_dims
    fits = len(full) == len(shape) and all(
        mine == its or (its == -1 and not exact) for mine, its in zip(full, shape, strict=True)
    )
    if fits:
        return
    raise wrong_shape(config.name, spec.name, shape, full, config.max_batch_size > 0)


def _check_scalar(config: ModelConfig, spec: TensorSpec) -> None:
    """A tensor without dimensions is one element, whatever number of dimensions a configuration gives it (BO4)."""
    if any(size != 1 for size in spec.model_dims):
        raise Invalid(
            f"unable to load model '{config.name}', scalar tensor '{spec.name}', should only provide 1 in the model "
            "configuration when the model doesn't support batching. Model configuration provided: "
            f"{shape_text(spec.model_dims)}."
        )


def scalars(specs: Sequence[TensorSpec], tensors: Sequence[DescribedTensor]) -> Mapping[str, Shape]:
    """The tensors of the model without dimensions, with the dims that requests and responses have instead (BO4)."""
    dims = {spec.name: spec.model_dims for spec in specs}
    return {tensor.name: dims[tensor.name] for tensor in tensors if tensor.shape == () and dims.get(tensor.name)}
