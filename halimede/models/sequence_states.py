"""What the sequences of a model version start with: the implicit states of its configuration, and the files that hold
their first values (contract S68 to S70). On a load thread; reads files.
"""

import os
from math import prod
from pathlib import Path

from halimede.config import ModelConfig
from halimede.config.files import read_whole
from halimede.config.states import StateSpec
from halimede.errors import Error, Internal, Invalid
from halimede.scheduling.states import ModelStates, State
from halimede.tensors import BYTES, HostMemory, Tensor, split_bytes

FOLDER = "initial_state"
"""Of a model, where the files of its initial states lie."""
_EMPTY_STRING = 4


def states_for(config: ModelConfig, folder: Path) -> ModelStates | None:
    """None for a model without. Raises Error where an initial state cannot be read."""
    specs = config.states
    if not specs:
        return None
    lead = (1,) if config.max_batch_size else ()
    states = [_state(spec, lead, config.name, folder) for spec in specs]
    outputs = frozenset(spec.name for spec in config.outputs)
    listed = frozenset(spec.output_name for spec in specs if spec.output_name in outputs)
    return ModelStates(config.name, states, listed, _problem(specs))


def _state(spec: StateSpec, lead: tuple[int, ...], model: str, folder: Path) -> State:
    """Without an initial state it is zeros, of one element where any size goes. The real server leaves what the memory
    held before."""
    dims = spec.initial.dims if spec.initial else tuple(1 if dim == -1 else dim for dim in spec.dims)
    size = prod(dims) * (spec.datatype.size or _EMPTY_STRING)
    file = spec.initial.file if spec.initial else None
    data = bytes(size) if file is None else _of_file(spec, file, size, model, folder)
    initial = Tensor(spec.input_name, spec.datatype, lead + dims, HostMemory(data))
    return State(spec.input_name, spec.output_name, spec.datatype, lead + spec.dims, initial)


def _of_file(spec: StateSpec, file: str, size: int, model: str, folder: Path) -> bytes:
    """A configuration may come from afar: it reads what lies in the folder, and nothing else."""
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
    if spec.datatype is not BYTES:
        return data[:size]
    assert spec.initial is not None
    try:
        split_bytes(data, prod(spec.initial.dims))
    except Error as error:
        raise Invalid(f"the initial state '{spec.input_name}' of {model} from {file}: {error.message}") from error
    return data


def _problem(specs: tuple[StateSpec, ...]) -> str:
    """What the real server notices when a sequence starts. It wants a GPU for memory that can grow; here any does."""
    for spec in specs:
        if spec.growable and not spec.same_buffer:
            return (
                "Failed to initialize sequence state: In order to 'use_growable_memory', you must also enable "
                f"'use_single_buffer' for state input name '{spec.input_name}'."
            )
    return ""
