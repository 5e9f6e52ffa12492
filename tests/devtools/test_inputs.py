"""Inputs as they are typed, and what is said of those that do not fit."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.config import ModelConfig, TensorSpec
from halimede.config.sequencing import Control, ControlKind, DirectStrategy, SequenceBatching
from halimede.devtools.inputs import fit, requests_of
from halimede.errors import Invalid, Unsupported
from halimede.requests import InferRequest
from halimede.tensors import BF16, BYTES, DATATYPES, FP16, FP32, INT32, UINT64, DataType, array_of
from tests.models.configs import config_of


def request_of(words: Sequence[str], model: ModelConfig, version: int) -> InferRequest:
    [request] = requests_of(words, model, version)
    return request


def config(*specs: TensorSpec, batch: int = 0) -> ModelConfig:
    return config_of(*specs, max_batch_size=batch)


def one(datatype: DataType, *dims: int) -> TensorSpec:
    return TensorSpec("A", datatype, dims)


def array(word: str, spec: TensorSpec, batch: int = 0) -> Any:
    return array_of(request_of([word], config(spec, batch=batch), -1).inputs["A"])


@pytest.mark.parametrize(
    ("shape", "dims", "batch", "expected"),
    [
        ((3,), (-1,), 0, (3,)),
        ((), (1,), 0, (1,)),
        ((), (-1,), 0, (1,)),
        ((), (-1, 1), 4, (1, 1, 1)),
        ((4,), (4,), 8, (1, 4)),
        ((2, 4), (4,), 8, (2, 4)),
        ((3,), (-1,), 8, (1, 3)),
        ((4,), (2, 2), 0, (2, 2)),
        ((4,), (2, 2), 8, (1, 2, 2)),
        ((6,), (-1, 3), 0, (2, 3)),
        ((0,), (-1,), 0, (0,)),
        ((1, 1), (1,), 8, (1, 1)),
    ],
)
def test_fitting_shape_is_completed(shape: Any, dims: Any, batch: int, expected: Any) -> None:
    assert fit(shape, one(FP32, *dims), config(one(FP32, *dims), batch=batch)) == expected


@pytest.mark.parametrize(
    ("shape", "dims", "batch"),
    [((3,), (4,), 0), ((2, 4), (4,), 0), ((5,), (2, 2), 0), ((2, 2), (4,), 0), ((6,), (-1, -1), 0), ((), (2,), 8)],
)
def test_wrong_shape_is_refused_with_the_right_one(shape: Any, dims: Any, batch: int) -> None:
    wanted = ", ".join((["batch"] if batch else []) + ["?" if d < 0 else str(d) for d in dims])
    with pytest.raises(Invalid, match=re.escape(f"but A: FP32 [{wanted}] is wanted")):
        fit(shape, one(FP32, *dims), config(one(FP32, *dims), batch=batch))


@pytest.mark.parametrize(
    ("word", "spec", "expected"),
    [
        ("A=[1, 2.5]", one(FP32, -1), [1.0, 2.5]),
        ("A=[[1],[2]]", one(INT32, -1, 1), [[1], [2]]),
        ("A=true", one(DATATYPES["BOOL"], 1), [True]),
        ("A=[1, 2.5]", one(FP16, -1), [1.0, 2.5]),
        ("A=hello, = world", one(BYTES, 1), [b"hello, = world"]),
        ("A=5", one(BYTES, 1), [b"5"]),
        ('A=["a", "é"]', one(BYTES, -1), [b"a", "é".encode()]),
        ('A="quoted"', one(BYTES, 1), [b"quoted"]),
        ("A=[no JSON", one(BYTES, 1), [b"[no JSON"]),
        ("A=[]", one(FP32, -1), []),
    ],
)
def test_value_on_the_command_line_is_read(word: str, spec: TensorSpec, expected: Any) -> None:
    assert array(word, spec).tolist() == expected


def test_bf16_is_rounded_to_the_nearest() -> None:
    assert array("A=[1.0, -2.5, 1.00390625, 1.01171875, 3.4e38]", one(BF16, -1)).tolist() == [
        *(0x3F80, 0xC020, 0x3F80, 0x3F82, 0x7F80)
    ]
    assert array("A=[NaN]", one(BF16, -1)).tolist() == [0x7FC0]


@pytest.mark.parametrize(
    ("saved", "spec", "expected"),
    [
        (np.array([1, 2], np.int64), one(INT32, -1), [1, 2]),
        (np.array([1.5], np.float64), one(FP32, 1), [1.5]),
        (np.array([1, 2], np.int32), one(FP32, -1), [1.0, 2.0]),
        (np.array(["a", "é"]), one(BYTES, -1), [b"a", "é".encode()]),
        (np.array([b"x"]), one(BYTES, 1), [b"x"]),
        (np.array([1.0], np.float32), one(BF16, 1), [0x3F80]),
    ],
)
def test_npy_file_is_read(tmp_path: Path, saved: Any, spec: TensorSpec, expected: Any) -> None:
    np.save(tmp_path / "a.npy", saved)
    assert array(f"A=@{tmp_path}/a.npy", spec).tolist() == expected


@pytest.mark.parametrize(
    ("saved", "spec", "text"),
    [
        (np.array([1.5]), one(INT32, 1), "input 'A' takes INT32, the file has float64"),
        (np.array([2**40]), one(INT32, 1), "which cannot hold all numbers"),
        (np.array([1]), one(BYTES, 1), "input 'A' takes BYTES, the file has int64"),
        (np.array([object()], dtype=object), one(BYTES, 1), "is not an array"),
    ],
)
def test_array_of_another_datatype_is_refused(tmp_path: Path, saved: Any, spec: TensorSpec, text: str) -> None:
    np.save(tmp_path / "a.npy", saved, allow_pickle=True)
    with pytest.raises(Invalid, match=text):
        array(f"A=@{tmp_path}/a.npy", spec)


def test_other_file_is_one_element_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8")
    assert array(f"A=@{tmp_path}/a.jpg", one(BYTES, 1), batch=4).tolist() == [[b"\xff\xd8"]]


def test_json_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[[1, 2], [3, 4]]")
    assert array(f"A=@{tmp_path}/a.json", one(INT32, 2), batch=4).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "input 'A' is missing; model 'm' takes A: INT32 [batch, 2], B: BYTES [batch, ?] (optional)"),
        (["C=1", "A=[1,2]"], "the model has no input 'C'; model 'm' takes A: INT32"),
        (["A=[1,2]", "A=[1,2]"], "input 'A' is given twice; --sequence makes a request of each"),
        (["A=[1,x]"], "input 'A': '[1,x]' is not INT32; write A=[1,2,3] or A=@FILE.npy"),
        (["A=[1.5,2]"], "input 'A' takes INT32: "),
        (["A=[[1,2],[3]]"], "input 'A': its rows differ in length"),
        (["A=[1,2,3]"], "input 'A' has the shape [3], but A: INT32 [batch, 2] is wanted (the batch dimension may"),
        (["A=@none.npy"], "failed to read 'none.npy': No such file or directory"),
        (["A=@tests/__init__.py"], "must be a .npy or .json file"),
        (["whole"], "'whole' is neither NAME=VALUE nor a file"),
        (["whole.json"], "failed to read 'whole.json'"),
        (["A=[1,2]", "whole.json"], "'whole.json' is a whole request and cannot be combined"),
    ],
)
def test_wrong_input_is_refused(words: list[str], text: str) -> None:
    model = config(TensorSpec("A", INT32, (2,)), TensorSpec("B", BYTES, (-1,), optional=True), batch=4)
    with pytest.raises(Invalid) as caught:
        request_of(words, model, -1)
    assert text in str(caught.value)


@pytest.mark.parametrize("datatype", [FP16, FP32], ids=str)
def test_infinite_number_is_refused(datatype: DataType) -> None:
    with pytest.raises(Invalid, match=f"input 'A' takes {datatype}: "):
        array(f"A=1{'0' * 400}", one(datatype, 1))


def test_file_with_a_whole_request_is_read(tmp_path: Path) -> None:
    body = {
        "id": "q",
        "parameters": {"k": 1},
        "inputs": [{"name": "A", "shape": [1, 2], "datatype": "INT32", "data": [1, 2]}],
    }
    (tmp_path / "q.json").write_text(json.dumps(body))
    request = request_of([str(tmp_path / "q.json")], config(one(INT32, 2), batch=4), 7)
    assert (request.model_name, request.version, request.id, request.parameters) == ("m", 7, "q", {"k": 1})
    assert array_of(request.inputs["A"]).tolist() == [[1, 2]]
    (tmp_path / "q.json").write_text("{")
    with pytest.raises(Invalid, match=r"q\.json' is not an inference request"):
        request_of([str(tmp_path / "q.json")], config(one(INT32, 2), batch=4), 7)


# ---- several requests


def facts(requests: Sequence[InferRequest]) -> list[tuple[Any, int | str, bool, bool]]:
    return [
        (array_of(each.inputs["A"]).tolist(), each.correlation_id, each.sequence_start, each.sequence_end)
        for each in requests
    ]


def stateful(datatype: DataType | None = None, *, iterative: bool = False) -> ModelConfig:
    controls = (Control(ControlKind.CORRID, "ID", datatype),) if datatype is not None else ()
    batching = SequenceBatching(DirectStrategy(), controls=controls, iterative=iterative)
    return replace(config(one(INT32, 1)), sequence_batching=batching)


def test_repeated_input_makes_the_requests_of_a_sequence() -> None:
    model = config(one(INT32, 1), TensorSpec("B", INT32, (1,)))
    requests = requests_of(["A=1", "B=7", "A=2", "A=3"], model, -1, sequence=True)
    assert facts(requests) == [([1], 1, True, False), ([2], 1, False, False), ([3], 1, False, True)]
    assert [array_of(each.inputs["B"]).tolist() for each in requests] == [[7]] * 3


def test_model_with_sequences_always_gets_one() -> None:
    assert facts(requests_of(["A=1"], stateful(), -1)) == [([1], 1, True, True)]
    assert facts(requests_of(["A=1", "A=2"], stateful(), -1)) == [([1], 1, True, False), ([2], 1, False, True)]


def test_iterative_model_makes_its_sequences_by_itself() -> None:
    assert facts(requests_of(["A=1"], stateful(iterative=True), -1)) == [([1], 0, False, False)]


@pytest.mark.parametrize(
    ("text", "datatype", "expected"),
    [("7", None, 7), ("7", UINT64, 7), ("7", BYTES, "7"), ("", BYTES, "1"), ("seven", None, "seven"), ("", UINT64, 1)],
)
def test_id_of_the_sequence_is_of_the_type_that_the_model_takes(
    text: str, datatype: DataType | None, expected: int | str
) -> None:
    [request] = requests_of(["A=1"], stateful(datatype), -1, sequence_id=text)
    assert request.correlation_id == expected
    assert type(request.correlation_id) is type(expected)


@pytest.mark.parametrize("text", ["0", str(2**64)])
def test_number_that_is_no_sequence_id_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is not a number from 1 to"):
        requests_of(["A=1"], stateful(), -1, sequence_id=text)
    with pytest.raises(Unsupported, match="longer than 128"):
        requests_of(["A=1"], stateful(), -1, sequence_id="x" * 129)


def test_inputs_for_different_numbers_of_requests_are_refused() -> None:
    model = config(one(INT32, 1), TensorSpec("B", INT32, (1,)))
    with pytest.raises(Invalid, match="'A' 2 times, 'B' 3 times; give each once, or equally often"):
        requests_of(["A=1", "A=2", "B=1", "B=2", "B=3"], model, -1, sequence=True)


def body(value: int, **parameters: object) -> dict[str, object]:
    tensor = {"name": "A", "shape": [1], "datatype": "INT32", "data": [value]}
    return {"inputs": [tensor], "parameters": parameters}


def test_files_hold_one_request_or_a_list(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps([body(1), body(2)]))
    (tmp_path / "one.json").write_text(json.dumps(body(3)))
    words = [str(tmp_path / "list.json"), str(tmp_path / "one.json")]
    model = config(one(INT32, 1))
    assert [first for first, *_ in facts(requests_of(words, model, -1))] == [[1], [2], [3]]
    assert facts(requests_of(words, model, -1, sequence_id="9"))[1:] == [([2], 9, False, False), ([3], 9, False, True)]


def test_sequences_of_a_file_stay_as_they_are(tmp_path: Path) -> None:
    requests = [body(1, sequence_id=5, sequence_start=True), body(2, sequence_id=6, sequence_start=True)]
    (tmp_path / "list.json").write_text(json.dumps(requests))
    assert facts(requests_of([str(tmp_path / "list.json")], stateful(), -1)) == [
        ([1], 5, True, False),
        ([2], 6, True, False),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "is an empty list"),
        ("[{", "is not JSON: "),
        ("[1]", "request 1 of '.*' is not an inference request"),
        ('[{"inputs": []}]', "input 'A' is missing"),
    ],
)
def test_wrong_list_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "list.json").write_text(text)
    with pytest.raises(Invalid, match=told):
        requests_of([str(tmp_path / "list.json")], config(one(INT32, 1)), -1)
