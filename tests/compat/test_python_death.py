"""A Python model whose process ends: the server says so wherever it is asked, and goes on serving the others."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as grpcclient

from tests.compat.serving import Serving, write_model

LIMIT = 20.0
UNHEALTHY = "Stub process 'mortal_0_0' is not healthy."

_MORTAL = """import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    status = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0]
    if status:
        os._exit(int(status))
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([os.getpid()], np.int32))])
"""


@pytest.fixture(params=["true", "false"])
def strict(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def serving(tmp_path: Path, strict: str) -> Iterator[Serving]:
    """`mortal` answers with its process id, and ends with its input as exit status unless that is 0."""
    repository = tmp_path / "models"
    (write_model(repository, "mortal", "INT32", backend="python") / "model.py").write_text(_MORTAL)
    write_model(repository, "other", "INT32")
    with Serving(repository, tmp_path / "server.log", f"--strict-readiness={strict}") as made:
        yield made.wait_until_live()


def infer(serving: Serving, model: str, value: int) -> tuple[int, object]:
    """Status, and the first element of the answer or the error's text."""
    document = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [value]}]}
    url = f"http://{serving.http_url}/v2/models/{model}/infer"
    try:
        with urllib.request.urlopen(url, json.dumps(document).encode(), LIMIT) as answer:
            return answer.status, json.load(answer)["outputs"][0]["data"][0]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def is_gone(pid: int) -> bool:
    """Whether nothing is left of the process, no zombie either."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def ready(serving: Serving) -> list[int | None]:
    paths = ("/v2/models/mortal/ready", "/v2/models/mortal/versions/1/ready", "/v2/models/other/ready")
    return [serving.status(path) for path in (*paths, "/v2/health/ready", "/v2/health/live")]


def body_of(serving: Serving, path: str) -> bytes:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{serving.http_url}{path}", timeout=LIMIT)
    with caught.value as error:
        return error.read()


@pytest.mark.rows("P10", "H8", "H10")
def test_model_whose_process_ended_is_not_ready(serving: Serving, strict: str) -> None:
    server_ready = strict == "false"
    status, pid = infer(serving, "mortal", 0)
    assert (status, ready(serving)) == (200, [200] * 5)
    assert isinstance(pid, int)
    assert infer(serving, "mortal", 3) == (500, UNHEALTHY)
    serving.until(lambda: is_gone(pid), "left a process behind")  # its socket ends a moment before it
    assert ready(serving) == [400, 400, 200, 200 if server_ready else 400, 200]
    assert body_of(serving, "/v2/models/mortal/ready") == b'{"error":"Model version not ready"}'
    with grpcclient.InferenceServerClient(serving.grpc_url) as client:
        assert not client.is_model_ready("mortal")
        assert not client.is_model_ready("mortal", "1")
        assert client.is_model_ready("other")
        assert client.is_server_ready() is server_ready
        assert client.is_server_live()
    assert [infer(serving, "mortal", 0) for _ in range(2)] == [(500, UNHEALTHY)] * 2
    assert infer(serving, "other", 5) == (200, 5)
    assert serving.stop() == 0
