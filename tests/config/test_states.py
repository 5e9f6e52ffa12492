"""The implicit states of a configuration: their values, and the texts about bad ones."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from halimede.config.states import InitialState, StateSpec, check_states, states_of
from halimede.errors import Invalid
from halimede.tensors import BYTES, FP32, INT32

STATE = 'input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: [ 2, -1 ]'
INITIAL = 'name: "i" data_type: TYPE_INT32 dims: [ 2, 3 ]'
HEAD = """
    name: "m"
    input { name: "IN" data_type: TYPE_INT32 dims: 1 }
    output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
"""


def message_of(states: str, rest: str = "") -> object:
    text = f"{HEAD} sequence_batching {{ {states} {rest} }}"
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def state(text: str) -> str:
    return f"state {{ {text} }}"


def test_state_with_all_fields_is_read() -> None:
    message = message_of(
        state(f'{STATE} initial_state {{ {INITIAL} data_file: "start.bin" }}')
        + state('input_name: "T" output_name: "T2" data_type: TYPE_STRING use_same_buffer_for_input_output: true')
        + state(
            'input_name: "Z" output_name: "Z2" data_type: TYPE_FP32 dims: 0 use_growable_memory: true '
            'initial_state { name: "i" data_type: TYPE_FP32 dims: 0 zero_data: true }'
        )
    )
    check_states(message)
    assert states_of(message) == (
        StateSpec("SI", "SO", INT32, (2, -1), InitialState((2, 3), "start.bin")),
        StateSpec("T", "T2", BYTES, (), same_buffer=True),
        StateSpec("Z", "Z2", FP32, (0,), InitialState((0,)), growable=True),
    )


def test_model_without_states() -> None:
    message = message_of("")
    check_states(message)
    assert states_of(message) == ()


INITIAL_PROBLEMS = {
    f"initial_state {{ {INITIAL} zero_data: true }} initial_state {{ }}": (
        "initial_state field for state input 'SI' must contain exactly one or zero element. Found '2' elements."
    ),
    "initial_state { data_type: TYPE_FP32 dims: -1 }": (
        "The data type used for 'initial_state' field of state 'SI' does not match the state data type."
    ),
    "initial_state { data_type: TYPE_INT32 dims: -1 }": (
        "Field 'name' must be set when using initial_state for state input 'SI'."
    ),
    'initial_state { name: "i" data_type: TYPE_INT32 dims: -1 }': (
        "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'SI'. "
        "1 != 2"
    ),
    'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 3, -1 ] }': (
        "'initial_state' dim for input name 'SI' doesn't match 'state' dim description. 3 != 2"
    ),
    'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 2, -1 ] }': (
        "'initial_state' field for state input name 'SI' contains variable dimensions."
    ),
    'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 2, -7 ] zero_data: true }': (
        "'initial_state' dim for input name 'SI' must not be negative, got -7"
    ),
    f"initial_state {{ {INITIAL} }}": "initial_state setting expects state'SI' to have state_data set",
}


@pytest.mark.parametrize(("text", "words"), INITIAL_PROBLEMS.items(), ids=range(len(INITIAL_PROBLEMS)))
def test_bad_initial_state_is_refused(text: str, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_states(message_of(state(f"{STATE} {text}")))
    assert caught.value.message == words


STATE_PROBLEMS = {
    'output_name: "SO" data_type: TYPE_INT32': "sequence batching state must specify 'input_name' for m",
    'input_name: "SI" data_type: TYPE_INT32': "sequence batching state must specify 'output_name' for m",
    'input_name: "SI" output_name: "SO"': "sequence batching state 'SI' must specify 'data_type' for m",
    'input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: -2': (
        "sequence batching state 'SI' dimension must be integer >= 0, or -1 to indicate a variable-size dimension for m"
    ),
    'input_name: "IN" output_name: "SO" data_type: TYPE_INT32': (
        "sequence batching state input 'IN' is also an input of m"
    ),
    'input_name: "START" output_name: "SO" data_type: TYPE_INT32': (
        "sequence batching state input 'START' is also a control of m"
    ),
    'input_name: "SI" output_name: "OUT" data_type: TYPE_INT32 dims: 2': (
        "output 'OUT' of m is a sequence batching state, and must have its 'data_type' and 'dims'"
    ),
}


@pytest.mark.parametrize(("text", "words"), STATE_PROBLEMS.items(), ids=range(len(STATE_PROBLEMS)))
def test_bad_state_is_refused(text: str, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_states(message_of(state(text), 'control_input { name: "START" }'))
    assert caught.value.message == words


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ('input_name: "SI" output_name: "other"', "'SI' is the 'input_name' of 2 sequence batching states for m"),
        ('input_name: "other" output_name: "SO"', "'SO' is the 'output_name' of 2 sequence batching states for m"),
    ],
)
def test_two_states_with_one_name(second: str, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_states(message_of(state(STATE) + state(f"{second} data_type: TYPE_INT32")))
    assert caught.value.message == words


def test_a_state_may_be_an_output_too() -> None:
    check_states(message_of(state('input_name: "SI" output_name: "OUT" data_type: TYPE_INT32 dims: 1')))
