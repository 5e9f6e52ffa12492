"""A Python model with warm-up whose process dies: the next one is warmed up before it takes requests."""

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

from tests.compat.serving import Serving, write_model

PATIENCE = 60.0  # seconds

_MODEL = """import os
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.note = Path(args["model_repository"]) / "executed"

    def execute(self, requests):
        answers = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            with self.note.open("a") as file:
                file.write(f"{os.getpid()} {value[0]}\\n")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([os.getpid()], np.int32))]))
        return answers
"""
_WARMUP = """model_warmup [
  { name: "w" batch_size: 1 count: 2 inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: 1 zero_data: true } } }
]
"""


def _infer(serving: Serving, value: int) -> int:
    tensor = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [value]}
    url = f"http://{serving.http_url}/v2/models/mortal/infer"
    request = urllib.request.Request(url, json.dumps({"inputs": [tensor]}).encode())
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return int(json.load(answer)["outputs"][0]["data"][0])


def test_worker_that_replaces_another_is_warm_before_it_is_asked(tmp_path: Path) -> None:
    version = write_model(tmp_path / "models", "mortal", "INT32", backend="python", more=_WARMUP)
    (version / "model.py").write_text(_MODEL)
    note = version.parent / "executed"
    patient = f"--backend-config=python,restart-wait-seconds={PATIENCE:.0f}"
    with Serving(tmp_path / "models", tmp_path / "server.log", patient) as serving:
        serving.wait_until_live()
        first = _infer(serving, 7)
        os.kill(first, signal.SIGKILL)
        serving.until_logged("was warmed up again", PATIENCE)
        second = _infer(serving, 8)
        assert first != second
        lines = [line.split() for line in note.read_text().splitlines()]
        assert [value for pid, value in lines if int(pid) == first] == ["0", "0", "7"]
        assert [value for pid, value in lines if int(pid) == second] == ["0", "0", "8"]
        assert serving.stop() == 0, serving.log_text()[-3000:]
