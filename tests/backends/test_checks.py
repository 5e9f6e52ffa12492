"""The checks of a configuration against an ONNX model, word by word (contract R74)."""

from dataclasses import replace

import pytest

from halimede.backends.checks import check, problems
from halimede.config.model_config import DescribedTensor, Description, ModelConfig, TensorSpec
from halimede.config.sequencing import Control, ControlKind, DirectStrategy, SequenceBatching
from halimede.config.states import StateSpec
from halimede.errors import Invalid
from halimede.tensors import DATATYPES, FP32, INT32, Shape
from tests.backends.fakes import model_config, spec


def tensor(name: str, shape: Shape | None, datatype: str = "FP32", optional: bool = False) -> DescribedTensor:
    return DescribedTensor(name, DATATYPES[datatype], shape, optional)


def described(input_shape: Shape | None, output_shape: Shape | None = (-1, 4)) -> Description:
    return Description((tensor("x", input_shape),), (tensor("y", output_shape),))


X, Y = spec("x", "FP32", [4]), spec("y", "FP32", [4])


def refusal(
    model: Description, inputs: list[TensorSpec], outputs: list[TensorSpec] | None = None, max_batch_size: int = 8
) -> str:
    with pytest.raises(Invalid) as caught:
        check(model_config(inputs, [Y] if outputs is None else outputs, max_batch_size), model)
    return caught.value.message


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([X, spec("z", "FP32", [4])], "configuration expects 2 inputs, model provides 1"),
        ([], "configuration expects 0 inputs, model provides 1"),
    ],
)
def test_check_number_of_inputs(inputs: list[TensorSpec], expected: str) -> None:
    assert refusal(described((-1, 4)), inputs) == f"unable to load model 'm', {expected}"


def test_check_unknown_input() -> None:
    model = Description((tensor("b", (-1, 4)), tensor("a", (-1, 4))), (tensor("y", (-1, 4)),))
    message = refusal(model, [X, spec("a", "FP32", [4])])
    assert message == "unexpected inference input 'x', allowed inputs are: a, b"


def test_check_unknown_output() -> None:
    message = refusal(described((-1, 4)), [X], [spec("z", "FP32", [4])])
    assert message == "unexpected inference output 'z', allowed outputs are: y"


def test_check_datatype_of_an_input() -> None:
    assert refusal(described((-1, 4)), [spec("x", "INT64", [4])]) == (
        "unable to load model 'm', configuration expects datatype TYPE_INT64 for input 'x', model provides TYPE_FP32"
    )


def test_check_datatype_of_an_output() -> None:
    assert refusal(described((-1, 4)), [X], [spec("y", "BYTES", [4])]) == (
        "unable to load model 'm', configuration expects datatype TYPE_STRING for output 'y', model provides TYPE_FP32"
    )


@pytest.mark.parametrize(("shape", "text"), [((1, 4), "[1,4]"), ((), "[]")])
def test_check_model_without_a_batch_dimension(shape: Shape, text: str) -> None:
    assert refusal(described(shape), [X]) == (
        "model 'm', tensor 'x': for the model to support batching the shape should have at least 1 dimension and the "
        f"first dimension must be -1; but shape expected by the model is {text}"
    )


def test_check_dimensions_of_a_batching_model() -> None:
    assert refusal(described((-1, 4)), [spec("x", "FP32", [4, 2])]) == (
        "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,4]) but the model configuration specifies 3 "
        "dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
        "making complete shape [-1,4,2])"
    )


def test_check_dimensions_without_batching() -> None:
    assert refusal(described((91, 4), (91, 4)), [spec("x", "FP32", [-1, 4])], max_batch_size=0) == (
        "model 'm', tensor 'x': the model expects 2 dimensions (shape [91,4]) but the model configuration specifies 2 "
        "dimensions (shape [-1,4])"
    )


@pytest.mark.rows("BO4")
@pytest.mark.parametrize("dims", [[1], [1, 1]])
def test_check_scalar_takes_any_number_of_ones(dims: list[int]) -> None:
    check(model_config([spec("x", "FP32", dims)], [spec("y", "FP32", dims)], 0), described((), ()))


@pytest.mark.rows("BO4")
@pytest.mark.parametrize(("dims", "text"), [([2], "[2]"), ([1, 2], "[1,2]"), ([-1], "[-1]")])
def test_check_scalar_with_other_dims(dims: list[int], text: str) -> None:
    assert refusal(described((), ()), [spec("x", "FP32", dims)], max_batch_size=0) == (
        "unable to load model 'm', scalar tensor 'x', should only provide 1 in the model configuration when the model "
        f"doesn't support batching. Model configuration provided: {text}."
    )


