"""Does a configuration fit the ONNX model that it names? The checks of contract R74, in their words.

Compares two plain descriptions and knows nothing of ONNX Runtime. Pure, any thread.
"""

from collections.abc import Sequence

from halimede.config.model_config import DescribedTensor, Description, ModelConfig, TensorSpec
from halimede.errors import Invalid
from halimede.tensors import Shape, shape_text


def check(config: ModelConfig, model: Description) -> None:
    """Raises Invalid unless the model can be served as configured. An optional tensor of `model` is an initializer that
    a request may override. Outputs may be left out of a configuration, inputs may not."""
    _check_input_count(config, model)
    for spec in config.inputs:
        if spec.optional and config.max_batch_size > 0:
            raise Invalid(
                f"unable to load model '{config.name}', optional input '{spec.name}' is not supported for models that "
                "support batching"
            )
        # A configured size may stand where the model takes any.
        _check_tensor(config, spec, "input", model.inputs, exact=False)
    for spec in config.outputs:
        # For outputs the real server wants -1 where the model says so: a size would be a promise nobody keeps.
        _check_tensor(config, spec, "output", model.outputs, exact=True)


def _check_input_count(config: ModelConfig, model: Description) -> None:
    expected = len(config.inputs)
    least = sum(not tensor.optional for tensor in model.inputs)
    if not least <= expected <= len(model.inputs):
        provided = least if expected < least else len(model.inputs)
        raise Invalid(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, model provides {provided}"
        )


def _check_tensor(
    config: ModelConfig, spec: TensorSpec, word: str, tensors: Sequence[DescribedTensor], *, exact: bool
) -> None:
    tensor = next((t for t in tensors if t.name == spec.name), None)
    if tensor is None:
        allowed = ", ".join(sorted(t.name for t in tensors))
        raise Invalid(f"unexpected inference {word} '{spec.name}', allowed {word}s are: {allowed}")
    if tensor.datatype is not spec.datatype:
        raise Invalid(
            f"unable to load model '{config.name}', configuration expects datatype {spec.datatype.config_name} for "
            f"{word} '{spec.name}', model provides {tensor.datatype.config_name}"
        )
    if tensor.shape is not None:
        _check_shape(config, spec, tensor.shape, exact)


def _check_shape(config: ModelConfig, spec: TensorSpec, shape: Shape, exact: bool) -> None:
    where = f"model '{config.name}', tensor '{spec.name}'"
    if config.max_batch_size > 0 and shape[:1] != (-1,):
        raise Invalid(
            f"{where}: for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {shape_text(shape)}"
        )
    full = (-1, *spec.model_dims) if config.max_batch_size > 0 else spec.model_dims
    fits = len(full) == len(shape) and all(
        mine == its or (its == -1 and not exact) for mine, its in zip(full, shape, strict=True)
    )
    if fits:
        return
    told = f"(shape {shape_text(full)})"
    if config.max_batch_size > 0:
        told = (
            "(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
            f"complete shape {shape_text(full)})"
        )
    raise Invalid(
        f"{where}: the model expects {len(shape)} dimensions (shape {shape_text(shape)}) but the model configuration "
        f"specifies {len(full)} dimensions {told}"
    )
