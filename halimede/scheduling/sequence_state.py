"""Implicit state: what the server keeps of a model from one request of a sequence to the next (contract S67 to S70).

A live sequence has its `SequenceStates`, begun at START. Before a batch runs `weave` makes each request carry them, as
inputs and outputs like any other, so that a backend need not know of them. What a response holds of the next states is
kept with the request, and becomes the sequence's when the request has ended well: of one that fails nothing stays.

`weave` and `commit` on the loop; `keep` on whatever thread answers.
"""

import logging
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from halimede.errors import Error, Internal, Invalid
from halimede.tensors import BYTES, DataType, HostMemory, Shape, Tensor, shape_text, split_bytes

if TYPE_CHECKING:
    from halimede.scheduling.inference import Inference

log = logging.getLogger(__name__)

_KEPT_SHARE = 2
"""A state may keep memory alive of so many times its size; of more it is copied."""
_SMALL = 2048
"""So many bytes are copied quicker than one finds out what they are a part of."""


class State:
    """One state of a model. `dims` as the model sees them (with a batch dimension of 1 where it batches), -1 where any
    size goes. `initial` is what a sequence starts with; its memory cannot be written to, as all sequences share it."""

    __slots__ = ("datatype", "dims", "initial", "input_name", "output_name")

    def __init__(self, input_name: str, output_name: str, datatype: DataType, dims: Shape, initial: Tensor) -> None:
        self.input_name = input_name
        self.output_name = output_name
        self.datatype = datatype
        self.dims = dims
        self.initial = initial


class ModelStates:
    """The states of a model version. `listed` are the outputs of states that clients may ask for, too. A `problem` is
    why no sequence has any (contract S70)."""

    def __init__(
        self, model: str, states: Sequence[State], listed: frozenset[str] = frozenset(), problem: str = ""
    ) -> None:
        self.model = model
        self.listed = listed
        self.initial = {state.input_name: state.initial for state in states}
        self.by_output = {state.output_name: state for state in states}
        self.output_names = tuple(self.by_output)
        self.variable = tuple(state.input_name for state in states if -1 in state.dims)
        self._problem = problem

    def begin(self) -> "SequenceStates | None":
        """Those of a sequence that starts now."""
        if self._problem:
            log.error("%s", self._problem)
            return None
        return SequenceStates(self)


class SequenceStates:
    """The states of one live sequence: the tensors that its next request reads, by the name of the input."""

    __slots__ = ("of", "tensors")

    def __init__(self, of: ModelStates) -> None:
        self.of = of
        self.tensors = of.initial
        """Replaced as a whole, never written to."""

    @property
    def key(self) -> tuple[Shape, ...] | None:
        """Equal for sequences whose requests may share a batch, as far as their states go; None where any two may."""
        if not self.of.variable:
            return None
        return tuple(self.tensors[name].shape for name in self.of.variable)


def weave(rows: Sequence["Inference"]) -> None:
    """Gives the requests of a batch the states of their sequences, as inputs, and makes the next states outputs that
    are wanted of the model. A row without a sequence reads zeros of the shape that the others have (contract S61)."""
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


def _zeros(rows: Sequence["Inference"]) -> dict[str, Tensor]:
    """Nothing where no sequence of the batch has states."""
    model = next((inference.states for inference in rows if inference.states is not None), None)
    return {} if model is None else {name: zeros_like(tensor) for name, tensor in model.tensors.items()}


def zeros_like(tensor: Tensor) -> Tensor:
    """Zeros, or empty strings, of its shape."""
    size = prod(tensor.shape) * (tensor.datatype.size or 4)
    return Tensor(tensor.name, tensor.datatype, tensor.shape, HostMemory(bytes(size)))


def keep(inference: "Inference", outputs: Sequence[Tensor]) -> Sequence[Tensor] | Error:
    """Takes what these outputs of a response hold of the next states, to be committed. Returns those of them that the
    client asked for, or what is wrong with a state."""
    states = inference.states
    if states is None:
        return outputs
    of, asked = states.of, inference.request.outputs
    kept = {} if inference.next_states is None else dict(inference.next_states)
    shown = []
    for tensor in outputs:
        state = of.by_output.get(tensor.name)
        if state is None:
            shown.append(tensor)
            continue
        try:
            kept[state.input_name] = _next(state, tensor, of.model)
        except Error as error:
            return error
        if tensor.name in of.listed and (not asked or tensor.name in asked):
            shown.append(tensor)
    inference.next_states = kept
    return shown


def commit(inference: "Inference", answer: object, final: bool) -> None:
    """An answer to a request for which something was kept. With an error that is forgotten; with the last answer, also
    that it shall run again, it becomes the state of the sequence."""
    failed = isinstance(answer, Error)
    if not (failed or final):
        return
    states, kept = inference.states, inference.next_states
    inference.next_states = None
    if states is not None and kept and not failed:
        states.tensors = {**states.tensors, **kept}


def _next(state: State, tensor: Tensor, model: str) -> Tensor:
    """An output as the input that it becomes. Raises Internal where the model could not read it: a tensor that does not
    fit would fail whoever shares a batch with it."""
    problem = _problem(state, tensor)
    if problem:
        raise Internal(f"model '{model}', state '{state.output_name}': {problem}")
    return Tensor(state.input_name, tensor.datatype, tensor.shape, HostMemory(_stateful_policy(tensor)))


def _problem(state: State, tensor: Tensor) -> str:
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


def _stateful_policy(tensor: Tensor) -> memoryview:
    """Its bytes, for as long as the sequence lives, in memory that nobody writes to: a model that works in its inputs
    gets a copy. They are copied here where they are a small part of what was handed out, such as a whole batch."""
    view = tensor.memory.host()
    if view.nbytes <= _SMALL or view.nbytes * _KEPT_SHARE < _held(view):
        return memoryview(bytes(view))
    return view.toreadonly()


def _held(view: memoryview) -> int:
    """How many bytes the view keeps alive."""
    owner: Any = view.obj
    while isinstance(owner, np.ndarray) and isinstance(owner.base, np.ndarray | memoryview | bytes | bytearray):
        owner = owner.base.obj if isinstance(owner.base, memoryview) else owner.base
    return len(owner) if isinstance(owner, bytes | bytearray) else int(getattr(owner, "nbytes", 0))
