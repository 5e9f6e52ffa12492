import json
from typing import Any

import numpy as np
import pytest

from halimede.devtools.outputs import response_json, response_text, timing_text
from halimede.errors import Invalid
from halimede.requests import InferResponse
from halimede.tensors import BF16, BYTES, FP16, FP32, DataType, HostMemory, Tensor, tensor_of


def response(datatype: DataType, array: Any, **parameters: Any) -> InferResponse:
    return InferResponse("", "m", 1, [tensor_of("Y", datatype, np.array(array, datatype.numpy))], parameters)


@pytest.mark.parametrize(
    ("datatype", "array", "text"),
    [
        (FP32, [[1.5, -2.0]], "Y: FP32 [1, 2]\n  [[ 1.5, -2. ]]"),
        (BF16, [0x3F80, 0xC020], "Y: BF16 [2]\n  [ 1. , -2.5]"),
        (BYTES, [b"a\n", "é".encode(), b"\xff"], "Y: BYTES [3]\n  ['a\\n', 'é', b'\\xff']"),
        (FP32, [], "Y: FP32 [0]\n  []"),
    ],
)
def test_output_is_shown_with_name_type_and_values(datatype: DataType, array: Any, text: str) -> None:
    assert response_text(response(datatype, array)) == text


def test_long_outputs_are_shortened() -> None:
    text = response_text(response(FP32, np.arange(10_000)))
    assert text.startswith("Y: FP32 [10000]\n")
    assert "..." in text
    assert len(text) < 300
    text = response_text(response(BYTES, [b"x" * 5000]))
    assert "... (5000 bytes)" in text
    assert len(text) < 300


def test_parameters_and_empty_responses_are_shown() -> None:
    assert response_text(response(FP32, [1], k="v")).endswith("\nparameter k = 'v'")
    assert response_text(InferResponse("", "m", 1, [])) == "(no outputs)"


def test_output_with_missing_bytes_is_an_error() -> None:
    broken = InferResponse("", "m", 1, [Tensor("Y", FP32, (3,), HostMemory(b"1234"))])
    assert response_text(broken) == "Y: FP32 [3]: tensor 'Y' has 4 bytes, which do not fill [3]"


def test_json_is_that_of_http() -> None:
    assert json.loads(response_json(response(FP32, [1.5]))) == {
        "model_name": "m",
        "model_version": "1",
        "outputs": [{"name": "Y", "datatype": "FP32", "shape": [1], "data": [1.5]}],
    }
    assert json.loads(response_json(Invalid("no"))) == {"error": "no"}
    assert "FP16" in json.loads(response_json(response(FP16, [1.5])))["error"]


def test_timing_lists_the_first_request_by_itself() -> None:
    assert timing_text([1.0, 0.002, 0.001, 0.003]) == "4 requests: first 1e+03 ms, then median 2 ms, p99 3 ms"
    assert timing_text([0.5]) == "1 requests: first 500 ms, then median 500 ms, p99 500 ms"
