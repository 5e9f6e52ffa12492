"""Models that name GPUs, on a server that sees none: refused, or served on the CPU with `--gpu-fallback=cpu`."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from tests.backends.onnx_models import identity
from tests.compat.serving import Serving

NO_GPUS = {"CUDA_VISIBLE_DEVICES": ""}

_PYTHON = """import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        group = json.loads(args["model_config"])["instance_group"][0]
        kind, device = args["model_instance_kind"], args["model_instance_device_id"]
        self.said = " ".join([kind, device, args["model_instance_name"], group["kind"]])

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([self.said], object))]) for _ in requests]
"""
_CUDA = """
class TritonPythonModel:
    def initialize(self, args):
        raise AssertionError("Torch not compiled with CUDA enabled")

    def execute(self, requests):
        return []
"""
_TENSORS = """
input {{ name: "{}" data_type: TYPE_{kind} dims: [ 1 ] }}
output {{ name: "{}" data_type: TYPE_{kind} dims: [ 1 ] }}
"""


def _write(repository: Path, name: str, backend: str, kind: str, group: str, content: bytes = b"") -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    names = ("INPUT0", "OUTPUT0") if backend == "identity" else ("x", "y")
    text = f'backend: "{backend}" {_TENSORS.format(*names, kind=kind)} instance_group [ {group} ]\n'
    # A configuration for a GPU often has these as well.
    text += "optimization { cuda { graphs: true } "
    text += 'execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }'
    (repository / name / "config.pbtxt").write_text(text)
    if content:
        (version / {"python": "model.py", "onnxruntime": "model.onnx"}[backend]).write_bytes(content)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpus") / "models"
    _write(folder, "plain", "identity", "FP32", "{ kind: KIND_GPU count: 2 gpus: [ 0, 1, 2 ] }")
    _write(folder, "onnx", "onnxruntime", "FP32", "{ kind: KIND_GPU }", identity("FP32", [1]))
    _write(folder, "code", "python", "STRING", "{ gpus: [ 1 ] kind: KIND_GPU }", _PYTHON.encode())
    _write(folder, "cuda", "python", "STRING", "{ kind: KIND_GPU }", _CUDA.encode())
    _write(folder, "both", "identity", "FP32", "{ kind: KIND_CPU }, { kind: KIND_GPU gpus: [ 0 ] }")
    return folder


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[Serving]:
    flags = ("--gpu-fallback=cpu", "--exit-on-error=false", "--strict-readiness=false")
    with Serving(repository, repository.parent / "log", *flags, environment=NO_GPUS) as serving:
        yield serving.wait_until_live()


@pytest.mark.parametrize(
    ("model", "groups"),
    [
        ("plain", [("KIND_CPU", 2)]),
        ("onnx", [("KIND_CPU", 1)]),
        ("code", [("KIND_CPU", 1)]),
        ("both", [("KIND_CPU", 1), ("KIND_CPU", 1)]),
    ],
)
def test_configuration_says_that_the_instances_are_on_the_cpu(
    served: Serving, model: str, groups: list[tuple[str, int]]
) -> None:
    status, config = served.ask(f"/v2/models/{model}/config")
    assert status == 200
    assert [(group["kind"], group["count"]) for group in config["instance_group"]] == groups
    assert all(group["gpus"] == [] for group in config["instance_group"])


@pytest.mark.parametrize("model", ["plain", "onnx", "both"])
def test_model_answers_from_the_cpu(served: Serving, model: str) -> None:
    source, sink = ("x", "y") if model == "onnx" else ("INPUT0", "OUTPUT0")
    given = httpclient.InferInput(source, [1], "FP32")
    given.set_data_from_numpy(np.array([2.5], np.float32))
    with httpclient.InferenceServerClient(served.http_url) as client:
        found = client.infer(model, [given]).as_numpy(sink)
    assert found is not None
    assert found.tolist() == [2.5]


def test_python_model_is_told_that_it_is_on_the_cpu(served: Serving) -> None:
    body = json.dumps({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}]})
    status, answer = served.ask("/v2/models/code/infer", body.encode())
    assert status == 200
    assert answer["outputs"][0]["data"] == ["CPU 0 code_0_0 KIND_CPU"]


def test_model_whose_code_wants_a_gpu_fails_with_its_reason(served: Serving) -> None:
    _, index = served.ask("/v2/repository/index", b"")
    [entry] = [each for each in index if each["name"] == "cuda"]
    assert "Torch not compiled with CUDA enabled" in entry["reason"]
    served.until_logged(
        "model 'cuda': --gpu-fallback=cpu placed it on the CPU, but its own code seems to ask for a GPU"
    )


def test_each_group_that_was_moved_is_logged(served: Serving) -> None:
    served.until_logged(
        "model 'plain' version 1: instance group 'plain_0' asks for GPUs 0, 1, 2 and runs on the CPU, with 2 instances "
        "(--gpu-fallback=cpu)"
    )


def test_without_the_flag_the_models_are_refused_and_the_log_names_it(repository: Path, tmp_path: Path) -> None:
    flags = ("--exit-on-error=false", "--strict-readiness=false")
    with Serving(repository, tmp_path / "log", *flags, environment=NO_GPUS) as serving:
        _, index = serving.wait_until_live().ask("/v2/repository/index", b"")
        reasons = {each["name"]: each["reason"] for each in index}
        assert reasons["onnx"] == (
            "Invalid argument: instance group onnx_0 of model onnx has kind KIND_GPU but no GPUs are available"
        )
        assert {each["state"] for each in index} == {"UNAVAILABLE"}
        serving.until_logged("model 'onnx': the flag --gpu-fallback=cpu runs it on the CPU")
