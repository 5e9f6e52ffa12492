"""Implicit state: moves the states of sequences into requests and out of responses (S67 to S70).

1. At START a sequence gets its `SequenceStates` (`states`).
2. Before a batch runs, `insert_states` adds them to each request as ordinary inputs and outputs, so that a backend does
   not know of them. On the loop.
3. `collect_states` takes the next states out of a response and keeps them with the inference. On the thread that
   answers.
4. `commit_states` makes them the sequence's when the request has succeeded; a failed request changes nothing. On the
   loop.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from halimede.errors import Error, Internal, Invalid
from halimede.scheduling.inference import Inference
from halimede.scheduling.states import ModelState
from halimede.tensors import BYTES, HostMemory, Shape, Tensor, shape_text, split_bytes

_MAX_KEPT_RATIO = 2
"""A state may keep at most this multiple of its own size alive; a view into more is copied."""
_ALWAYS_COPIED_BYTES = 2048
"""States up to this size are copied at once, which is quicker than finding out what they are a view of."""


def insert_states(rows: Sequence[Inference]) -> None:
    """Adds the states of their sequences to the inputs of a batch's requests, and the next states to the requested
    outputs. A row without a sequence reads zeros of the shape that the others have (S61)."""
    zeros: dict[str, Tensor] | None = None
    for inference in rows:
        states = inference.states
        if states is not None:
            inputs = states.tensors
        else:
            if zeros is None:
                zeros = _zeros(rows)
            inputs = zeros
        request = inference.request
        request.inputs = {**request.inputs, **inputs}
        if states is not None:
            wanted = inference.outputs
            inference.outputs = (*wanted, *[name for name in states.of.output_names if name not in wanted])
            inference.next_states = None


def _zeros(rows: Sequence[Inference]) -> dict[str, Tensor]:
    """The states of a row without a sequence; empty if no sequence of the batch has states."""
    model = next((inference.states for inference in rows if inference.states is not None), None)
    return {} if model is None else {name: zeros_like(tensor) for name, tensor in model.tensors.items()}


def zeros_like(tensor: Tensor) -> Tensor:
    """Zeros, or empty strings, in the tensor's shape."""
    size = prod(tensor.shape) * (tensor.datatype.size or 4)  # an empty string is its length in 4 bytes
    return Tensor(tensor.name, tensor.datatype, tensor.shape, HostMemory(bytes(size)))


def collect_states(inference: Inference, outputs: Sequence[Tensor]) -> Sequence[Tensor] | Error:
    """Keeps the next states that a response holds with the inference. Returns the outputs that the client asked for, or
    an error if a state does not fit its declaration."""
    states = inference.states
    if states is None:
        return outputs
    of, asked = states.of, inference.request.outputs
    collected = {} if inference.next_states is None else dict(inference.next_states)
    shown = []
    for tensor in outputs:
        state = of.by_output.get(tensor.name)
        if state is None:
            shown.append(tensor)
            continue
        try:
            collected[state.input_name] = _next(state, tensor, of.model)
        except Error as error:
            return error
        if tensor.name in of.listed and (not asked or tensor.name in asked):
            shown.append(tensor)
    inference.next_states = collected
    return shown


def commit_states(inference: Inference, answer: object, final: bool) -> None:
    """Handles one answer to a request with collected states. An error discards them; the final answer makes them the
    states of the sequence, also if the request runs again."""
    failed = isinstance(answer, Error)
    if not (failed or final):
        return
    states, collected = inference.states, inference.next_states
    inference.next_states = None
    if states is not None and collected and not failed:
        states.tensors = {**states.tensors, **collected}


def _next(state: ModelState, tensor: Tensor, model: str) -> Tensor:
    """An output as the input that it becomes. Raises Internal if the model could not read it."""
    # Checked here, since a tensor that does not fit would fail every request that shares the next batch.
    problem = _problem(state, tensor)
    if problem:
        raise Internal(f"model '{model}', state '{state.output_name}': {problem}")
    return Tensor(state.input_name, tensor.datatype, tensor.shape, HostMemory(_kept_bytes(tensor)))


def _problem(state: ModelState, tensor: Tensor) -> str:
    if tensor.datatype is not state.datatype:
        return (
            f"the model returned datatype {tensor.datatype.config_name}, the configuration says "
            f"{state.datatype.config_name}"
        )
    if tensor.shape != state.dims and not _fits(state.dims, tensor.shape):
        return f"the model returned shape {shape_text(tensor.shape)}, the configuration says {shape_text(state.dims)}"
    elements = prod(tensor.shape)
    if state.datatype is not BYTES:
        filled = tensor.memory.byte_size == elements * state.datatype.size
        return "" if filled else f"{tensor.memory.byte_size} bytes do not fill {shape_text(tensor.shape)}"
    try:
        split_bytes(tensor.memory.host(), elements)
    except Invalid as error:
        return error.message
    return ""


def _fits(dims: Shape, shape: Shape) -> bool:
    return len(dims) == len(shape) and all(want in (-1, got) for want, got in zip(dims, shape, strict=True))


def _kept_bytes(tensor: Tensor) -> memoryview:
    """The tensor's bytes in memory that may live as long as the sequence. Read-only, so that a model that works in its
    inputs gets a copy."""
    view = tensor.memory.host()
    # A view into a whole batch would keep the batch alive.
    if view.nbytes <= _ALWAYS_COPIED_BYTES or view.nbytes * _MAX_KEPT_RATIO < _held(view):
        return memoryview(bytes(view))
    return view.toreadonly()


def _held(view: memoryview) -> int:
    """How many bytes the view keeps alive."""
    owner: Any = view.obj
    while isinstance(owner, np.ndarray) and isinstance(owner.base, np.ndarray | memoryview | bytes | bytearray):
        owner = owner.base.obj if isinstance(owner.base, memoryview) else owner.base
    return len(owner) if isinstance(owner, bytes | bytearray) else int(getattr(owner, "nbytes", 0))
