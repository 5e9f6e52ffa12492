"""Python models that answer with torch tensors on their GPU."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.compat.serving import Serving, write_model

MODEL = """
import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack, to_dlpack


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "INPUT0")) for request in requests]

    def answer(self, given):
        there = torch.from_dlpack(given.to_dlpack()).cuda()
        return pb_utils.InferenceResponse([self.computed(there)])
"""
BODIES = {
    "capsule": 'return pb_utils.Tensor.from_dlpack("OUTPUT0", to_dlpack(there * 2))',
    "tensor": 'return pb_utils.Tensor.from_dlpack("OUTPUT0", there * 2)',
    # The product is computed for long on a stream of its own, and nothing waits for it here.
    "stream": """
        with torch.cuda.stream(torch.cuda.Stream()):
            factor = torch.zeros(8192, 8192, device="cuda")
            for _ in range(50):
                factor = factor @ factor
            return pb_utils.Tensor.from_dlpack("OUTPUT0", to_dlpack(there * 2 + factor[0, 0]))""",
    "back": """
        first = pb_utils.Tensor.from_dlpack("x", there)
        assert not first.is_cpu()
        again = from_dlpack(first.to_dlpack())
        assert again.data_ptr() == there.data_ptr()
        return pb_utils.Tensor.from_dlpack("OUTPUT0", again * 2)""",
    "calling": """
        call = pb_utils.InferenceRequest(
            model_name="tensor", requested_output_names=["OUTPUT0"],
            inputs=[pb_utils.Tensor.from_dlpack("INPUT0", there)])
        answer = call.exec()
        assert not answer.has_error(), answer.error().message()
        return pb_utils.get_output_tensor_by_name(answer, "OUTPUT0")""",
    "bf16": """
        half = pb_utils.Tensor.from_dlpack("x", there.to(torch.bfloat16))
        return pb_utils.Tensor.from_dlpack("OUTPUT0", from_dlpack(half.to_dlpack()).float() * 2)""",
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("gpu_tensors")
    for name, body in BODIES.items():
        for inside in (False, True):
            parameters = 'parameters { key: "EXECUTION" value { string_value: "in_process" } }' if inside else ""
            called = f"{name}_inside" if inside else name
            version = write_model(folder / "models", called, "FP32", backend="python", more=parameters)
            code = f"{MODEL}\n    def computed(self, there):\n        {body.strip()}\n"
            (version / "model.py").write_text(code)
    with Serving(folder / "models", folder / "log") as running:
        yield running.wait_until_live()
        assert running.stop() == 0


@pytest.mark.parametrize("inside", ["", "_inside"])
@pytest.mark.parametrize("model", BODIES)
def test_answer_comes_from_the_gpu(serving: Serving, model: str, inside: str) -> None:
    for size in (3, 100_000):
        values = np.arange(size, dtype=np.float32) % 256  # which BF16 can represent
        given = grpcclient.InferInput("INPUT0", [size], "FP32")
        given.set_data_from_numpy(values)
        with grpcclient.InferenceServerClient(serving.grpc_url) as client:
            found = client.infer(model + inside, [given]).as_numpy("OUTPUT0")
        np.testing.assert_array_equal(found, values * 2)
