"""How signatures complete configurations, and which configurations they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest

from halimede.backends.tensorflow.checks import describe_signature, problems
from halimede.backends.tensorflow.signatures import Signature, SignatureTensor
from halimede.config import read_override
from halimede.config.model_config import BatchDimension
from halimede.errors import Invalid
from halimede.tensors import DATATYPES, Shape
from tests.backends.fakes import model_config, spec


def tensor(name: str, datatype: str, shape: Shape | None) -> SignatureTensor:
    return SignatureTensor(name, f"{name}:0", DATATYPES.get(datatype), datatype, shape)


ROWS = Signature("s", (tensor("x", "FP32", (-1, 4)), tensor("z", "INT32", (-1,))), (tensor("y", "FP32", (-1, 2)),))
FIXED = Signature("s", (tensor("x", "FP32", (1, 4)),), (tensor("y", "FP32", (-1, 2)),))


def completed(signature: Signature, **given: Any) -> Any:
    """The configuration after its completion, as JSON values."""
    draft = read_override(json.dumps({"name": "m", "backend": "any", **given}), Path("m"))
    lists = (given.get("input", []), given.get("output", []))
    draft.complete(describe_signature(signature, "m", lists[0], lists[1], "model.savedmodel"), 4)
    return json.loads(draft.json())


def tensors(config: Any, field: str) -> list[tuple[str, str, list[int]]]:
    return [(each["name"], each["data_type"], each["dims"]) for each in config[field]]


@pytest.mark.rows("BF4", "BF5")
def test_model_without_a_configuration_is_completed_with_batches() -> None:
    config = completed(ROWS)
    assert (config["max_batch_size"], "dynamic_batching" in config) == (4, True)
    assert tensors(config, "input") == [("x", "TYPE_FP32", [4]), ("z", "TYPE_INT32", [1])]
    assert config["input"][1]["reshape"] == {"shape": []}
    assert tensors(config, "output") == [("y", "TYPE_FP32", [2])]


@pytest.mark.rows("BF5")
def test_inputs_are_added_and_outputs_are_not() -> None:
    signature = Signature("s", ROWS.inputs, (*ROWS.outputs, tensor("other", "FP32", (-1, 2))))
    config = completed(signature, input=[{"name": "z"}], output=[{"name": "y"}])
    assert tensors(config, "input") == [("z", "TYPE_INT32", [1]), ("x", "TYPE_FP32", [4])]
    assert tensors(config, "output") == [("y", "TYPE_FP32", [2])]


@pytest.mark.rows("BF5")
def test_full_configuration_gets_batches_too() -> None:
    given: list[dict[str, Any]] = [{"name": name, "data_type": "TYPE_FP32", "dims": [4]} for name in ("x", "z")]
    given[1] |= {"dims": [1], "reshape": {"shape": []}}
    config = completed(ROWS, input=given, output=[{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}])
    assert config["max_batch_size"] == 4


@pytest.mark.rows("BF4")
def test_dims_with_the_batch_mean_no_batches() -> None:
    config = completed(ROWS, input=[{"name": "x", "dims": [-1, 4]}])
    assert config["max_batch_size"] == 0
    assert tensors(config, "input") == [("x", "TYPE_FP32", [-1, 4]), ("z", "TYPE_INT32", [-1])]


@pytest.mark.rows("BF4")
@pytest.mark.parametrize(
    ("signature", "given", "text"),
    [
        (
            FIXED,
            {"max_batch_size": 8},
            "unable to autofill for 'm', configuration specified max-batch 8 but model signature does not support "
            "batching",
        ),
        (
            ROWS,
            {"input": [{"name": "x", "dims": [4]}, {"name": "z", "dims": [1]}]},
            "unable to autofill for 'm', model tensor configurations are contradicting each other in terms of whether "
            "batching is supported",
        ),
    ],
)
def test_batches_that_the_signature_does_not_have_are_refused(signature: Signature, given: Any, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        completed(signature, **given)
    assert caught.value.message == text


@pytest.mark.rows("BF5", "BF8")
@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        (
            (tensor("x", "FP32", None),),
            (),
            "Unable to autofill for 'm': the rank of model tensor 'x' is 0 and dimensions are not defined",
        ),
        (
            (),
            (tensor("y", "FP32", None),),
            "Unable to autofill for 'm': the rank of model tensor 'y' is 0 which is not supported",
        ),
        (
            (tensor("x", "DT_COMPLEX64", (-1,)),),
            (),
            "unable to process input 'x' for 'm', unsupported datatype 'DT_COMPLEX64'",
        ),
    ],
)
def test_tensor_that_cannot_be_completed_is_named(
    inputs: tuple[SignatureTensor, ...], outputs: tuple[SignatureTensor, ...], text: str
) -> None:
    with pytest.raises(Invalid) as caught:
        completed(Signature("s", inputs, outputs))
    assert caught.value.message == text


def test_unknown_rank_takes_the_dims_of_the_configuration() -> None:
    signature = Signature("s", (tensor("x", "FP32", None),), (tensor("y", "FP32", (-1, 2)),))
    config = completed(signature, input=[{"name": "x", "dims": [3]}])
    assert tensors(config, "input") == [("x", "TYPE_FP32", [3])]


def test_ragged_input_means_batches() -> None:
    signature = Signature("s", (tensor("x", "FP32", (-1,)),), (tensor("y", "FP32", (-1,)),))
    given = [{"name": "x", "dims": [-1], "allow_ragged_batch": True}]
    description = describe_signature(signature, "m", given, [{"name": "y", "dims": [-1]}], "")
    assert description.batch is BatchDimension.SYMBOLIC


X, Y = spec("x", "FP32", [4]), spec("y", "FP32", [2])


@pytest.mark.rows("BF6")
@pytest.mark.parametrize(
    ("inputs", "output", "text"),
    [
        ([X], Y, "unable to load model 'm', configuration expects 1 inputs, model provides 2"),
        ([X, spec("q", "FP32", [1])], Y, "unexpected inference input 'q', allowed inputs are: x, z"),
        (
            [X, spec("z", "FP32", [])],
            Y,
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'z', model provides "
            "TYPE_INT32",
        ),
        (
            [X, spec("z", "INT32", [])],
            spec("y", "FP32", [-1]),
            "model 'm', tensor 'y': the model expects 2 dimensions (shape [-1,2]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,-1])",
        ),
    ],
)
def test_configuration_that_does_not_fit_a_signature(inputs: list[Any], output: Any, text: str) -> None:
    found = [each.message for each in problems(model_config(inputs, [output], 4), ROWS, False)]
    assert text in found


@pytest.mark.rows("BF7")
def test_graph_is_compared_by_names_only() -> None:
    other = spec("x", "INT64", [9, 9])
    assert not list(problems(model_config([other], [Y], 4), ROWS, True))
    more = [other, spec("z", "BYTES", [1]), spec("q", "FP32", [1])]
    assert [each.message for each in problems(model_config(more, [spec("n", "FP32", [1])], 0), ROWS, True)] == [
        "unexpected inference input 'q', allowed inputs are: x, z",
        "unexpected inference output 'n', allowed outputs are: y",
        "unable to load model 'm', configuration expects 3 inputs, model provides at most 2",
    ]
