"""The lines that a newcomer may type: each is read as a shell, a JSON reader and Python would read it."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import pytest
from tritonclient.http import InferInput

from halimede.cli.hints import MAX_ELEMENTS, MAX_ZERO_BYTES, Clients, hints
from halimede.config import InstanceGroup, InstanceKind, ModelConfig, TensorSpec, WarmupData, WarmupInput, WarmupSample
from halimede.config.ensembles import Ensemble, EnsembleStep
from halimede.config.sequencing import Control, ControlKind, DirectStrategy, SequenceBatching
from halimede.tensors import DATATYPES
from tests.models.configs import config_of, spec

ADDRESS = "127.0.0.1:8000"
CLIENTS = Clients(http=ADDRESS, python="python", libraries=frozenset({"http"}))
BOTH = Clients(ADDRESS, "127.0.0.1:8001", "python", frozenset({"http", "grpc"}))


def typed(*configs: ModelConfig, clients: Clients = CLIENTS) -> tuple[list[str], list[str]]:
    """The words of the line for curl and of the line for Python, as a shell takes them apart."""
    curl, statement = hints(configs, clients)
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
        pytest.param(config_of(spec("X", "FP32", [MAX_ZERO_BYTES])), id="too many numbers"),
        pytest.param(config_of(spec("X", "BYTES", [MAX_ELEMENTS + 1])), id="too many texts"),
        pytest.param(config_of(spec("X", "FP32", [3, -1, -1])), id="two sizes that vary"),
        pytest.param(config_of(spec("AUDIO", "FP32", [-1])), id="sound of any length"),
        pytest.param(config_of(spec("raw_image", "BYTES", [1])), id="a file"),
        pytest.param(config_of(X, groups=[InstanceGroup("g", InstanceKind.CPU, passive=True)]), id="passive"),
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
def test_model_whose_request_cannot_be_guessed_is_skipped(config: ModelConfig) -> None:
    assert hints([config], CLIENTS) == []
    assert len(hints([config, config_of(X, name="z")], CLIENTS)) == 2


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
    assert hints([config_of(X)], Clients(http=ADDRESS)) == hints([config_of(X)], CLIENTS)[:1]


def test_no_models_have_no_lines() -> None:
    assert hints([], CLIENTS) == []


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
    curl, python = typed(config_of(X), clients=replace(CLIENTS, http=address))
    assert curl[2] == f"http://{reached}/v2/models/m/infer"
    assert f"triton.InferenceServerClient('{reached}')" in compiled(python)


def test_interpreter_may_have_spaces_in_its_path() -> None:
    _, python = typed(config_of(X), clients=replace(CLIENTS, python="my folder/bin/python"))
    assert python[:2] == ["my folder/bin/python", "-c"]


# Models that need more than one plain request.


def sequence(*controls: Control, iterative: bool = False) -> SequenceBatching:
    return SequenceBatching(DirectStrategy(), controls=controls, iterative=iterative)


def parameters_of(curl: Sequence[str]) -> dict[str, Any]:
    parameters: dict[str, Any] = json.loads(curl[-1]).get("parameters", {})
    return parameters


@pytest.mark.parametrize(
    ("batching", "number"),
    [
        (sequence(), 4242),
        (sequence(Control(ControlKind.CORRID, "ID", DATATYPES["UINT64"])), 4242),
        (sequence(Control(ControlKind.CORRID, "ID", DATATYPES["BYTES"])), "try-it"),
    ],
)
def test_sequence_begins_and_ends(batching: SequenceBatching, number: int | str) -> None:
    curl, python = typed(replace(config_of(X), sequence_batching=batching))
    assert parameters_of(curl) == {"sequence_id": number, "sequence_start": True, "sequence_end": True}
    assert f"[a], sequence_id={number!r}, sequence_start=True, sequence_end=True)" in compiled(python)


def test_iterative_model_needs_no_id() -> None:
    assert parameters_of(typed(replace(config_of(X), sequence_batching=sequence(iterative=True)))[0]) == {}


def ensemble(name: str, member: str, tensor: str = "X") -> ModelConfig:
    """An ensemble with the input X, which it gives to a member's input `tensor`."""
    steps = (EnsembleStep(member, -1, ((tensor, "X"),), (("OUTPUT0", "OUTPUT0"),)),)
    return replace(config_of(spec("X", "BYTES", [1]), name=name, groups=[]), ensemble=Ensemble(steps))


def test_ensemble_needs_the_id_of_its_member() -> None:
    member = replace(config_of(spec("X", "FP32", [-1, -1]), name="m"), sequence_batching=sequence())
    curl, _ = typed(ensemble("e", "inner"), ensemble("inner", "m"), member)
    assert curl[2].endswith("/v2/models/e/infer")
    assert parameters_of(curl)["sequence_id"] == 4242


def test_ensemble_takes_what_its_members_take() -> None:
    assert hints([ensemble("e", "m", "FILE"), config_of(spec("FILE", "BYTES", [1]))], CLIENTS) == []
    assert hints([ensemble("e", "unknown")], CLIENTS) == []