def test_check_size_fixed_where_the_model_takes_any() -> None:
    check(model_config([X], [Y], 8), described((-1, -1)))
    message = refusal(described((-1, 4), (-1, -1)), [X])
    assert "tensor 'y': the model expects 2 dimensions (shape [-1,-1])" in message


def test_check_reshape_is_what_the_model_sees() -> None:
    check(model_config([spec("x", "FP32", [1], reshape=[])], [Y], 8), described((-1,)))
    check(model_config([spec("x", "FP32", [2, 2], reshape=[4])], [Y], 8), described((-1, 4)))


def test_check_unknown_rank_fits_anything() -> None:
    check(model_config([spec("x", "FP32", [2, 3])], [Y], 8), described(None))
    check(model_config([spec("x", "FP32", [2, 3])], [Y], 0), described(None, (4,)))


def test_check_optional_input() -> None:
    model = Description((tensor("x", (4,)), tensor("w", (4,), optional=True)), (tensor("y", (4,)),))
    check(model_config([X], [Y]), model)
    check(model_config([X, spec("w", "FP32", [4], optional=True)], [Y]), model)
    three = [X, spec("w", "FP32", [4]), spec("z", "FP32", [4])]
    assert refusal(model, three, max_batch_size=0) == (
        "unable to load model 'm', configuration expects 3 inputs, model provides 2"
    )


def test_check_optional_input_with_batching() -> None:
    assert refusal(described((-1, 4)), [spec("x", "FP32", [4], optional=True)]) == (
        "unable to load model 'm', optional input 'x' is not supported for models that support batching"
    )


# ---- what the server adds to the requests of a sequence, and what it keeps


def of_a_sequence(*states: StateSpec, control: Control | None = None) -> ModelConfig:
    batching = SequenceBatching(DirectStrategy(), controls=(control,) if control else (), states=states)
    return replace(model_config([X], [Y], 8), sequence_batching=batching)


STATE = StateSpec("s", "t", FP32, (3,))
START = Control(ControlKind.START, "START", INT32)


def stateful(read: Shape | None = (-1, 3), written: Shape | None = (-1, 3), datatype: str = "FP32") -> Description:
    inputs = (tensor("x", (-1, 4)), tensor("START", (-1, 1), "INT32"), tensor("s", read, datatype))
    return Description(inputs, (tensor("y", (-1, 4)), tensor("t", written, datatype)))


@pytest.mark.parametrize(("read", "written"), [((-1, 3), (-1, 3)), ((-1, -1), (-1, -1)), (None, None)])
def test_check_takes_controls_and_states_for_inputs_of_the_model(read: Shape | None, written: Shape | None) -> None:
    check(of_a_sequence(STATE, control=START), stateful(read, written))


@pytest.mark.parametrize(
    ("config", "model", "expected"),
    [
        (
            of_a_sequence(STATE),
            stateful(),
            "unable to load model 'm', configuration expects 2 inputs, model provides 3",
        ),
        (
            of_a_sequence(replace(STATE, input_name="z"), control=START),
            stateful(),
            "unexpected inference input 'z', allowed inputs are: START, s, x",
        ),
        (
            of_a_sequence(replace(STATE, output_name="z"), control=START),
            stateful(),
            "unexpected inference output 'z', allowed outputs are: t, y",
        ),
        (
            of_a_sequence(STATE, control=START),
            stateful(datatype="INT32"),
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 's', model provides "
            "TYPE_INT32",
        ),
        (
            of_a_sequence(STATE, control=replace(START, datatype=FP32)),
            stateful(),
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'START', model provides "
            "TYPE_INT32",
        ),
        (
            of_a_sequence(STATE, control=START),
            stateful(written=(-1, 5)),
            "model 'm', tensor 't': the model expects 2 dimensions (shape [-1,5]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,3])",
        ),
    ],
    ids=["count", "input", "output", "datatype", "control", "shape"],
)
def test_check_of_a_sequence(config: ModelConfig, model: Description, expected: str) -> None:
    with pytest.raises(Invalid) as caught:
        check(config, model)
    assert caught.value.message == expected


def test_all_problems_are_told_and_a_load_stops_at_the_first() -> None:
    inputs = [spec("a", "FP32", [4]), spec("x", "INT8", [4])]
    config = model_config(inputs, [spec("y", "FP32", [5])], 8)
    told = [problem.message for problem in problems(config, described((-1, 4)))]
    words = ["expects 2 inputs", "'a'", "TYPE_INT8", "[-1,5]"]
    assert [word in each for word, each in zip(words, told, strict=True)] == [True] * len(words)
    assert refusal(described((-1, 4)), inputs, [spec("y", "FP32", [5])]) == told[0]
