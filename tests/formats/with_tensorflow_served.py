"""A running server with models of TensorFlow, in an environment of their own, and of TensorFlow Lite."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving
from tests.formats.built import TENSORFLOW, place

Array = npt.NDArray[Any]

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300.0
ENVIRONMENT = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{TENSORFLOW}" }} }}\n'
ONE = "instance_group { count: 1 kind: KIND_CPU }\n"
IN = 'input { name: "INPUT0" data_type: TYPE_FP32 dims: [2] }\n'
OUT = 'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [2] }\n'
TYPES = {"bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64", "bfloat16": "BF16", "string": "BYTES"}
TYPES |= {f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)}


def write(models: Path, name: str, source: str, config: str | None = None, file: str = "model") -> None:
    """A model with this file. A SavedModel or a graph gets the environment and one instance."""
    version = models / name / "1"
    version.mkdir(parents=True)
    ending = source.rpartition(".")[2]
    place(source, version, f"{file}.{ending}")
    if ending != "tflite":
        config = f"{ENVIRONMENT}{ONE}{config or ''}"
    if config is not None:
        (models / name / "config.pbtxt").write_text(config)


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


GRAPH = """input [ { name: "x" data_type: TYPE_FP32 dims: [4] },
        { name: "s" data_type: TYPE_STRING dims: [1] reshape { } } ]
output [ { name: "twice" data_type: TYPE_FP32 dims: [4] }, { name: "negative" data_type: TYPE_FP32 dims: [4] },
         { name: "doubled" data_type: TYPE_STRING dims: [1] reshape { } } ]
