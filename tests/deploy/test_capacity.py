"""The measurement of docs/deploy/capacity.md, with a model whose capacity is known."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.serving import Serving, write_model

pytestmark = pytest.mark.deploy

LIMIT = 120.0
MODEL = ("-m", "steady", "-i", "grpc", "--input-data", "zero", "--shape", "INPUT0:1")
RATES = ("--request-distribution", "poisson", "--request-rate-range", "15:115:50", "--percentile", "99", "-l", "400")
WINDOWS = ("-p", "2000", "-s", "999")
_STEADY = """import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02 * len(requests))
        tensors = [pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""


def test_rates_are_measured_up_to_the_first_that_is_too_high(tmp_path: Path) -> None:
    """The model answers 50 requests a second, so its queue grows at 65."""
    version = write_model(tmp_path / "models", "steady", "FP32", backend="python")
    (version / "model.py").write_text(_STEADY)
    result = tmp_path / "rates.json"
    with Serving(tmp_path / "models", tmp_path / "log") as serving:
        url = serving.wait_until_live().grpc_url
        command = [sys.executable, "-m", "halimede", "perf", "-u", url, *MODEL, *RATES, *WINDOWS, "--json", str(result)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert "went over the set limit of 400 msec" in done.stdout + done.stderr
    assert [level["value"] for level in json.loads(result.read_text())["levels"]] == [15]
