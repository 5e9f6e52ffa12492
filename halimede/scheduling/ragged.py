"""Gather and scatter for batches of requests with different shapes (S36, S37, S39).

A ragged input has the elements of all requests in one dimension, one request after the other. Batch inputs tell the
model where each request begins. A batch output is split by the shapes that an input had. Pure functions on tensors,
called by the thread that runs the batch.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from halimede.errors import Internal
from halimede.scheduling.assembly import gather, scatter
from halimede.scheduling.inference import Inference
from halimede.tensors import DataType, Shape, Tensor, array_of, tensor_of

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class BatchInput:
    """Inputs of the model (`targets`) that the server computes from the sizes of another (`source`). `kind` is the
    word of the model configuration."""

    kind: str
    targets: Sequence[str]
    datatype: DataType
    source: str


class Ragged:
    """The inputs and outputs of a model that are not concatenated row by row.

    flat -- names of the ragged inputs
    batch_inputs -- inputs that the server computes
    cut -- by the name of a batch output, the input whose shapes it has, and its own shape with -1 for the sizes of the
        input; both with the batch dimension
    """

    __slots__ = ("_batch_inputs", "_cut", "_flat")

    def __init__(
        self, flat: Collection[str], batch_inputs: Sequence[BatchInput], cut: Mapping[str, tuple[str, Shape]]
    ) -> None:
        self._flat = frozenset(flat)
        self._batch_inputs = batch_inputs
        self._cut = cut

    def check_gather(self, name: str) -> None:
        """Raises Internal for an input that cannot be gathered row by row into an array of the backend."""
        if name in self._flat:
            raise Internal(f"input '{name}' is ragged: it is read by arrays(), and not by gather()")
        if any(name in each.targets for each in self._batch_inputs):
            raise Internal(f"input '{name}' is a batch input: it is read by arrays(), and not by gather()")

    def gather(self, requests: Sequence[Inference]) -> dict[str, Array]:
        """The inputs of a batch by name, including those that the server computes. Raises Internal if a request lacks
        the input that these are computed from."""
        flat = self._flat
        if flat:
            names = requests[0].request.inputs
            arrays = gather(requests, [name for name in names if name not in flat])
            for name in names:  # an optional input may be missing, in all requests of a batch alike
                if name in flat:
                    arrays[name] = _joined([array_of(one.request.inputs[name]) for one in requests])
        else:
            arrays = gather(requests)
        for batch_input in self._batch_inputs:
            made = _made(batch_input, requests)
            arrays.update((target, made) for target in batch_input.targets)
        return arrays

    def scatter(
        self, requests: Sequence[Inference], arrays: Mapping[str, Array], datatypes: Mapping[str, DataType]
    ) -> list[list[Tensor]]:
        """For each inference its part of `arrays`, as the outputs that it asked for. Batch outputs are split by the
        shapes of their inputs. Raises Internal if an array has another number of elements than these need."""
        rows = {name: array for name, array in arrays.items() if name not in self._cut}
        parts = scatter(requests, rows, datatypes)
        for name, (source, shape) in self._cut.items():
            if name in arrays:
                pieces = _pieces(arrays[name], name, [_filled(name, shape, source, one) for one in requests])
                for part, piece, one in zip(parts, pieces, requests, strict=True):
                    if name in one.outputs:
                        part.append(tensor_of(name, datatypes[name], piece))
        for part, one in zip(parts, requests, strict=True):
            found = {tensor.name: tensor for tensor in part}
            part[:] = [found[name] for name in one.outputs if name in found]
        return parts


def _joined(arrays: Sequence[Array]) -> Array:
    """The elements of all arrays in one dimension. A single array is only copied if it is not aligned."""
    if len(arrays) == 1 and arrays[0].flags.aligned:
        return arrays[0].reshape(-1)
    return np.concatenate([array.reshape(-1) for array in arrays])


def _pieces(array: Array, name: str, shapes: Sequence[Shape]) -> list[Array]:
    sizes = [prod(shape) for shape in shapes]
    if sum(sizes) != array.size:
        raise Internal(f"output '{name}' has {array.size} elements, {sum(sizes)} are needed for {len(sizes)} requests")
    ends = list(accumulate(sizes))
    flat = array.reshape(-1)
    return [flat[end - size : end].reshape(shape) for end, size, shape in zip(ends, sizes, shapes, strict=True)]


def _filled(name: str, shape: Shape, source: str, one: Inference) -> Shape:
    """The shape of one request's part of an output: -1 becomes the size of the same dimension of the input."""
    given = _shape(source, one)
    if any(size < 0 and i >= len(given) for i, size in enumerate(shape)):
        raise Internal(f"output '{name}' has more dimensions than input '{source}', which gives their sizes")
    return tuple(given[i] if size < 0 else size for i, size in enumerate(shape))


def _shape(source: str, one: Inference) -> Shape:
    """The shape of an input, with the batch dimension if the model has one."""
    tensor = one.request.inputs.get(source)
    if tensor is None:
        raise Internal(f"{one.request.log_prefix}a batch input or output needs input '{source}', which is missing")
    return tensor.shape


# ---- batch inputs


def _made(wanted: BatchInput, requests: Sequence[Inference]) -> Array:
    shapes = [_shape(wanted.source, one) for one in requests]
    return np.asarray(_MAKERS[wanted.kind](shapes), dtype=wanted.datatype.numpy)


def _item_shapes(shapes: Sequence[Shape]) -> Array:
    """The shape of each row of the batch, as one row."""
    return np.concatenate([np.tile(np.array(shape[1:], np.int64), (shape[0], 1)) for shape in shapes])


_MAKERS: Mapping[str, Callable[[Sequence[Shape]], Array | list[int]]] = {
    "BATCH_ELEMENT_COUNT": lambda shapes: [prod(shape) for shape in shapes],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda shapes: list(accumulate(map(prod, shapes))),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": lambda shapes: list(accumulate(map(prod, shapes), initial=0)),
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda shapes: np.zeros(max(map(prod, shapes))),
    "BATCH_ITEM_SHAPE": _item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda shapes: _item_shapes(shapes).reshape(-1),
}
