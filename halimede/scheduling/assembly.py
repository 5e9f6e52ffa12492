"""Gather and scatter: joins the inputs of a batch's requests to arrays, and splits the model's arrays into each
request's outputs.

Pure functions on tensors, called by the thread that runs the batch.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from halimede.errors import Internal
from halimede.scheduling.inference import Inference
from halimede.tensors import DataType, Destination, HostMemory, Tensor, aligned_array_of, array_of, tensor_of

Array = npt.NDArray[Any]


def gather(rows: Sequence[Inference], names: Collection[str] | None = None) -> dict[str, Array]:
    """The inputs by name, joined along the first dimension in the order of the batch. `names` limits them.

    All inferences of a batch have the same inputs, because the policy compares their keys. So the first one names them.
    """
    if len(rows) == 1:  # no copy, unless the tensor is not aligned
        inputs = rows[0].request.inputs
        if names is None:
            return {name: aligned_array_of(tensor) for name, tensor in inputs.items()}
        return {name: aligned_array_of(inputs[name]) for name in names}
    return {
        name: np.concatenate([array_of(inference.request.inputs[name]) for inference in rows])
        for name in (rows[0].request.inputs if names is None else names)
    }


def scatter(
    rows: Sequence[Inference], arrays: Mapping[str, Array], datatypes: Mapping[str, DataType]
) -> list[list[Tensor]]:
    """For each inference its rows of `arrays`, as the outputs that it asked for. They are views, not copies.

    Raises Internal if an array has another number of rows than the batch, or another dtype than its output, and if the
    model has no output of that name.
    """
    total = 0
    for inference in rows:
        total += inference.batch_size
    for name, array in arrays.items():
        if name not in datatypes:
            raise unexpected_output(name, None, datatypes)
        if total:  # 0: the model does not batch, and its arrays have no dimension of rows
            shape = array.shape
            if not shape or shape[0] != total:
                raise Internal(f"output '{name}' has shape {list(shape)} for a batch of {total}")
    if len(rows) == 1:  # all rows are its own
        return [[tensor_of(name, datatypes[name], arrays[name]) for name in rows[0].outputs if name in arrays]]
    parts, start = [], 0
    for inference in rows:
        end = start + inference.batch_size
        parts.append(
            [tensor_of(name, datatypes[name], arrays[name][start:end]) for name in inference.outputs if name in arrays]
        )
        start = end
    return parts


def unexpected_output(name: str, datatype: DataType | None, datatypes: Mapping[str, DataType]) -> Internal:
    """The error for an output that the configuration does not have, or has with another datatype. `datatypes` are those
    of the configuration."""
    if name in datatypes:
        text = f"the backend returned output '{name}' with type {datatype}, but the configuration has {datatypes[name]}"
        return Internal(text)
    known = ", ".join(f"'{each}'" for each in datatypes)
    return Internal(f"the backend returned output '{name}', but the configuration has: {known}")


def place(outputs: Sequence[Tensor], destinations: Mapping[str, Destination]) -> list[Tensor]:
    """Copies the outputs that have a destination to it. In the result these are empty, because nothing of them is left
    to send. Raises Internal for a destination that is too small (H98)."""
    placed = []
    for tensor in outputs:
        destination = destinations.get(tensor.name)
        if destination is None:
            placed.append(tensor)
            continue
        size = tensor.memory.byte_size
        if size > destination.byte_size:
            raise Internal(
                f"shared memory size specified with the request for output '{tensor.name}' ({destination.byte_size} "
                f"bytes) should be at least {size} bytes to hold the results"
            )
        destination.write(tensor.memory)
        placed.append(Tensor(tensor.name, tensor.datatype, tensor.shape, HostMemory(b"")))
    return placed
