"""A GPU that a model has broken for its process: what requests get, and what comes back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.devices import DEVICE_FAILED
from tests.compat.serving import Serving
from tests.pytorch.configs import io

torch = pytest.importorskip("torch")

from tests.gpu.test_pytorch import ON_GPU, infer  # noqa: E402 - what follows needs torch
from tests.pytorch import scripts  # noqa: E402

TWO = io([("INPUT0", "FP32", [2])], [("OUTPUT0", "FP32", [2])])
CHILD = 'parameters { key: "HOME" value: { string_value: "child" } }\n'


def write(repository: Path, name: str, module: Any, more: str) -> None:
    scripts.save(module, repository / name / "1" / "model.pt")
    text = f'backend: "pytorch"\nmax_batch_size: 8\n{TWO}{more}'
    (repository / name / "config.pbtxt").write_text(text)


def write_models(repository: Path, home: str) -> Path:
    """`looks` and `waits` break their GPU by an index out of range; `echo` and `on_cpu` do not."""
    write(repository, "looks", scripts.LookUp(), ON_GPU + home)
    write(repository, "waits", scripts.LookUp(waits=True), ON_GPU + home)
    write(repository, "echo", scripts.Echo(), ON_GPU)
    write(repository, "on_cpu", scripts.Echo(), "instance_group [ { kind: KIND_CPU } ]\n")
    return repository


def ask(serving: Serving, model: str, values: list[float]) -> tuple[int, Any]:
    given = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": values}
    status, answer = serving.ask(f"/v2/models/{model}/infer", json.dumps({"inputs": [given]}).encode())
    return status, answer["error"] if status != 200 else answer["outputs"][0]["data"]


def is_ready(serving: Serving, model: str) -> bool:
    return serving.status(f"/v2/models/{model}/ready") == 200


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Serving]:
    patient = "--backend-config=pytorch,restart-wait-seconds=60"  # a process imports torch, which takes its time
    with Serving(write_models(tmp_path / "models", CHILD), tmp_path / "log", patient) as running:
        yield running.wait_until_live()
        assert running.stop() == 0, running.log_text()[-3000:]


def test_child_process_is_started_again(children: Serving) -> None:
    for turn in range(2):
        for model in ("looks", "waits"):
            assert ask(children, model, [0, 3]) == (200, [10, 13])
            status, text = ask(children, model, [1, 1000])
            assert (status, text) == (500, f"{DEVICE_FAILED}: CUDA error: device-side assert triggered")
            # The request waits for the new process.
            assert ask(children, model, [2, 1]) == (200, [12, 11])
            assert is_ready(children, model)
        assert children.log_text().count("it is started again") == 2 * (turn + 1)
    rows = np.ones((2, 2), np.float32)
    assert infer(children, "echo", INPUT0=rows)["OUTPUT0"].tolist() == rows.tolist()  # in the server's process
    assert children.log_text().count(DEVICE_FAILED) >= 4


@pytest.mark.parametrize("model", ["looks", "waits"])
def test_server_whose_gpu_has_failed_refuses_and_serves_the_rest(tmp_path: Path, model: str) -> None:
    with Serving(write_models(tmp_path / "models", ""), tmp_path / "log") as serving:
        serving.wait_until_live()
        assert serving.status("/v2/health/ready") == 200
        assert ask(serving, "echo", [1, 2]) == (200, [1, 2])
        assert ask(serving, model, [0, 3]) == (200, [10, 13])
        status, text = ask(serving, model, [1, 1000])
        assert (status, text) == (500, f"{DEVICE_FAILED}: CUDA error: device-side assert triggered")
        assert ask(serving, model, [0, 3]) == (500, DEVICE_FAILED)
        assert not is_ready(serving, model)
        # Another model finds out by its next request.
        status, text = ask(serving, "echo", [1, 2])
        assert status == 500
        assert text.startswith(DEVICE_FAILED), text
        assert not is_ready(serving, "echo")
        assert serving.status("/v2/health/ready") == 400
        assert ask(serving, "on_cpu", [1, 2]) == (200, [1, 2])
        assert is_ready(serving, "on_cpu")
        assert serving.stop() == 0, serving.log_text()[-3000:]
