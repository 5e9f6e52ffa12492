"""The implicit states of a sequence batcher: values and checks (S67, S69).

Reads no file: initial states from files are read when a version loads. Pure, any thread.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from halimede.config.message import Message
from halimede.errors import Invalid
from halimede.tensors import BY_NUMBER, DataType, Shape


@dataclass(frozen=True, slots=True)
class InitialState:
    """A state at the start of its sequence: zeros, or the content of `file` in the model's folder `initial_state`.

    `dims` are without the batch dimension.
    """

    dims: Shape
    file: str | None = None


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A state that the server keeps for each sequence (S67).

    The model reads it as `input_name` and writes the next one as `output_name`. `dims` are without the batch dimension,
    -1 for any size. `same_buffer` and `growable` are hints for Triton's memory (S70).
    """

    input_name: str
    output_name: str
    datatype: DataType
    dims: Shape
    initial: InitialState | None = None
    same_buffer: bool = False
    growable: bool = False


def states_of(message: Message) -> tuple[StateSpec, ...]:
    """The states of a configuration that passed its checks."""
    return tuple(
        StateSpec(
            input_name=state.input_name,
            output_name=state.output_name,
            datatype=BY_NUMBER[state.data_type],
            dims=tuple(state.dims),
            initial=_initial(state.initial_state[0]) if state.initial_state else None,
            same_buffer=state.use_same_buffer_for_input_output,
            growable=state.use_growable_memory,
        )
        for state in message.sequence_batching.state
    )


def _initial(initial: Message) -> InitialState:
    return InitialState(tuple(initial.dims), initial.data_file if initial.HasField("data_file") else None)


def check_states(message: Message) -> None:
    """Raises Invalid for the first problem of the states. Called when a version loads: Triton accepts such a
    configuration, and fails the load.
    """
    for problem in state_problems(message):
        raise Invalid(problem)


def state_problems(message: Message) -> Iterator[str]:
    """Everything for which `check_states` would raise."""
    states = message.sequence_batching.state
    for state in states:
        yield from _initial_problems(state)
    for state in states:
        yield from _state_problems(state, message.name)
    if states:
        yield from _clashes(message)
    yield from _unlike_outputs(message)


def _initial_problems(state: Message) -> Iterator[str]:
    """Initial states, in Triton's order and words (S69)."""
    name, given = state.input_name, state.initial_state
    if len(given) > 1:
        yield (
            f"initial_state field for state input '{name}' must contain exactly one or zero element. Found "
            f"'{len(given)}' elements."
        )
    for initial in given:
        if initial.data_type != state.data_type:
            yield (
                f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
            )
        if not initial.name:
            yield f"Field 'name' must be set when using initial_state for state input '{name}'."
        yield from _dims_problems(name, initial.dims, state.dims)
        if initial.WhichOneof("state_data") is None:
            yield f"initial_state setting expects state'{name}' to have state_data set"


def _dims_problems(name: str, dims: Sequence[int], wanted: Sequence[int]) -> Iterator[str]:
    if len(dims) != len(wanted):
        yield (
            f"Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            f"'{name}'. {len(dims)} != {len(wanted)}"
        )
    for dim, want in zip(dims, wanted, strict=False):
        if dim == -1:
            yield f"'initial_state' field for state input name '{name}' contains variable dimensions."
        if want not in (-1, dim):
            yield (
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. {dim} != {want}"
            )
        if dim < 0:
            yield f"'initial_state' dim for input name '{name}' must not be negative, got {dim}"


def _state_problems(state: Message, model: str) -> Iterator[str]:
    """Fields that Triton does not check; it crashes later, or hands out uninitialized memory. The texts are ours."""
    for field in ("input_name", "output_name"):
        if not getattr(state, field):
            yield f"sequence batching state must specify '{field}' for {model}"
    if state.data_type not in BY_NUMBER:
        yield f"sequence batching state '{state.input_name}' must specify 'data_type' for {model}"
    if any(dim < -1 for dim in state.dims):
        yield (
            f"sequence batching state '{state.input_name}' dimension must be integer >= 0, or -1 to indicate a "
            f"variable-size dimension for {model}"
        )


def _clashes(message: Message) -> Iterator[str]:
    """Names that a state shares with an input, a control or another state."""
    batching, model = message.sequence_batching, message.name
    taken = {spec.name: "an input" for spec in message.input}
    taken |= {control.name: "a control" for control in batching.control_input}
    for state in batching.state:
        if state.input_name in taken:
            yield f"sequence batching state input '{state.input_name}' is also {taken[state.input_name]} of {model}"
    for field in ("input_name", "output_name"):
        name, count = Counter(getattr(state, field) for state in batching.state).most_common(1)[0]
        if count > 1:
            yield f"'{name}' is the '{field}' of {count} sequence batching states for {model}"


def _unlike_outputs(message: Message) -> Iterator[str]:
    """A state may also be an output, so that clients see it (S67). Both must then describe the same tensor."""
    outputs = {spec.name: spec for spec in message.output}
    for state in message.sequence_batching.state:
        spec = outputs.get(state.output_name)
        if spec is None:
            continue
        dims = spec.reshape.shape if spec.HasField("reshape") else spec.dims
        if (spec.data_type, list(dims)) != (state.data_type, list(state.dims)):
            yield (
                f"output '{spec.name}' of {message.name} is a sequence batching state, and must have its 'data_type' "
                "and 'dims'"
            )
