"""Python modules of torch on a started server (BT33 to BT37): `runtime: "model.py"`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.pytorch import scripts
from tests.pytorch.configs import io
from tests.pytorch.served import Served
from tests.pytorch.test_scripts import parameter

RUNTIME = 'backend: "pytorch"\nruntime: "model.py"\n'
EAGER = r"{\"disable\": true}"
CONFIG = RUNTIME + io([("x", "FP32", [4])], [("y", "FP32", [3])])
NOT_COMPILED = 'parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value: { string_value: "%s" } }\n' % EAGER  # noqa: UP031
CODE = """
import torch
from torch.nn import Linear


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Linear(4, 3)

    def forward(self, x):
        return self.layer(x)
"""
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def code(text: str, *others: Callable[[Path], object]) -> Callable[[Path], object]:
    """Writes `model.py`, and other files beside it."""

    def save(path: Path) -> None:
        path.write_text(text)
        for write in others:
            write(path.parent)

    return save


def weights() -> dict[str, Any]:
    return {"layer.weight": torch.arange(12.0).reshape(3, 4), "layer.bias": torch.tensor([1.0, 2.0, 3.0])}


def expected(rows: Any) -> Any:
    state = weights()
    return rows @ state["layer.weight"].numpy().T + state["layer.bias"].numpy()


def pickled(folder: Path) -> None:
    torch.save(weights(), folder / "model.pt")


def in_safetensors(folder: Path) -> None:
    safetensors.torch.save_file(weights(), folder / "model.safetensors")


@pytest.mark.rows("BT33", "BT34", "BT35", "BT37")
@pytest.mark.parametrize("write", [pickled, in_safetensors])
def test_module_with_weights_beside_it(served: Served, write: Callable[[Path], None]) -> None:
    """Both files are in one folder, and the weights are not taken for TorchScript."""
    name = served.loaded("max_batch_size: 4\n" + CONFIG + NOT_COMPILED, code(CODE, write), "model.py")
    np.testing.assert_allclose(served.infer(name, {"x": ("FP32", ROWS)})["y"], expected(ROWS), rtol=1e-6)
    served.serving.until_logged(f"instance '{name}_0' runs in process")
    config = served.config(name)
    assert (config["runtime"], config["default_model_filename"]) == ("model.py", "")


@pytest.mark.rows("BT35")
def test_batches(served: Served) -> None:
    batcher = "dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 5000000 }\n"
    name = served.loaded("max_batch_size: 3\n" + batcher + CONFIG + NOT_COMPILED, code(CODE, pickled), "model.py")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda part: served.infer(name, {"x": ("FP32", part)})["y"], (ROWS[:1], ROWS))
    np.testing.assert_allclose(first, expected(ROWS[:1]), rtol=1e-6)
    np.testing.assert_allclose(second, expected(ROWS), rtol=1e-6)
    _, statistics = served.serving.ask(f"/v2/models/{name}/stats")
    assert statistics["model_stats"][0]["execution_count"] == 1


PAIR = """
import torch


class Model(torch.nn.Module):
    def forward(self, a, b):
        return [a - b, a + b]
