import base64
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.errors import Invalid
from halimede.perf.data import Step, Value, framed, from_directory, from_json, generated
from halimede.perf.model import TensorInfo
from halimede.tensors import BOOL, BYTES, FP32, INT32

A = TensorInfo("A", FP32, (2,))
S = TensorInfo("S", BYTES, (1,), is_optional=True)
O = TensorInfo("O", INT32, (-1,))  # noqa: E741
INPUTS = {"A": A, "S": S}


def read(tmp_path: Path, document: Any, **inputs: TensorInfo) -> list[list[Step]]:
    file = tmp_path / "data.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    streams: list[list[Step]] = []
    from_json(file, inputs or INPUTS, {"O": O}, streams)
    return streams


def test_generated_floats_are_numbers_from_0_to_1() -> None:
    ((step,),) = generated({"A": TensorInfo("A", FP32, (500,))}, False, 8, "", random.Random(1))
    values = np.frombuffer(step.inputs["A"].content, np.float32)
    assert 0 <= values.min() < 0.1 < 0.9 < values.max() <= 1


def test_generated_bools_are_0_or_1_and_zero_is_zero() -> None:
    ((step,),) = generated({"A": TensorInfo("A", BOOL, (99,))}, False, 8, "", random.Random(1))
    assert set(step.inputs["A"].content) == {0, 1}
    ((step,),) = generated({"A": A}, True, 8, "", random.Random(1))
    assert step.inputs["A"] == Value((2,), bytes(8))


def test_generated_strings_have_their_length_or_text() -> None:
    info = {"S": TensorInfo("S", BYTES, (2,))}
    ((step,),) = generated(info, False, 5, "", random.Random(1))
    assert len(step.inputs["S"].content) == 2 * (4 + 5)
    ((step,),) = generated(info, False, 5, "ab", random.Random(1))
    assert step.inputs["S"].content == framed([b"ab", b"ab"])


def test_generated_data_need_shapes() -> None:
    with pytest.raises(Invalid, match="input O contains dynamic shape, provide shapes to send along with the request"):
        generated({"O": O}, False, 5, "", random.Random(1))


@pytest.mark.parametrize(
    "given",
    [
        [1.5, -2.0],
        [[1.5], [-2.0]],
        {"content": [1.5, -2.0]},
        {"content": [1.5, -2.0], "shape": [2]},
        {"b64": base64.b64encode(np.array([1.5, -2.0], np.float32).tobytes()).decode()},
        {"content": {"b64": base64.b64encode(np.array([1.5, -2.0], np.float32).tobytes()).decode()}},
    ],
)
def test_forms_of_a_tensor(tmp_path: Path, given: Any) -> None:
    ((step,),) = read(tmp_path, {"data": [{"A": given}]})
    assert step.inputs == {"A": Value((2,), np.array([1.5, -2.0], np.float32).tobytes())}


def test_strings_are_framed_and_shapes_may_vary(tmp_path: Path) -> None:
    data = [{"A": [1, 2], "S": ["ü"]}, {"A": [1, 2]}]
    ((first, second),) = read(tmp_path, {"data": data})
    assert first.inputs["S"].content == framed(["ü".encode()])
    assert "S" not in second.inputs
    ((step,),) = read(tmp_path, {"data": [{"O": {"content": [1, 2, 3], "shape": [3]}}]}, O=O)
    assert step.inputs["O"].shape == (3,)


def test_lists_are_streams_with_what_must_come(tmp_path: Path) -> None:
    step = {"A": [1, 2]}
    expected = {"O": {"content": [7], "shape": [1]}}
    streams = read(tmp_path, {"data": [[step, step], [step]], "validation_data": [[expected, expected], [expected]]})
    assert [len(stream) for stream in streams] == [2, 1]
    assert streams[1][0].expected == {"O": Value((1,), np.array([7], np.int32).tobytes())}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("{", "failed to parse the specified json file for reading provided data"),
        ({}, "The json file doesn't contain data field"),
        ({"data": [{"A": [1, 2], "Z": [1]}]}, "The input or output 'Z' is not found in the model configuration"),
        ({"data": [{}]}, r"missing tensor A \( Location stream id: 0, step id: 0\)"),
        ({"data": [{"A": 5}]}, "Input data file is malformed."),
        ({"data": [{"A": [1]}]}, "mismatch in the data provided for A. Expected: 8 bytes, Got: 4 bytes"),
        ({"data": [{"A": ["x", "y"]}]}, "the values of A are no FP32"),
        ({"data": [{"A": {"shape": [2]}}]}, "missing content field"),
        ({"data": [{"A": {"b64": 5}}]}, "the value of b64 field should be of type string"),
        ({"data": [{"A": {"content": "x"}}]}, "The tensor values are not supported. Expected an array or b64 string"),
        (
            {"data": [{"A": {"content": [1], "shape": [1]}}]},
            r'The supplied shape of \[1\] for input "A" is incompatible',
        ),
        ({"data": [{"A": {"content": [1], "shape": ["1"]}}]}, "shape values must be integers."),
        ({"data": [{"A": [1, 2]}, [{"A": [1, 2]}]]}, "Inconsistency in input-data provided"),
        ({"data": [{"A": [1, 2]}], "validation_data": []}, "doesn't align with 'data' field"),
    ],
)
def test_wrong_data_are_refused(tmp_path: Path, document: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        read(tmp_path, document)


def test_variable_shape_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="needs to have its shape fully defined"):
        read(tmp_path, {"data": [{"O": [1]}]}, O=O)


def test_directory_has_a_file_for_each_input(tmp_path: Path) -> None:
    (tmp_path / "A").write_bytes(bytes(8))
    (tmp_path / "S").write_text("text\n")
    ((step,),) = from_directory(tmp_path, INPUTS, {})
    assert step.inputs == {"A": Value((2,), bytes(8)), "S": Value((1,), framed([b"text"]))}
    (tmp_path / "A").write_bytes(bytes(7))
    with pytest.raises(Invalid, match="provided data for input A has byte size 7, expect 8"):
        from_directory(tmp_path, INPUTS, {})
    (tmp_path / "X").touch()
    with pytest.raises(Invalid, match="Provided data file 'X' does not correspond to a valid model input or output"):
        from_directory(tmp_path, INPUTS, {})
