"""A running server with ONNX models: how their configurations are completed, and how bad ones are refused. Triton's
ONNX backend is not on this machine, so the texts are those of the contract."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.backends import onnx_models
from tests.compat.serving import Serving

LIMIT = 60.0
BATCHING = onnx_models.identity("FP32", ["batch", 4])
FLAT = onnx_models.identity("FP32", [4])
IN = 'input { name: "x" data_type: TYPE_FP32 dims: [4] }\n'
OUT = 'output { name: "y" data_type: TYPE_FP32 dims: [4] }\n'


@dataclass(frozen=True, slots=True)
class Shown:
    """The server's index and configurations, as JSON values."""

    url: str
    process: int
    reasons: Mapping[str, str] = field(default_factory=dict)

    def config(self, model: str) -> Any:
        return ask(self.url, f"/v2/models/{model}/config")


def ask(url: str, path: str, body: bytes | None = None) -> Any:
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{url}{path}", body), timeout=LIMIT) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        text = error.read()
    return json.loads(text) if text else None


def write(models: Path, name: str, content: bytes, config: str | None = None) -> None:
    version = models / name / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(content)
    if config is not None:
        (models / name / "config.pbtxt").write_text(f'backend: "onnxruntime"\n{config}')


REFUSED = {
    "not_batching": (
        FLAT,
        "max_batch_size: 2",
        "autofill failed for model 'not_batching': model does not support batching while non-zero max_batch_size is "
        "specified",
    ),
    "two_inputs": (
        FLAT,
        f'{IN}input {{ name: "z" data_type: TYPE_FP32 dims: [4] }} {OUT}',
        "unable to load model 'two_inputs', configuration expects 2 inputs, model provides 1",
    ),
    "other_type": (
        FLAT,
        IN.replace("FP32", "INT32") + OUT,
        "unable to load model 'other_type', configuration expects datatype TYPE_INT32 for input 'x', model provides "
        "TYPE_FP32",
    ),
    "other_input": (
        FLAT,
        IN.replace('"x"', '"q"') + OUT,
        "unexpected inference input 'q', allowed inputs are: x",
    ),
    "other_output": (
        FLAT,
        IN + OUT.replace('"y"', '"q"'),
        "unexpected inference output 'q', allowed outputs are: y",
    ),
    "batched_flat": (
        FLAT,
        f"max_batch_size: 2 {IN}{OUT}",
        "model 'batched_flat', tensor 'x': for the model to support batching the shape should have at least 1 "
        "dimension and the first dimension must be -1; but shape expected by the model is [4]",
    ),
    "other_rank": (
        BATCHING,
        f"max_batch_size: 2 {IN.replace('[4]', '[4, 1]')}{OUT}",
        "model 'other_rank', tensor 'x': the model expects 2 dimensions (shape [-1,4]) but the model configuration "
        "specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
        "shape, making complete shape [-1,4,1])",
    ),
    "optional_batched": (
        BATCHING,
        f"max_batch_size: 2 {IN.replace('dims', 'optional: true dims')}{OUT}",
        "unable to load model 'optional_batched', optional input 'x' is not supported for models that support batching",
    ),
    "two_of_a_scalar": (
        onnx_models.identity("FP32", []),
        (IN + OUT).replace("[4]", "[2]"),
        "unable to load model 'two_of_a_scalar', scalar tensor 'x', should only provide 1 in the model configuration "
        "when the model doesn't support batching. Model configuration provided: [2].",
    ),
    "arena": (
        BATCHING,
        'parameters { key: "enable_mem_arena" value { string_value: "yes" } }',
        "failed to convert 'yes' to boolean",
    ),
    "mode": (
        BATCHING,
        'parameters { key: "execution_mode" value { string_value: "2" } }',
        "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 2 .",
    ),
    "accelerated": (
        BATCHING,
        'optimization { execution_accelerators { cpu_execution_accelerator [ { name: "openvino" } ] } }',
        "OpenVINO Execution Accelerator is not enabled",
    ),
    "accelerated_by_nobody": (
        BATCHING,
        'optimization { execution_accelerators { cpu_execution_accelerator [ { name: "nope" } ] } }',
        "unknown Execution Accelerator 'nope' is requested",
    ),
}
"""By model: its file, its configuration, and its reason in the index."""
ACCELERATED = ("accelerated", "accelerated_by_nobody")
SETTINGS = ("arena", "mode")
PARTS = {"no_outputs": IN, "no_inputs": OUT}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    folder = tmp_path_factory.mktemp("onnx")
    models = folder / "models"
    for name, (content, config, _) in REFUSED.items():
        write(models, name, content, config)
    for name, config in PARTS.items():
        write(models, name, BATCHING, config)
    write(models, "operators", BATCHING, 'model_operations { op_library_filename: "/nowhere/ops.so" }')
    write(models, "bare", BATCHING)
    write(models, "bare_flat", FLAT)
    write(models, "scalars", onnx_models.row_sums())
    write(models, "scalar", onnx_models.identity("FP32", []))
    write(models, "whole", BATCHING, f"max_batch_size: 8 {IN}{OUT}")
    write(models, "threads", BATCHING, 'parameters { key: "intra_op_thread_count" value { string_value: "12" } }')
    for word in onnx_models.TYPES:
        write(models, f"type_{word}", onnx_models.identity(word, [2]))
    flags = ("--exit-on-error=false", "--backend-config=onnxruntime,default-max-batch-size=6")
    with Serving(models, folder / "log", *flags) as server:
        server.wait_until_live()
        index = ask(server.http_url, "/v2/repository/index", b"")
        yield Shown(server.http_url, server.process.pid, {line["name"]: line.get("reason", "") for line in index})


