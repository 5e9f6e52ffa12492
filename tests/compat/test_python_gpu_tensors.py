"""Python models that answer, and call each other, with tensors of a GPU. The driver is a small one in C."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving, write_model
from tests.workers.child.gpu_memory import driver_in

ROOT = Path(__file__).resolve().parents[2]
MODEL = f"""import sys

import triton_python_backend_utils as pb_utils

sys.path.append({str(ROOT)!r})
from tests.workers.child.gpu_memory import on_gpu


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "INPUT0")) for request in requests]

    def answer(self, given):
        tensor = pb_utils.Tensor.from_dlpack("OUTPUT0", on_gpu(given.as_numpy() * 2, DEVICE))
        assert not tensor.is_cpu()
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUTPUT0", tensor)])
"""
CALLING = """
    def answer(self, given):
        tensor = pb_utils.Tensor.from_dlpack("INPUT0", on_gpu(given.as_numpy() + 1))
        call = pb_utils.InferenceRequest(model_name="doubling", requested_output_names=["OUTPUT0"], inputs=[tensor])
        return call.exec()
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("gpu_tensors")
    driver_in(folder)
    models = {
        "doubling": (MODEL.replace("DEVICE", "0"), ""),
        "inside": (
            MODEL.replace("DEVICE", "0"),
            'parameters { key: "EXECUTION" value { string_value: "in_process" } }',
        ),
        "calling": (MODEL.partition("    def answer")[0] + CALLING.lstrip("\n"), ""),
        "absent": (MODEL.replace("DEVICE", "7"), ""),
    }
    for name, (code, more) in models.items():
        (write_model(folder / "models", name, "INT32", backend="python", more=more) / "model.py").write_text(code)
    path = ":".join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    with Serving(folder / "models", folder / "log", environment={"LD_LIBRARY_PATH": path}) as running:
        yield running.wait_until_live()
        assert running.stop() == 0


def answered(serving: Serving, model: str, values: list[int]) -> list[int]:
    given = grpcclient.InferInput("INPUT0", [len(values)], "INT32")
    given.set_data_from_numpy(np.array(values, np.int32))
    with grpcclient.InferenceServerClient(serving.grpc_url) as client:
        found = client.infer(model, [given]).as_numpy("OUTPUT0")
    assert found is not None
    numbers: list[int] = found.tolist()
    return numbers


@pytest.mark.parametrize(
    ("model", "expected"), [("doubling", [2, 4, 6]), ("inside", [2, 4, 6]), ("calling", [4, 6, 8])]
)
def test_answer_comes_from_the_gpu(serving: Serving, model: str, expected: list[int]) -> None:
    for _ in range(3):
        assert answered(serving, model, [1, 2, 3]) == expected


def test_large_answer(serving: Serving) -> None:
    values = list(range(300_000))
    assert answered(serving, "doubling", values) == [2 * value for value in values]


def test_failed_copy_is_the_error_of_its_request(serving: Serving) -> None:
    with pytest.raises(
        InferenceServerException, match="Failed to copy a tensor from the GPU: cuDeviceGet returned 101"
    ):
        answered(serving, "absent", [1])
    assert answered(serving, "doubling", [5]) == [10]
