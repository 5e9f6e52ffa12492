"""Instances on GPUs, models that use torch on their GPU, and `--gpu-fallback=cpu` on a machine with GPUs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.serving import Serving

TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_STRING dims: [ -1 ] }
"""
TELLING = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.said = " ".join([args["model_instance_kind"], args["model_instance_device_id"]])

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([self.said], object))]) for _ in requests]
"""
USING_TORCH = """
import numpy as np
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.device = f"cuda:{args['model_instance_device_id']}"

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "x")) for request in requests]

    def answer(self, tensor):
        here = torch.from_dlpack(tensor.to_dlpack()).to(self.device)
        said = f"{(here * 2).sum().item():g} on {torch.cuda.get_device_name(here.device)}"
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([said], object))])
"""


def write(repository: Path, name: str, group: str, code: str) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'backend: "python"{TENSORS}instance_group [ {group} ]\n')
    (version / "model.py").write_text(code)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("placement") / "models"
    write(folder, "first", "{ kind: KIND_GPU gpus: [ 0 ] }", TELLING)
    write(folder, "any", "{ kind: KIND_GPU }", TELLING)
    write(folder, "auto", "{ kind: KIND_AUTO }", TELLING)
    write(folder, "plain", "{ kind: KIND_CPU }", TELLING)
    write(folder, "missing", "{ kind: KIND_GPU gpus: [ 99 ] }", TELLING)
    write(folder, "computes", "{ kind: KIND_GPU count: 2 gpus: [ 0 ] }", USING_TORCH)
    return folder


@pytest.fixture(scope="module", params=["", "--gpu-fallback=cpu"], ids=["refusing", "falling_back"])
def served(request: pytest.FixtureRequest, repository: Path) -> Iterator[tuple[Serving, bool]]:
    flags = ["--exit-on-error=false", "--strict-readiness=false", *([request.param] if request.param else [])]
    with Serving(repository, repository.parent / f"log{len(flags)}", *flags) as running:
        yield running.wait_until_live(), bool(request.param)


def asked(serving: Serving, model: str, values: list[float]) -> Any:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(values)], "data": values}]}
    status, answer = serving.ask(f"/v2/models/{model}/infer", json.dumps(body).encode())
    assert status == 200, answer
    return answer["outputs"][0]["data"][0]


@pytest.mark.parametrize(
    ("model", "place"), [("first", "GPU 0"), ("any", "GPU 0"), ("auto", "GPU 0"), ("plain", "CPU 0")]
)
def test_model_is_told_its_place(served: tuple[Serving, bool], model: str, place: str) -> None:
    assert asked(served[0], model, [1.0]) == place


def test_model_of_a_gpu_that_is_not_there(served: tuple[Serving, bool]) -> None:
    serving, falls_back = served
    if falls_back:
        assert asked(serving, "missing", [1.0]) == "CPU 0"
        return
    _, index = serving.ask("/v2/repository/index", b"")
    [entry] = [each for each in index if each["name"] == "missing"]
    assert "GPU" in entry["reason"]


def test_model_computes_with_torch_on_its_gpu(served: tuple[Serving, bool], gpus: list[dict[str, str]]) -> None:
    assert asked(served[0], "computes", [1.0, 2.5]) == f"7 on {gpus[0]['name']}"


def test_configuration_names_the_gpus(served: tuple[Serving, bool], gpus: list[dict[str, str]]) -> None:
    _, config = served[0].ask("/v2/models/any/config")
    [group] = config["instance_group"]
    assert (group["kind"], group["gpus"]) == ("KIND_GPU", list(range(len(gpus))))