@pytest.mark.rows("R74")
@pytest.mark.parametrize("model", [name for name in REFUSED if name not in ("not_batching", *ACCELERATED, *SETTINGS)])
def test_configuration_that_does_not_fit_is_refused(shown: Shown, model: str) -> None:
    assert shown.reasons[model] == f"Invalid argument: {REFUSED[model][2]}"


@pytest.mark.rows("R76")
@pytest.mark.parametrize("model", ACCELERATED)
def test_missing_accelerator_is_refused(shown: Shown, model: str) -> None:
    assert shown.reasons[model] == f"Invalid argument: {REFUSED[model][2]}"


@pytest.mark.rows("BC8", "BO8")
@pytest.mark.parametrize("model", SETTINGS)
def test_session_option_that_means_nothing_is_refused(shown: Shown, model: str) -> None:
    assert shown.reasons[model] == f"Invalid argument: {REFUSED[model][2]}"


@pytest.mark.rows("BO4")
def test_scalar_model_is_completed_and_answers(shown: Shown) -> None:
    config = shown.config("scalar")
    assert [tensor["dims"] for tensor in (*config["input"], *config["output"])] == [[1], [1]]
    sent = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [2.5]}]}
    answer = ask(shown.url, "/v2/models/scalar/infer", json.dumps(sent).encode())
    assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1], "data": [2.5]}]


@pytest.mark.rows("R58")
def test_operators_that_cannot_be_loaded_fail_the_load(shown: Shown) -> None:
    assert shown.reasons["operators"].startswith("Internal: onnx runtime error")
    assert "/nowhere/ops.so" in shown.reasons["operators"]


@pytest.mark.rows("R72")
def test_batching_of_a_model_without_batch_dimension_is_refused(shown: Shown) -> None:
    assert shown.reasons["not_batching"] == f"Invalid argument: {REFUSED['not_batching'][2]}"


@pytest.mark.rows("R72", "R70", "R53", "R75")
def test_model_without_a_configuration_batches_dynamically(shown: Shown) -> None:
    config = shown.config("bare")
    assert (config["backend"], config["platform"]) == ("onnxruntime", "onnxruntime_onnx")
    assert config["max_batch_size"] == 6
    assert config["dynamic_batching"]["preferred_batch_size"] == [6]
    assert [(group["kind"], group["count"]) for group in config["instance_group"]] == [("KIND_CPU", 2)]
    assert [(t["name"], t["data_type"], t["dims"]) for t in config["input"]] == [("x", "TYPE_FP32", [4])]
    assert [(t["name"], t["data_type"], t["dims"]) for t in config["output"]] == [("y", "TYPE_FP32", [4])]


@pytest.mark.rows("R72")
def test_model_without_batch_dimension_is_completed_without_batching(shown: Shown) -> None:
    config = shown.config("bare_flat")
    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
    assert [tensor["dims"] for tensor in (*config["input"], *config["output"])] == [[4], [4]]


@pytest.mark.rows("R72")
def test_scalar_of_each_request_is_reshaped(shown: Shown) -> None:
    [output] = shown.config("scalars")["output"]
    assert (output["dims"], output["reshape"]) == ([1], {"shape": []})


@pytest.mark.rows("R72")
@pytest.mark.parametrize("model", PARTS)
def test_missing_list_is_completed(shown: Shown, model: str) -> None:
    config = shown.config(model)
    assert [tensor["name"] for tensor in (*config["input"], *config["output"])] == ["x", "y"]
    assert config["max_batch_size"] == 6


@pytest.mark.rows("R73")
def test_full_configuration_is_not_changed_for_onnx(shown: Shown) -> None:
    config = shown.config("whole")
    assert config["max_batch_size"] == 8
    assert "dynamic_batching" not in config


@pytest.mark.rows("R84")
@pytest.mark.parametrize("word", onnx_models.TYPES)
def test_datatypes_of_onnx_become_those_of_configurations(shown: Shown, word: str) -> None:
    [tensor] = shown.config(f"type_{word}")["input"]
    assert tensor["data_type"] == f"TYPE_{'STRING' if word == 'BYTES' else word}"


@pytest.mark.rows("R75")
def test_parameters_set_the_threads_of_a_session(tmp_path: Path) -> None:
    for count in (1, 20):
        parameter = f'key: "intra_op_thread_count" value {{ string_value: "{count}" }}'
        write(tmp_path / "models", f"threads{count}", BATCHING, f"parameters {{ {parameter} }}")
    with Serving(tmp_path / "models", tmp_path / "log", "--model-control-mode=explicit") as server:
        server.wait_until_live()
        running = []
        for model in ("threads1", "threads20"):
            assert ask(server.http_url, f"/v2/repository/models/{model}/load", b"") is None
            running.append(len(os.listdir(f"/proc/{server.process.pid}/task")))  # noqa: PTH208 - no path is needed
    assert running[1] - running[0] >= 19
