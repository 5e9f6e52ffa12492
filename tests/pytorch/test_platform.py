"""The platform `pytorch` of the Python backend on a started server: modules of torch without a `TritonPythonModel`."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.pytorch.configs import io
from tests.pytorch.served import Served
from tests.pytorch.test_modules import CODE, NOT_COMPILED, ROWS, code, expected, pickled
from tests.pytorch.test_scripts import parameter

PLATFORM = 'backend: "python"\nplatform: "pytorch"\n'
CONFIG = PLATFORM + "max_batch_size: 8\n" + io([("x", "FP32", [4])], [("y", "FP32", [3])])
TWO = """
import torch


class Both(torch.nn.Module):
    def forward(self, a, b):
        return a + b, a - b
"""


def test_module_with_its_weights(served: Served) -> None:
    name = served.loaded(CONFIG + NOT_COMPILED, code(CODE, pickled), "model.py")
    assert np.allclose(served.infer(name, {"x": ("FP32", ROWS)})["y"], expected(ROWS))
    status, config = served.serving.ask(f"/v2/models/{name}/config")
    assert (status, config["backend"], config["platform"]) == (200, "python", "pytorch")


def test_requests_of_a_batch_get_their_own_rows(served: Served) -> None:
    batching = "dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: [ 6 ] }\n"
    name = served.loaded(CONFIG + NOT_COMPILED + batching, code(CODE, pickled), "model.py")
    given = [np.full((1 + i, 4), float(i), np.float32) for i in range(3)]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda x: served.infer(name, {"x": ("FP32", x)})["y"], given))
    for x, y in zip(given, answers, strict=True):
        assert np.allclose(y, expected(x))
    _, stats = served.serving.ask(f"/v2/models/{name}/stats")
    assert stats["model_stats"][0]["execution_count"] < 3, json.dumps(stats)


def test_compiled_module_with_two_outputs_by_order(served: Served) -> None:
    tensors = io([("a", "FP32", [4]), ("b", "FP32", [4])], [("sum", "FP32", [4]), ("difference", "FP32", [4])])
    eager = parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", r"{\"backend\": \"eager\"}")
    name = served.loaded(PLATFORM + tensors + eager, code(TWO), "model.py")
    found = served.infer(name, {"a": ("FP32", [1, 2, 3, 4]), "b": ("FP32", [1, 1, 1, 1])})
    assert (found["sum"].tolist(), found["difference"].tolist()) == ([2, 3, 4, 5], [0, 1, 2, 3])


def test_torchscript_in_place_of_a_module(served: Served) -> None:
    def save(path: Path) -> None:
        layer = torch.nn.Linear(4, 3)
        layer.load_state_dict({"weight": torch.arange(12.0).reshape(3, 4), "bias": torch.tensor([1.0, 2.0, 3.0])})
        torch.jit.save(torch.jit.script(layer), path)

    name = served.loaded(CONFIG, save)
    assert np.allclose(served.infer(name, {"x": ("FP32", ROWS)})["y"], expected(ROWS))


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("other.py", CODE, "there is no model.py and no model.pt"),
        ("model.py", "import torch", "Cannot find a subclass of torch.nn.Module"),
        ("model.py", "import torch, nowhere", "No module named 'nowhere'"),
    ],
)
def test_reason_if_it_cannot_be_loaded(served: Served, file: str, text: str, reason: str) -> None:
    assert reason in served.refused(CONFIG + NOT_COMPILED, code(text), file)


def test_module_that_returns_too_little(served: Served) -> None:
    tensors = io([("x", "FP32", [4])], [("y", "FP32", [3]), ("z", "FP32", [3])])
    name = served.loaded(PLATFORM + tensors + NOT_COMPILED, code(CODE, pickled), "model.py")
    status, text = served.fails(name, {"x": ("FP32", [1.0, 2.0, 3.0, 4.0])})
    assert status == 500
    assert "the module returned 1 tensors, and the configuration has 2 outputs" in text