def test_optional_inputs_are_left_out() -> None:
    curl, python = typed(config_of(spec("A", "INT32", [1], optional=True), X))
    assert [one["name"] for one in request_of(curl)] == ["X"]
    assert [name for name, *_ in inputs_made(python)] == ["X"]


def test_inputs_are_given_if_all_are_optional() -> None:
    curl, _ = typed(config_of(spec("A", "INT32", [1], optional=True), spec("B", "INT32", [1], optional=True)))
    assert [one["name"] for one in request_of(curl)] == ["A", "B"]


def test_sizes_are_those_of_the_warm_up() -> None:
    inputs = (WarmupInput("AUDIO", DATATYPES["FP32"], (4, 2), WarmupData.ZERO),)
    config = replace(config_of(spec("AUDIO", "FP32", [-1, -1])), warmup=(WarmupSample("w", 1, 1, inputs),))
    assert [one["shape"] for one in request_of(typed(config)[0])] == [[4, 2]]


@pytest.mark.parametrize(("datatype", "dims"), [("FP32", [3, 8, 8]), ("FP16", [1]), ("BF16", [2])])
def test_long_inputs_and_those_without_json_are_zeros(datatype: str, dims: list[int]) -> None:
    config = config_of(X, spec("Y", datatype, dims))
    curl, *python = hints([config], CLIENTS)
    size = prod(dims) * DATATYPES[datatype].size
    text = curl.partition("printf %s '")[2].partition("'")[0]
    assert [one.get("parameters") for one in json.loads(text)["inputs"]] == [None, {"binary_data_size": size}]
    assert f"head -c {size} /dev/zero; }} | curl" in curl
    assert curl.endswith(f"-H 'Inference-Header-Content-Length: {len(text)}' --data-binary @-")
    # numpy has no BF16.
    made = [inputs_made(shlex.split(line)) for line in python]
    assert made == ([] if datatype == "BF16" else [[("X", [1], "INT32"), ("Y", dims, datatype)]])


def test_outputs_without_json_are_not_asked_for() -> None:
    outputs = [spec("A", "FP16", [1]), spec("B", "INT32", [1])]
    curl, _ = typed(config_of(X, outputs=outputs))
    assert json.loads(curl[-1])["outputs"] == [{"name": "B"}]
    [python] = hints([config_of(X, outputs=outputs[:1])], CLIENTS)
    assert python.startswith("python -c")


def test_decoupled_model_is_streamed() -> None:
    config = replace(config_of(X, spec("T", "BYTES", [2])), decoupled=True)
    curl, python = typed(config, clients=BOTH)
    assert curl[:-1] == ["curl", "-sN", f"http://{ADDRESS}/v2/models/m/generate_stream", "-d"]
    assert json.loads(curl[-1]) == {"X": 1, "T": ["Hello, world"] * 2}
    assert "tritonclient.grpc as triton" in compiled(python)
    assert "InferenceServerClient('127.0.0.1:8001')" in python[-1]
    assert len(hints([config], CLIENTS)) == 1


def test_decoupled_model_of_sequences_has_a_line_for_python_only() -> None:
    [python] = hints([replace(config_of(X), decoupled=True, sequence_batching=sequence())], BOTH)
    assert "async_stream_infer('m', [a], sequence_id=4242" in python


def test_plain_model_is_preferred() -> None:
    special = [
        replace(config_of(X, name="a"), decoupled=True),
        replace(config_of(X, name="b"), sequence_batching=sequence()),
        config_of(spec("X", "FP16", [1]), name="c"),
        config_of(spec("X", "INT32", [-1]), name="d"),
    ]
    curl, _ = typed(*special, config_of(spec("X", "INT32", [8]), name="e"))
    assert curl[2].endswith("/v2/models/e/infer")


def test_model_that_calls_others_is_shown_only_if_there_is_no_other() -> None:
    calls, other = config_of(X, name="a"), config_of(X, X, name="b")
    [curl, _] = hints([calls, other], CLIENTS, lambda name: name == "a")
    assert "/models/b/" in curl
    [curl, _] = hints([calls], CLIENTS, lambda name: name == "a")
    assert "/models/a/" in curl


def test_name_of_two_models_is_no_address() -> None:
    assert hints([config_of(X), config_of(X)], CLIENTS) == []


# Ports.


@pytest.mark.parametrize("address", ["unix:/run/h.sock", "unix:///run/h.sock"])
def test_unix_socket_has_a_line_for_curl(address: str) -> None:
    [curl] = hints([config_of(X)], replace(CLIENTS, http=address))
    words = shlex.split(curl)
    assert words[2:5] == ["--unix-socket", "/run/h.sock", "http://localhost/v2/models/m/infer"]


@pytest.mark.parametrize(
    ("grpc", "reached"), [("0.0.0.0:8001", "localhost:8001"), ("unix:/run/h.sock", "unix:/run/h.sock")]
)
def test_grpc_takes_the_place_of_http(grpc: str, reached: str) -> None:
    [python] = hints([config_of(X)], replace(BOTH, http="", grpc=grpc))
    assert python.endswith(f"print(triton.InferenceServerClient('{reached}').infer('m', [a]).get_response())\"")


def test_no_port_has_no_lines() -> None:
    assert hints([config_of(X)], replace(BOTH, http="", grpc="")) == []