max_batch_size: 8
"""
REFUSED = {
    "signature": (
        "named.savedmodel",
        parameter("TF_SIGNATURE_DEF", "ghost"),
        "Invalid argument: unable to load model 'signature', expected 'ghost' signature",
    ),
    "tag": (
        "echo_2.savedmodel",
        parameter("TF_GRAPH_TAG", "gpu"),
        "Invalid argument: unable to load model 'tag', expected 'gpu' tag",
    ),
    "batches": (
        "flat_2.savedmodel",
        "max_batch_size: 8",
        "Invalid argument: unable to autofill for 'batches', configuration specified max-batch 8 but model signature "
        "does not support batching",
    ),
    "rank": (
        "any_rank.savedmodel",
        "",
        "Invalid argument: Unable to autofill for 'rank': the rank of model tensor 'INPUT0' is 0 and dimensions are "
        "not defined",
    ),
    "complex": (
        "type_complex64.savedmodel",
        "",
        "Invalid argument: unable to process input 'INPUT0' for 'complex', unsupported datatype 'DT_COMPLEX64'",
    ),
    "other_input": (
        "frozen.graphdef",
        GRAPH.replace('"x"', '"q"'),
        "Invalid argument: unexpected inference input 'q', allowed inputs are: s, x",
    ),
    "threads": (
        "echo_2.savedmodel",
        parameter("TF_NUM_INTRA_THREADS", "-1"),
        "Invalid argument: parameter 'TF_NUM_INTRA_THREADS' must be non-negative number for TensorFlow model 'threads'",
    ),
    "operators": (
        "echo_2.savedmodel",
        'model_operations { op_library_filename: "/nowhere/ops.so" }',
        "Internal: /nowhere/ops.so: cannot open shared object file",
    ),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Served"]:
    folder = tmp_path_factory.mktemp("tensorflow")
    models = folder / "models"
    for name, (source, config, _) in REFUSED.items():
        write(models, name, source, config)
    write(models, "two", "two.savedmodel")
    write(models, "named", "named.savedmodel", parameter("TF_SIGNATURE_DEF", "negative"))
    write(models, "frozen", "frozen.graphdef", GRAPH)
    write(models, "text", "bytes_2.savedmodel")
    write(models, "lite", "two.tflite")
    for kind in TYPES:
        if (TENSORFLOW / "models" / f"type_{kind}.tflite").exists():
            write(models, f"lite_{kind}", f"type_{kind}.tflite")
    write(models, "lite_scalar", "scalar.tflite")
    write(models, "lite_broken", "two.tflite")
    broken = models / "lite_broken/1/model.tflite"
    broken.write_bytes(broken.read_bytes()[:500])
    for name in ("missing", "lite_missing"):
        (models / name / "1").mkdir(parents=True)
    (models / "missing/config.pbtxt").write_text(f'platform: "tensorflow_savedmodel" {ENVIRONMENT}')
    (models / "lite_missing/config.pbtxt").write_text('backend: "tflite"')
    write(models, "bare_environment", "echo_2.savedmodel", f"{IN}{OUT}max_batch_size: 8")
    bare = models / "bare_environment/config.pbtxt"
    bare.write_text(bare.read_text().replace(ENVIRONMENT, ""))
    with Serving(
        models, folder / "log", "--exit-on-error=false", "--backend-config=tensorflow,restart-wait-seconds=60"
    ) as server:
        server.until(lambda: server.status("/v2/health/live") == 200, "did not come up", SECONDS)
        yield Served(server)


class Served:
    """A server, with the official clients."""

    def __init__(self, server: Serving) -> None:
        self.server = server
        self.http = httpclient.InferenceServerClient(server.http_url, network_timeout=SECONDS)
        self.grpc = grpcclient.InferenceServerClient(server.grpc_url)
        self.reasons = {line["name"]: line.get("reason", "") for line in self.http.get_model_repository_index()}

    def config(self, model: str) -> Any:
        return self.http.get_model_config(model)

    def ask(
        self, model: str, outputs: list[str], over: str = "http", /, **arrays: tuple[str, Array]
    ) -> list[list[Any]]:
        kind = httpclient if over == "http" else grpcclient
        inputs = []
        for name, (datatype, array) in arrays.items():
            inputs.append(kind.InferInput(name, list(array.shape), datatype))
            inputs[-1].set_data_from_numpy(array)
        client = self.http if over == "http" else self.grpc
        answer = client.infer(model, inputs, outputs=[kind.InferRequestedOutput(name) for name in outputs])
        return [answer.as_numpy(name).tolist() for name in outputs]


def row(*numbers: float) -> tuple[str, Array]:
    return "FP32", np.array([numbers], np.float32)


@pytest.mark.rows("BF3", "BF4", "BF5", "BF7", "BF8", "BF9", "R58")
@pytest.mark.parametrize("model", REFUSED)
def test_configuration_that_does_not_fit_is_refused(served: Served, model: str) -> None:
    assert served.reasons[model].startswith(REFUSED[model][2])


def test_file_that_is_missing_is_named(served: Served) -> None:
    assert served.reasons["missing"].startswith("Unavailable: unable to find '")
    assert served.reasons["missing"].endswith("saved_model.pb' for model instance 'missing'")
    assert served.reasons["lite_missing"].endswith("model.tflite' for model 'lite_missing'")


def test_file_that_is_cut_off_is_refused(served: Served) -> None:
    assert served.reasons["lite_broken"].startswith("Internal: tflite error in reading model 'lite_broken': ")


def test_missing_runtime_names_the_extra(served: Served) -> None:
    """The server's own environment has no TensorFlow."""
    assert served.reasons["bare_environment"].endswith("it is installed by: pip install 'halimede[tensorflow]'")


@pytest.mark.rows("BF2", "BF4", "BF5", "BC9", "R80")
@pytest.mark.parametrize("model", ["two", "lite"])
def test_model_without_inputs_and_outputs_is_completed(served: Served, model: str) -> None:
    config = served.config(model)
    assert config["backend"] == ("tensorflow" if model == "two" else "tflite")
    assert (config["max_batch_size"], "dynamic_batching" in config) == (4, True)
    shown = {(each["name"], each["data_type"], *each["dims"]) for each in (*config["input"], *config["output"])}
    assert shown == {
        *(("a", "TYPE_FP32", 2), ("b", "TYPE_FP32", 2)),
        *(("sum", "TYPE_FP32", 2), ("difference", "TYPE_FP32", 2), ("wide", "TYPE_FP32", 4)),
    }


@pytest.mark.rows("BC5")
@pytest.mark.parametrize("over", ["http", "grpc"])
@pytest.mark.parametrize("model", ["two", "lite"])
def test_clients_get_answers(served: Served, model: str, over: str) -> None:
    for outputs in (["sum"], ["difference", "sum"]):
        expected = {"sum": [[6, 8]], "difference": [[4, 4]]}
        got = served.ask(model, outputs, over, a=row(5, 6), b=row(1, 2))
        assert got == [expected[name] for name in outputs]


@pytest.mark.rows("BF3")
def test_parameter_chooses_the_signature(served: Served) -> None:
    assert served.ask("named", ["y"], x=row(1, -2)) == [[[-1, 2]]]


