"""What the outputs of a TorchScript model are, found by running it (`halimede init`). Any thread but the event loop."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch

from halimede.backends.pytorch.script import ScriptFile, arguments_of
from halimede.backends.pytorch.texts import ScriptTexts
from halimede.backends.pytorch.values import DATATYPES_OF, DTYPES
from halimede.config.model_config import BatchDimension, DescribedTensor, Description
from halimede.errors import Cause, Error, Invalid
from halimede.tensors import BYTES, DataType, Shape

_SIZES = ((2, 64), (3, 96))
"""For each run, what -1 is in the first place, and in others."""


def probe_script(path: Path, model: str, given: Sequence[DescribedTensor]) -> Description:
    """Runs the model twice, on zeros of two sizes where `given` has -1. A size of an output that differs is -1. Raises
    Error."""
    module, loaded = ScriptFile(path, model).load("cpu")
    arguments = arguments_of(module, model)
    as_dict = len(arguments) == 1 and arguments[0].is_dict
    names = [each.name for each in (given if as_dict else arguments)]
    if sorted(names) != sorted(each.name for each in given):
        wanted = ", ".join(f"{each.name} ({each.type})" for each in arguments)
        raise Invalid(f"the inputs of the model are {wanted}")
    ordered = sorted(given, key=lambda each: names.index(each.name))
    first = _run(loaded.call, ordered, as_dict, _SIZES[0])
    try:
        second = _run(loaded.call, ordered, as_dict, _SIZES[1]) if _has_any_size(given) else first
    except Error:
        second = first  # not all sizes are possible, so nothing is known of the others
    outputs = [
        DescribedTensor(f"OUTPUT__{i}", datatype, _common(shape, other))
        for i, ((datatype, shape), (_, other)) in enumerate(zip(first, second, strict=True))
    ]
    rows = [each.shape[:1] == (-1,) for each in (*given, *outputs) if each.shape]
    batch = BatchDimension.SYMBOLIC if all(rows) else BatchDimension.NONE
    return Description(tuple(given), tuple(outputs), batch=batch, source=f"a run of {path.name}")


def _run(
    call: Any, given: Sequence[DescribedTensor], as_dict: bool, sizes: tuple[int, int]
) -> list[tuple[DataType, Shape]]:
    """The datatype and shape of each result. Raises Error."""
    values = {each.name: _zeros(each, sizes) for each in given}
    try:
        with torch.inference_mode():
            result = call(values) if as_dict else call(*values.values())
    except Exception as error:
        shapes = ", ".join(f"{name} {list(getattr(value, 'shape', [len(value)]))}" for name, value in values.items())
        failure = ScriptTexts().failure(error)
        raise Invalid(f"the model fails for zeros of the shapes {shapes}: {failure}").blaming(Cause.FILE) from error
    results = result if isinstance(result, tuple) else (result,)
    return [_described(i, each) for i, each in enumerate(results)]


def _zeros(tensor: DescribedTensor, sizes: tuple[int, int]) -> Any:
    chosen = [sizes[0], *[sizes[1]] * 1024]
    shape = [size if size >= 0 else other for size, other in zip(tensor.shape or (), chosen, strict=False)]
    if tensor.datatype is BYTES:
        return [b"text"] * prod(shape)
    return torch.zeros(shape, dtype=DTYPES[tensor.datatype])


def _described(i: int, result: Any) -> tuple[DataType, Shape]:
    if isinstance(result, list) and all(isinstance(each, str) for each in result):
        return BYTES, (len(result),)
    if not isinstance(result, torch.Tensor):
        raise ScriptTexts().no_tensor(type(result).__name__, i)
    if not result.dim():
        raise ScriptTexts().scalar(f"OUTPUT__{i}")
    datatype = DATATYPES_OF.get(result.dtype)
    if datatype is None:
        raise Invalid(f"result {i} of the model is of the type {result.dtype}, which the protocol does not have")
    return datatype, tuple(result.shape)


def _has_any_size(given: Sequence[DescribedTensor]) -> bool:
    return any(-1 in (each.shape or ()) for each in given)


def _common(shape: Shape, other: Shape) -> Shape:
    if len(shape) != len(other):
        return (-1,) * len(shape)
    return tuple(size if size == another else -1 for size, another in zip(shape, other, strict=True))
