"""Completion of a configuration: from the description of a model file, and from the values of a model's code."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halimede import config
from halimede.backends.onnx.completion import RULES
from halimede.config import (
    BatchDimension,
    CompletionRules,
    DescribedTensor,
    Description,
    DynamicBatching,
    Profile,
    TensorSpec,
)
from halimede.errors import Internal, Invalid
from halimede.tensors import BYTES, FP32, INT64, Shape
from tests.config.models import IDENTITY, INPUT, OUTPUT, TENSORS, folder_of

ONNX = 'backend: "onnxruntime"'


def draft_of(parent: Path, text: str) -> config.Draft:
    return config.read(folder_of(parent, "m", text))


def described(*shapes: Shape | None) -> Description:
    """A description with inputs `a`, `b`, ... of these shapes, and an output `y` like the first."""
    inputs = tuple(DescribedTensor(name, FP32, shape) for name, shape in zip("abcd", shapes, strict=False))
    return Description(inputs, (DescribedTensor("y", INT64, shapes[0]),), rules=RULES)


def test_model_with_a_batch_dimension_gets_batch_size_batcher_and_tensors(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, ONNX)
    assert draft.needs_description
    completed = draft.complete(described((-1, 3, -1)), 4)
    assert completed.fields == ["max_batch_size", "dynamic_batching", "input", "output"]
    assert completed.warnings == [
        "autofilled max_batch_size to 4 for model 'm' since batching is supporrted but no max_batch_size is specified "
        "in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch size"
    ]
    value = draft.finish()
    assert value.max_batch_size == 4
    assert value.dynamic_batching == DynamicBatching((4,))
    assert value.inputs == (TensorSpec("a", FP32, (3, -1)),)
    assert value.outputs == (TensorSpec("y", INT64, (3, -1)),)
    assert not draft.needs_description


@pytest.mark.parametrize("text", ["", "max_batch_size: 0"])
def test_batch_size_of_0_is_completed_like_an_absent_one(tmp_path: Path, text: str) -> None:
    draft = draft_of(tmp_path, f'backend: "identity" {text}')
    completed = draft.complete(replace(described((-1, 3)), rules=CompletionRules()), 4)
    assert completed.warnings == ["model 'm': max_batch_size is 0 or absent, and is 4 now"]
    assert draft.finish().max_batch_size == 4


@pytest.mark.parametrize(
    ("text", "default", "size", "batcher"),
    [
        ("max_batch_size: 16", 4, 16, DynamicBatching((16,))),
        ("max_batch_size: 1", 4, 1, None),
        ("", 1, 1, None),
        ("", 0, 0, None),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: 2 }", 4, 8, DynamicBatching((2,))),
    ],
)
def test_configured_batch_size_stays(
    tmp_path: Path, text: str, default: int, size: int, batcher: DynamicBatching | None
) -> None:
    draft = draft_of(tmp_path, f"{ONNX} {text}")
    draft.complete(described((-1, 3)), default)
    value = draft.finish()
    assert (value.max_batch_size, value.dynamic_batching) == (size, batcher)


@pytest.mark.parametrize("shape", [(2, 3), (), None])
def test_model_without_batches_gets_its_full_shapes(tmp_path: Path, shape: Shape | None) -> None:
    draft = draft_of(tmp_path, ONNX)
    assert draft.complete(described((-1, 3), shape), 4).warnings == []
    value = draft.finish()
    assert (value.max_batch_size, value.dynamic_batching) == (0, None)
    assert value.inputs[0].dims == (-1, 3)
    assert value.inputs[1] == TensorSpec("b", FP32, shape or (1,))


def test_scalar_of_a_batching_model_is_reshaped(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, ONNX)
    draft.complete(described((-1,), (-1, 2)), 4)
    assert draft.finish().inputs == (TensorSpec("a", FP32, (1,), reshape=()), TensorSpec("b", FP32, (2,)))


def test_batch_size_for_a_model_without_batches_is_refused(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, f"{ONNX} max_batch_size: 8")
    with pytest.raises(Invalid) as caught:
        draft.complete(described((2, 3)), 4)
    assert str(caught.value) == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    )


@pytest.mark.parametrize(
    ("given", "inputs", "outputs"), [(INPUT, ["INPUT0"], ["y"]), (OUTPUT, ["a", "b"], ["OUTPUT0"])]
)
def test_only_the_empty_list_is_filled(tmp_path: Path, given: str, inputs: list[str], outputs: list[str]) -> None:
    draft = draft_of(tmp_path, f"{ONNX} {given}")
    draft.complete(described((-1, 4), (-1, 4)), 4)
    value = draft.finish()
    assert [spec.name for spec in value.inputs] == inputs
    assert [spec.name for spec in value.outputs] == outputs


def test_full_configuration_is_not_changed(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, f"{ONNX} {TENSORS}")
    assert not draft.needs_description
    assert draft.complete(described((-1, 4)), 4).warnings == []
    value = draft.finish()
    assert (value.max_batch_size, value.dynamic_batching, value.inputs[0].name) == (0, None, "INPUT0")


def test_batch_inputs_count_as_inputs(tmp_path: Path) -> None:
    batch_input = 'batch_input { target_name: "N" data_type: TYPE_FP32 source_input: "INPUT0" }'
    assert not draft_of(tmp_path, f"{ONNX} {batch_input} {OUTPUT}").needs_description


def test_optional_tensor_stays_optional(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, ONNX)
    tensors = (DescribedTensor("a", BYTES, (2,), optional=True),)
    draft.complete(Description(tensors, (DescribedTensor("y", FP32, (2,)),)), 4)
    assert draft.finish().inputs == (TensorSpec("a", BYTES, (2,), optional=True),)


def test_missing_values_change_nothing(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, f"max_batch_size: 2 dynamic_batching {{ }} {IDENTITY}")
    before = draft.json()
    draft.update({})
    assert draft.json() == before


def test_new_batch_size_becomes_the_preferred_one_if_none_is_given(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, f"dynamic_batching {{ }} {IDENTITY}")
    draft.update({"max_batch_size": 8})
    assert draft.finish().dynamic_batching == DynamicBatching((8,))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"max_batch_size": -1}, "'max_batch_size' must be non-negative value for m"),
        ({"max_batch_size": 1}, "dynamic batching preferred size must be <= max batch size for m"),
        ({"input": [{"name": "I", "dims": [1]}]}, "model input 'I' must specify 'data_type' for m"),
    ],
)
def test_values_are_checked_like_a_file(tmp_path: Path, values: dict[str, Any], problem: str) -> None:
    draft = draft_of(tmp_path, f"max_batch_size: 2 dynamic_batching {{ }} {IDENTITY}")
    draft.update(values)
    with pytest.raises(Invalid) as caught:
        draft.finish()
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    "values",
    [
        {"max_batch_size": "many"},
        {"max_batch_size": 2**40},
        {"input": 5},
        {"input": [{"name": "I", "data_type": "FP32"}]},
        {"input": [{"name": "I", "size": 3}]},
        {"output": [None]},
        {"dynamic_batching": "yes"},
        {"model_transaction_policy": {"decoupled": 3}},
    ],
)
def test_value_of_a_wrong_type_names_file_and_model(tmp_path: Path, values: dict[str, Any]) -> None:
    draft = draft_of(tmp_path, IDENTITY)
    with pytest.raises(Invalid) as caught:
        draft.update(values)
    assert str(caught.value).startswith(f"{tmp_path}/m/config.pbtxt: model 'm': auto-completed configuration: ")


def test_other_scheduler_than_the_chosen_one_is_refused(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, f"max_batch_size: 2 dynamic_batching {{ }} {IDENTITY}")
    with pytest.raises(Internal) as caught:
        draft.update({"sequence_batching": {}})
    assert str(caught.value) == "Cannot update scheduling choice from 11 to 11 when auto-completing."


def test_controls_and_states_are_not_filled_in_as_inputs_and_outputs(tmp_path: Path) -> None:
    draft = draft_of(
        tmp_path,
        f"""{ONNX} max_batch_size: 4 sequence_batching {{
            control_input {{ name: "b" control {{ kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }} }}
            state {{ input_name: "c" output_name: "d" data_type: TYPE_FP32 dims: 2 }}
        }}""",
    )
    inputs = tuple(DescribedTensor(name, FP32, (-1, 2)) for name in "abc")
    draft.complete(Description(inputs, tuple(DescribedTensor(name, FP32, (-1, 2)) for name in "dy")), 4)
    value = draft.finish()
    assert value.inputs == (TensorSpec("a", FP32, (2,)),)
    assert value.outputs == (TensorSpec("y", FP32, (2,)),)
    assert [spec.name for spec in value.model_inputs] == ["a", "b", "c"]
    assert [spec.name for spec in value.model_outputs] == ["y", "d"]


def rowed(shape: Shape = (-1, 3), layout: str = "") -> Description:
    tensor = DescribedTensor("a", FP32, shape, layout=layout)
    return Description((tensor,), (replace(tensor, name="y"),))


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        (rowed(), BatchDimension.SYMBOLIC),
        (rowed((2, 3)), BatchDimension.NONE),
        (rowed((3, -1), "CN"), BatchDimension.SYMBOLIC),
        (rowed((-1, 3), "HW"), BatchDimension.NONE),
        (rowed((8, 3), "NC"), BatchDimension.FIXED),
        (replace(rowed(), batch=BatchDimension.NONE), BatchDimension.NONE),
    ],
)
def test_batch_dimension_is_told_by_the_backend_layouts_or_shapes(
    description: Description, expected: BatchDimension
) -> None:
    assert description.batch_dimension is expected


def profile(*largest: int) -> Profile:
    return Profile({str(i): ((1, 3), (2, 3), (rows, 3)) for i, rows in enumerate(largest)})


def test_batch_limit_of_a_model_goes_before_the_default(tmp_path: Path) -> None:
    description = replace(rowed(), profiles=(profile(8, 6), profile(4, 16)))
    assert description.batch_limit == 6
    draft = draft_of(tmp_path, ONNX)
    assert "max_batch_size" in draft.complete(description, 4).fields
    assert draft.max_batch_size == 6
    assert replace(description, max_batch_size=2).batch_limit == 2


def test_batch_size_above_the_limit_of_the_model_is_refused(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, f"{ONNX} max_batch_size: 9")
    rules = CompletionRules(too_large="'{model}' wants {given} of {limit}")
    with pytest.raises(Invalid, match="'m' wants 9 of 8"):
        draft.complete(replace(rowed(), max_batch_size=8, rules=rules), 4)


def test_rules_may_warn_of_a_model_without_batches(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, f"{ONNX} max_batch_size: 2")
    rules = CompletionRules(not_batching="'{model}' cannot run {given}", not_batching_fails=False)
    assert draft.complete(replace(rowed((2, 3)), rules=rules), 4).warnings == ["'m' cannot run 2"]


def test_rules_may_fill_and_add_to_lists(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, f"{ONNX} input {{ name: 'b' }} output {{ name: 'y' data_type: TYPE_FP32 dims: 3 }}")
    inputs = tuple(DescribedTensor(name, FP32, (2, -1)) for name in "ab")
    rules = CompletionRules(fills_listed=True, adds_unlisted=True, any_dynamic_makes_all=True, ragged=True)
    completed = draft.complete(replace(rowed((2, 3)), inputs=inputs, rules=rules), 4)
    assert completed.fields == ["input"]
    assert draft.finish().inputs == (
        TensorSpec("b", FP32, (-1, -1)),
        TensorSpec("a", FP32, (-1, -1), allow_ragged_batch=True),
    )


def test_states_without_sequences_are_worth_a_warning(tmp_path: Path) -> None:
    description = replace(rowed(), states=("h", "c"), warnings=("it is old",))
    warnings = draft_of(tmp_path, f"{ONNX} max_batch_size: 2").complete(description, 4).warnings
    assert warnings == [
        "it is old",
        "model 'm' keeps states from one request to the next (h, c), and its requests are not sequences: set "
        "sequence_batching",
    ]