@pytest.mark.rows("BF2", "BF7", "BC5")
def test_frozen_graph_computes_what_is_asked_for(served: Served) -> None:
    """Only `twice` and `negative` need x, but all inputs of the configuration must be there."""
    text = "BYTES", np.array([[b"\xff\0"]], object)
    x = "FP32", np.array([[1, 2, 3, 4]], np.float32)
    assert served.ask("frozen", ["twice"], x=x, s=text) == [[[2, 4, 6, 8]]]
    assert served.ask("frozen", ["negative", "doubled"], x=x, s=text) == [[[-1, -2, -3, -4]], [[b"\xff\0\xff\0"]]]


@pytest.mark.rows("BF8")
def test_strings_are_bytes(served: Served) -> None:
    given = np.array([[b"", b"\xff\0\0"], ["\u00e9".encode(), b"x" * 5000]], object)
    assert served.ask("text", ["OUTPUT0"], INPUT0=("BYTES", given)) == [given.tolist()]


@pytest.mark.parametrize("kind", TYPES)
def test_datatypes_go_through_tensorflow_lite(served: Served, kind: str) -> None:
    name = f"lite_{kind}"
    if kind == "bfloat16":
        assert served.reasons[name].startswith(f"Internal: tflite error in reading model '{name}': ")
        return
    array: Array = np.array([[1, 0], [3, 1]])
    array = np.array([[b"", b"\xff\0"]], object) if kind == "string" else array.astype(kind)
    assert served.ask(name, ["OUTPUT0"], INPUT0=(TYPES[kind], array)) == [array.tolist()]


def test_scalar_of_tensorflow_lite(served: Served) -> None:
    assert served.ask("lite_scalar", ["OUTPUT0"], INPUT0=("FP32", np.array([3], np.float32))) == [[3]]


@pytest.mark.rows("BF12", "BC13")
def test_failure_of_a_batch_has_the_words_of_the_runtime(served: Served) -> None:
    body = {"inputs": [{"name": name, "shape": [1, 2], "datatype": "FP32", "data": [1, 2]} for name in "ab"]}
    for number in range(2):
        body["inputs"][1]["shape"] = [2, 1] if number else [1, 2]
        status, answer = served.server.ask("/v2/models/two/infer", json.dumps(body).encode())
        assert status == (400 if number else 200), answer
    assert served.ask("two", ["sum"], a=row(1, 1), b=row(2, 2)) == [[[3, 3]]]


def test_child_that_dies_under_load_is_replaced_and_every_request_is_answered(served: Served) -> None:
    """A process of TensorFlow is killed while clients ask. Requests that it had fail; all others get their answer."""
    answers: list[Any] = []

    def ask() -> None:
        client = httpclient.InferenceServerClient(served.server.http_url, network_timeout=SECONDS)
        given = [httpclient.InferInput(name, [1, 2], "FP32") for name in "ab"]
        for each in given:
            each.set_data_from_numpy(np.ones((1, 2), np.float32))
        for _ in range(60):
            try:
                answers.append(client.infer("two", given).as_numpy("sum").tolist())
            except InferenceServerException as error:
                answers.append(str(error))

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for each in clients:
        each.start()
    served.server.until(lambda: len(answers) > 20, "did not answer", SECONDS)
    os.kill(_process_of(served, "two"), signal.SIGKILL)
    for each in clients:
        each.join(SECONDS)
    assert len(answers) == 180
    failed = [each for each in answers if each != [[2, 2]]]
    assert len(failed) <= 3
    assert served.ask("two", ["sum"], a=row(1, 1), b=row(2, 2)) == [[[3, 3]]]


def test_children_killed_again_and_again(tmp_path: Path) -> None:
    """Twenty kills under load: every request is answered, and descriptors, processes and memory are as before."""
    words = [
        "--kind=tensorflow",
        "--kills=20",
        "--pause=12",
        "--instances=2",
        "--clients=6",
        f"--json={tmp_path / 'soak.json'}",
    ]
    command = [sys.executable, "-m", "tools.soak_workers", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{done.stdout[-5000:]}{done.stderr[-3000:]}"
    report = json.loads((tmp_path / "soak.json").read_text())
    assert report["kills"] == 20


def _process_of(served: Served, model: str) -> int:
    """The process of the one instance of a model, from the log."""
    [number] = re.findall(rf"'{model}_0_0' runs in process (\d+)", served.server.log_text())
    return int(number)
