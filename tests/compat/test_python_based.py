"""A running server with Python-based backends (R83), and with models that load slowly or fail."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.compat.serving import Serving, write_model

BACKENDS = Path(__file__).parents[2] / "examples" / "backends"
LIMIT = 60.0

Start = Callable[..., Serving]

_BACKEND = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([{}], np.int32))]) for _ in requests]
"""
_LONG_IMPORT = """
import os, time
open({folder!r} + "/begun", "w").close()
while not os.path.exists({folder!r} + "/go"):
    time.sleep(0.01)
"""
_FAILS = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError(f"no answer to {len(requests)}")
"""


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Start:
    """Starts a server over `models`. Ends it after the test."""

    def start(*flags: str) -> Serving:
        serving = Serving(tmp_path / "models", tmp_path / "server.log", *flags)
        request.addfinalizer(serving.kill)
        return serving.wait_until_live()

    return start


@contextmanager
def released(go: Path) -> Iterator[None]:
    """The file for which the model waits. It is made at the latest when the test ends, also if it fails."""
    try:
        yield
    finally:
        go.touch()


def post(serving: Serving, path: str, body: Any = "") -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
    request = urllib.request.Request(f"http://{serving.http_url}/v2/{path}", data, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def infer(serving: Serving, model: str, name: str = "INPUT0", datatype: str = "INT32", *values: float) -> Any:
    """The data of the outputs, or the error."""
    rows = [{"name": name, "shape": [len(values)], "datatype": datatype, "data": values}]
    _, answer = post(serving, f"models/{model}/infer", {"inputs": rows})
    return [output["data"] for output in answer["outputs"]] if "outputs" in answer else answer["error"]


@pytest.mark.rows("R83")
def test_framework_is_served_by_python_only(start: Start, tmp_path: Path) -> None:
    """The example of docs/python-based-backends.md, over HTTP."""
    weights = tmp_path / "models" / "pets" / "1" / "linear.json"
    weights.parent.mkdir(parents=True)
    weights.write_text('{"coefficients": [[0.5, -1], [2, 0.25]], "classes": ["cat", "dog"]}')
    (weights.parents[1] / "config.pbtxt").write_text('backend: "linear"')
    serving = start(f"--backend-directory={BACKENDS}")
    body = {"inputs": [{"name": "FEATURES", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, -5, -4]}]}
    _, answer = post(serving, "models/pets/infer", body)
    assert [output["data"] for output in answer["outputs"]] == [[-1.5, 2.5, 1.5, -11.0], ["dog", "cat"]]
    with urllib.request.urlopen(f"http://{serving.http_url}/v2/models/pets/config", timeout=LIMIT) as answered:
        config = json.load(answered)
    assert (config["backend"], config["runtime"], config["max_batch_size"]) == ("linear", "model.py", 64)
    assert serving.stop() == 0


def test_changed_backend_is_used_from_the_next_load_on(start: Start, tmp_path: Path) -> None:
    """A load on request does nothing if nothing of the model has changed, as in Triton (R10)."""
    code = tmp_path / "backends" / "fw" / "model.py"
    code.parent.mkdir(parents=True)
    code.write_text(_BACKEND.format(1))
    weights = write_model(tmp_path / "models", "m", "INT32", backend="fw") / "weights"
    weights.touch()
    serving = start(f"--backend-directory={tmp_path}/backends", "--model-control-mode=explicit", "--load-model=m")
    assert infer(serving, "m", "INPUT0", "INT32", 0) == [[1]]
    code.write_text(_BACKEND.format(2))
    assert post(serving, "repository/models/m/load")[0] == 200
    assert infer(serving, "m", "INPUT0", "INT32", 0) == [[1]]
    os.utime(weights, (2e9, 2e9))
    assert post(serving, "repository/models/m/load")[0] == 200
    assert infer(serving, "m", "INPUT0", "INT32", 0) == [[2]]
    code.unlink()
    os.utime(weights, (2e9 + 10, 2e9 + 10))
    status, answer = post(serving, "repository/models/m/load")
    assert (status, answer["error"]) == (
        400,
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: unable to find backend "
        "library for backend 'fw', try specifying runtime on the model configuration.;\n",
    )
    assert infer(serving, "m", "INPUT0", "INT32", 0) == [[2]]


def test_model_with_a_slow_import_delays_no_other_and_logs_where_it_is(start: Start, tmp_path: Path) -> None:
    models = tmp_path / "models"
    version = write_model(models, "long", "INT32", backend="python")
    (version / "heavy.py").write_text(_LONG_IMPORT.format(folder=str(tmp_path)))
    (version / "model.py").write_text("import heavy\n" + _BACKEND.format(3))
    write_model(models, "identity", "INT32")
    (write_model(models, "other", "INT32", backend="python") / "model.py").write_text(_BACKEND.format(4))
    serving = start("--model-control-mode=explicit", "--load-model=identity", "--disable-auto-complete-config")
    with ThreadPoolExecutor(1) as threads, released(tmp_path / "go"):
        loading = threads.submit(post, serving, "repository/models/long/load")
        serving.until(lambda: (tmp_path / "begun").exists(), "did not begin to load the model")
        assert infer(serving, "identity", "INPUT0", "INT32", 7) == [[7]]
        assert post(serving, "repository/models/other/load")[0] == 200
        assert infer(serving, "other", "INPUT0", "INT32", 0) == [[4]]
        assert "no available versions" in infer(serving, "long", "INPUT0", "INT32", 0)
        line = "still initializing after 5 s (importing heavy, model.py line 1)"
        serving.until(lambda: line in serving.log_text(), "did not say what the model does")
        assert f"model 'long' instance long_0_0: {line}" in serving.log_text()
        assert not loading.done()
        (tmp_path / "go").touch()
        assert loading.result(LIMIT)[0] == 200
    assert infer(serving, "long", "INPUT0", "INT32", 0) == [[3]]
    assert serving.stop() == 0


def test_failures_of_a_model_are_in_the_log_once_and_readable(start: Start, tmp_path: Path) -> None:
    (write_model(tmp_path / "models", "m", "INT32", backend="python") / "model.py").write_text(_FAILS)
    serving = start()
    for _ in range(20):
        answer = infer(serving, "m", "INPUT0", "INT32", 0)
        assert answer.startswith("Failed to process the request(s) for model 'm_0_0', message: ValueError: no answer")
    assert serving.stop() == 0
    log = serving.log_text()
    path = tmp_path / "models" / "m" / "1" / "model.py"
    assert log.count("exception in execute of model 'm' instance m_0_0:\n    Traceback (most recent call last):\n") == 1
    assert (
        f'      File "{path}", line 4, in execute\n        raise ValueError(f"no answer to {{len(requests)}}")\n'
    ) in log
