"""Reads the initial implicit states of sequences from the configuration and the model's files (S68 to S70).

Runs on a load thread; reads files.
"""

import os
from math import prod
from pathlib import Path

from halimede.config import ModelConfig
from halimede.config.files import read_whole
from halimede.config.states import StateSpec
from halimede.errors import Error, Internal, Invalid
from halimede.scheduling.states import ModelState, ModelStates
from halimede.tensors import BYTES, HostMemory, Tensor, split_bytes

FOLDER = "initial_state"
"""The folder within a model's folder that has the files of initial states."""
_EMPTY_STRING_SIZE = 4
"""Bytes of an empty string in a BYTES tensor: its length."""


def states_for(config: ModelConfig, folder: Path) -> ModelStates | None:
    """The states, or None if the model has none. Raises Error if an initial state cannot be read."""
    specs = config.states
    # Most models have no states: no file is looked for.
    if not specs:
        return None
    lead = (1,) if config.max_batch_size else ()
    states = [_state(spec, lead, config.name, folder) for spec in specs]
    outputs = frozenset(spec.name for spec in config.outputs)
    listed = frozenset(spec.output_name for spec in specs if spec.output_name in outputs)
    return ModelStates(config.name, states, listed, _problem(specs))


def _state(spec: StateSpec, lead: tuple[int, ...], model: str, folder: Path) -> ModelState:
    """A state without an initial value is zeros, with one element in each dimension of variable size.

    Triton leaves it uninitialized.
    """
    dims = spec.initial.dims if spec.initial else tuple(1 if dim == -1 else dim for dim in spec.dims)
    size = prod(dims) * (spec.datatype.size or _EMPTY_STRING_SIZE)
    file = spec.initial.file if spec.initial else None
    data = bytes(size) if file is None else _of_file(spec, file, size, model, folder)
    initial = Tensor(spec.input_name, spec.datatype, lead + dims, HostMemory(data))
    return ModelState(spec.input_name, spec.output_name, spec.datatype, lead + spec.dims, initial)


def _of_file(spec: StateSpec, file: str, size: int, model: str, folder: Path) -> bytes:
    """Reads an initial state. A client may have sent the configuration, so the file must be in the folder."""
    # Triton appends the name to the folder as text, so a leading slash does not lead out of it.
    name = file.lstrip("/")
    if os.pardir in Path(name).parts:
        raise Invalid(f"'data_file' must stay within the folder '{FOLDER}' for {model}, got '{file}'")
    path = folder / FOLDER / name
    try:
        data = read_whole(path)
    except OSError as error:
        raise Internal(f"failed to open text file for read {path}: {error.strerror}") from error
    if len(data) < size:
        raise Invalid(
            f"initial_state setting expects {size} bytes, but the data provided from {file}only has {len(data)} bytes."
        )
    if spec.datatype is not BYTES:  # the file may be longer, as in Triton
        return data[:size]
    assert spec.initial is not None
    try:
        split_bytes(data, prod(spec.initial.dims))
    except Error as error:
        raise Invalid(f"the initial state '{spec.input_name}' of {model} from {file}: {error.message}") from error
    return data


def _problem(specs: tuple[StateSpec, ...]) -> str:
    """What Triton finds wrong when a sequence starts. Unlike Triton, this server needs no GPU for growable memory."""
    for spec in specs:
        if spec.growable and not spec.same_buffer:
            return (
                "Failed to initialize sequence state: In order to 'use_growable_memory', you must also enable "
                f"'use_single_buffer' for state input name '{spec.input_name}'."
            )
    return ""