"""


@pytest.mark.rows("BT35")
def test_inputs_and_outputs_are_in_the_order_of_the_configuration(served: Served) -> None:
    config = io([("second", "FP32", [1]), ("first", "FP32", [1])], [("p", "FP32", [1]), ("q", "FP32", [1])])
    name = served.loaded(RUNTIME + config + NOT_COMPILED, code(PAIR), "model.py")
    answer = served.infer(name, {"first": ("FP32", [2]), "second": ("FP32", [5])})
    assert (answer["p"].tolist(), answer["q"].tolist()) == ([3], [7])


@pytest.mark.rows("BT34")
def test_script_as_the_file_of_the_runtime(served: Served) -> None:
    config = RUNTIME + io([("INPUT0", "FP32", [2])], [("OUTPUT0", "FP32", [2])])
    name = served.loaded(config, lambda path: scripts.save(scripts.Echo(), path), "model.pt")
    assert served.infer(name, {"INPUT0": ("FP32", [1, 2])})["OUTPUT0"].tolist() == [1, 2]


@pytest.mark.rows("BT34")
def test_class_of_the_file_goes_before_those_that_it_imports(served: Served) -> None:
    text = CODE.replace("class Model(", "class Zebra(").replace("from torch.nn import Linear", "from torch.nn import *")
    name = served.loaded("max_batch_size: 4\n" + CONFIG + NOT_COMPILED, code(text, pickled), "model.py")
    np.testing.assert_allclose(served.infer(name, {"x": ("FP32", ROWS)})["y"], expected(ROWS), rtol=1e-6)


@pytest.mark.rows("BT33", "BT34", "BT36", "BT37")
@pytest.mark.parametrize(
    ("text", "more", "reason"),
    [
        (None, "", "/['model.py', 'model.pt']"),
        ("x = 1\n", "", "Cannot find a subclass of torch.nn.Module"),
        ("import no_such_module\n", "", "ModuleNotFoundError: No module named 'no_such_module'"),
        (
            CODE,
            parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", r"{\"model\": 1}"),
            "'model' is not an optional parameter for 'torch.compile'",
        ),
        (CODE, parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", "["), "is no JSON"),
        (PAIR, NOT_COMPILED + "instance_group [ { kind: KIND_MODEL } ]\n", "Cannot determine model device"),
    ],
    ids=["no file", "no class", "no module", "bad key", "no JSON", "no device"],
)
def test_modules_that_are_refused(served: Served, text: str | None, more: str, reason: str) -> None:
    save = code(text) if text is not None else (lambda path: None)
    assert reason in served.refused(CONFIG + more, save, "model.py")


FAILING = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        if float(x[0, 0]) < 0:
            raise ValueError("negative")
        return x[:, :3]
"""


@pytest.mark.rows("BT35")
def test_exception_in_forward(served: Served) -> None:
    name = served.loaded("max_batch_size: 4\n" + CONFIG + NOT_COMPILED, code(FAILING), "model.py")
    status, text = served.fails(name, {"x": ("FP32", [[-1, 0, 0, 0]])})
    frame = f"Failed to process the request(s) for model instance '{name}_0', message: ValueError: negative\n\nAt:\n  "
    assert (status, text.startswith(frame)) == (500, True)
    assert f"/{name}/1/model.py(8): forward" in text
    assert served.infer(name, {"x": ("FP32", ROWS)})["y"].tolist() == ROWS[:, :3].tolist()


THREADS = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        numbers = torch.get_num_threads(), torch.get_num_interop_threads(), int(torch.is_inference_mode_enabled())
        return torch.tensor([numbers], dtype=torch.float32)
"""


@pytest.mark.rows("BT35", "BT36")
def test_threads_of_a_process(served: Served) -> None:
    name = served.loaded(CONFIG + NOT_COMPILED, code(THREADS), "model.py")
    given = {"x": ("FP32", [1, 2, 3, 4])}
    assert served.infer(name, given)["y"].tolist() == [[1, 1, 1]]
    more = parameter("NUM_THREADS", "2") + parameter("NUM_INTEROP_THREADS", "3")
    name = served.loaded(CONFIG + NOT_COMPILED + more, code(THREADS), "model.py")
    assert served.infer(name, given)["y"].tolist() == [[2, 3, 1]]


@pytest.mark.rows("BT36")
def test_options_of_torch_compile(served: Served) -> None:
    options = parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", r"{\"backend\": \"eager\", \"dynamic\": true}")
    name = served.loaded("max_batch_size: 4\n" + CONFIG + options, code(CODE, pickled), "model.py")
    np.testing.assert_allclose(served.infer(name, {"x": ("FP32", ROWS)})["y"], expected(ROWS), rtol=1e-6)
    served.serving.until_logged(f"model '{name}': torch.compile with {{'backend': 'eager', 'dynamic': True}}")


class Evil:
    """A pickle of it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_pickle_in_disguise_is_not_opened(served: Served, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    save = code(CODE, lambda folder: torch.save({"layer.weight": Evil(mark)}, folder / "model.pt"))
    reason = served.refused(CONFIG + NOT_COMPILED, save, "model.py")
    assert "is a pickle that is more than tensors and could run code" in reason
    served.serving.until_logged("--backend-config=pytorch,allow-pickle=true")
    assert not mark.exists()


def test_weights_that_do_not_fit(served: Served) -> None:
    save = code(CODE, lambda folder: torch.save({"other": torch.zeros(1)}, folder / "model.pt"))
    assert "Missing key(s) in state_dict" in served.refused(CONFIG + NOT_COMPILED, save, "model.py")
