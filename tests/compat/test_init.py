"""A model made by `halimede init` passes `halimede check`, serves, and answers clients."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http

from tests.backends.onnx_models import add_and_subtract
from tests.compat.serving import Serving

LIMIT = 60
_LENGTHS = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "LENGTH", "data_type": "TYPE_INT32", "dims": [1]})
        return config

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        lengths = np.array([[len(text)] for text in texts[:, 0]], np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("LENGTH", lengths)])
"""
_DOUBLES = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("DOUBLE", 2 * value)])
"""


def halimede(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "halimede", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`sums`, `lengths` and `doubles`, made by the command from files beside them."""
    folder = tmp_path_factory.mktemp("init")
    (folder / "sums.onnx").write_bytes(add_and_subtract(["n", 2]))
    (folder / "lengths.py").write_text(_LENGTHS)
    (folder / "doubles.py").write_text(_DOUBLES)
    for name in ("sums.onnx", "lengths.py", "doubles.py"):
        made = halimede("init", str(folder / name), str(folder / "models"))
        assert (made.returncode, made.stderr) == (0, "")
    return folder / "models"


def test_made_models_pass_and_serve(repository: Path, tmp_path: Path) -> None:
    checked = halimede("check", str(repository), "--strict", "--load")
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.startswith("3 models: 3 serve\n")
    assert "0 errors, 0 warnings, 0 notes; 3 models loaded" in checked.stdout
    with Serving(repository, tmp_path / "log") as server:
        server.wait_until_live()
        client = http.InferenceServerClient(server.http_url)
        assert ask(client, "sums", a=np.array([[1, 2]], np.float32), b=np.array([[3, 4]], np.float32), out="sum") == [
            [4, 6]
        ]
        assert ask(client, "lengths", TEXT=np.array([["four"], ["by"]], np.object_), out="LENGTH") == [[4], [2]]
        assert ask(client, "doubles", VALUE=np.array([1.5], np.float32), out="DOUBLE") == [3]


def ask(
    client: http.InferenceServerClient,
    model: str,
    *,
    out: str,
    **inputs: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]",
) -> object:
    given = []
    for name, array in inputs.items():
        datatype = "BYTES" if array.dtype == np.object_ else "FP32"
        given.append(http.InferInput(name, list(array.shape), datatype))
        given[-1].set_data_from_numpy(array)
    return client.infer(model, given).as_numpy(out).tolist()


def test_printed_command_asks_the_model(repository: Path) -> None:
    source = repository / "sums" / "1" / "model.onnx"
    made = halimede("init", str(source), str(repository.parent / "others"), "--name", "again")
    line = made.stdout.rpartition("or ask it:   halimede ")[2].replace("'", "").split()
    answered = halimede(*line)
    assert answered.returncode == 0, answered.stderr
    assert "sum" in answered.stdout


def test_second_time_is_refused(repository: Path) -> None:
    refused = halimede("init", str(repository.parent / "sums.onnx"), str(repository))
    assert refused.returncode == 1
    assert refused.stderr == f"error: '{repository}/sums' exists already; --name gives the model another name\n"
