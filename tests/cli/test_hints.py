"""The lines that a newcomer may type: each is read as a shell, a JSON reader and Python would read it."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import pytest
from tritonclient.http import InferInput

from halimede.cli.hints import MAX_ELEMENTS, hints
from halimede.config import ModelConfig, TensorSpec
from halimede.tensors import DATATYPES
from tests.models.configs import config_of, spec

ADDRESS = "127.0.0.1:8000"


def typed(*configs: ModelConfig, address: str = ADDRESS, python: str = "python") -> tuple[list[str], list[str]]:
    """The words of the line for curl and of the line for Python, as a shell takes them apart."""
    curl, statement = hints(configs, address, python)
    return shlex.split(curl), shlex.split(statement)


def request_of(words: Sequence[str]) -> list[dict[str, Any]]:
    inputs: list[dict[str, Any]] = json.loads(words[-1])["inputs"]
    return inputs


def compiled(words: Sequence[str]) -> str:
    """The Python statements, which can at least be read."""
    compile(words[-1], "hint", "exec")
    return words[-1]


def inputs_made(words: Sequence[str]) -> list[tuple[str, list[int], str]]:
    """Name, shape and datatype of the client's inputs that the Python statements make; the client checks the data."""
    made: dict[str, Any] = {}
    preparation, _, asking = compiled(words).rpartition("; ")
    assert asking.startswith("print(")
    exec(preparation, made)
    inputs = [one for one in made.values() if isinstance(one, InferInput)]
    return [(one.name(), one.shape(), one.datatype()) for one in inputs]


@pytest.mark.parametrize("datatype", sorted(DATATYPES.keys() - {"FP16", "BF16"}))
@pytest.mark.parametrize(
    ("dims", "max_batch_size", "shape"),
    [([1], 0, [1]), ([-1], 8, [1, 1]), ([2, -1, 3], 0, [2, 1, 3]), ([4], 2, [1, 4]), ([], 4, [1])],
)
def test_request_of_each_datatype_and_shape_is_valid(
    datatype: str, dims: list[int], max_batch_size: int, shape: list[int]
) -> None:
    curl, python = typed(config_of(spec("X", datatype, dims), max_batch_size=max_batch_size))
    assert curl[:-1] == ["curl", "-s", f"http://{ADDRESS}/v2/models/m/infer", "-d"]
    [one] = request_of(curl)
    assert (one["name"], one["shape"], one["datatype"], len(one["data"])) == ("X", shape, datatype, prod(shape))
    assert python[:-1] == ["python", "-c"]
    assert inputs_made(python) == [("X", shape, datatype)]


def test_both_lines_name_all_inputs() -> None:
    datatypes = ["INT32", "BYTES", "BOOL", "FP32", "INT64", "UINT8", "FP64", "INT8"]
    inputs = [spec(f"in-{i}.x", datatype, [2]) for i, datatype in enumerate(datatypes)]
    curl, python = typed(config_of(*inputs, name="_my.model-2"))
    assert [one["name"] for one in request_of(curl)] == [one.name for one in inputs]
    assert [name for name, *_ in inputs_made(python)] == [one.name for one in inputs]
    assert ".infer('_my.model-2', [a, b, c, d, e, f, g, h])" in compiled(python)


X = spec("X", "INT32", [1])


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config_of(*(replace(X, name=f"X{i}") for i in range(9))), id="nine inputs"),
        pytest.param(config_of(), id="no input"),
        pytest.param(config_of(spec("X", "FP16", [1])), id="no JSON for it"),
        pytest.param(config_of(X, spec("Y", "BF16", [1])), id="no JSON for one of two"),
        pytest.param(config_of(spec("X", "INT32", [MAX_ELEMENTS + 1])), id="too many numbers"),
        *(
            pytest.param(config_of(spec(name, "INT32", [1])), id=f"input {name}")
            for name in ("it's", 'a"b', "a b", "a$b", "a`b", "a\\b", "a:0", "é", "-x", "", "a\n")
        ),
        *(
            pytest.param(config_of(X, name=name), id=f"model {name}")
            for name in ("it's", "a b", "$m", "a/b", "m!", "é")
        ),
    ],
)
def test_model_with_large_inputs_is_skipped(config: ModelConfig) -> None:
    assert hints([config], ADDRESS, "python") == []
    assert len(hints([config, config_of(X, name="z")], ADDRESS, "python")) == 2


def test_smallest_request_is_shown() -> None:
    def model(name: str, *inputs: TensorSpec) -> ModelConfig:
        return config_of(*inputs, name=name)

    curl, _ = typed(
        model("a", spec("X", "INT32", [4])), model("c", X), model("b", X), model("d", X, spec("Y", "BOOL", [1]))
    )
    assert curl[2].endswith("/v2/models/b/infer")


def test_shortest_response_decides_between_equal_requests() -> None:
    long = config_of(spec("X", "BYTES", [1]), outputs=[spec("Y", "FP32", [384])], name="a")
    short = config_of(spec("X", "BYTES", [1]), outputs=[spec("Y", "FP32", [-1])], name="b")
    curl, _ = typed(long, short)
    assert curl[2].endswith("/v2/models/b/infer")


def test_without_a_client_there_is_only_the_line_for_curl() -> None:
    assert hints([config_of(X)], ADDRESS, "") == hints([config_of(X)], ADDRESS, "python")[:1]


def test_no_models_have_no_lines() -> None:
    assert hints([], ADDRESS, "python") == []


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("0.0.0.0:8000", "localhost:8000"),
        ("[::]:8001", "localhost:8001"),
        ("[::1]:8000", "[::1]:8000"),
        ("10.0.0.0:80", "10.0.0.0:80"),
        ("localhost:8000", "localhost:8000"),
    ],
)
def test_address_is_reachable_from_this_machine(address: str, reached: str) -> None:
    curl, python = typed(config_of(X), address=address)
    assert curl[2] == f"http://{reached}/v2/models/m/infer"
    assert f"http.InferenceServerClient('{reached}')" in compiled(python)


def test_interpreter_may_have_spaces_in_its_path() -> None:
    _, python = typed(config_of(X), python="my folder/bin/python")
    assert python[:2] == ["my folder/bin/python", "-c"]
