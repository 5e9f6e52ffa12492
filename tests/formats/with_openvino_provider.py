"""The execution provider of OpenVINO inside ONNX Runtime. Its package has the import name of the usual one, so it is in
an environment of its own, and its models run in processes of their own."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from tests.backends import onnx_models
from tests.compat.serving import Serving

ENVIRONMENT = Path(os.environ.get("HALIMEDE_OPENVINO_PROVIDER", ".cache/openvino_provider")).resolve()
"""A virtual environment with onnxruntime-openvino, which `make test-openvino` makes."""
ACCELERATED = """optimization { execution_accelerators {
  cpu_execution_accelerator { name: "openvino" parameters { key: "device_type" value: "CPU" } }
} }
"""
APART = f"""parameters {{ key: "HOME" value {{ string_value: "child" }} }}
parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{ENVIRONMENT}" }} }}
instance_group {{ count: 1 kind: KIND_CPU }}
"""
CONFIGS = {"plain": "", "apart": APART, "accelerated": ACCELERATED + APART, "without": ACCELERATED}
NUMBERS = np.random.default_rng(0)
GIVEN = NUMBERS.standard_normal((3, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("provider")
    weights = [NUMBERS.standard_normal(shape).astype(np.float32) / 8 for shape in ((64, 128), (128, 10))]
    for name, config in CONFIGS.items():
        version = folder / "models" / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(onnx_models.mlp(*weights))
        (version.parent / "config.pbtxt").write_text(f'backend: "onnxruntime"\n{config}')
    with Serving(folder / "models", folder / "log", "--exit-on-error=false") as server:
        server.wait_until_live()
        yield server
        assert server.stop() == 0, server.log_text()[-3000:]


def libraries(server: Serving, model: str) -> set[str]:
    """The shared libraries of ONNX Runtime that the process of a model has loaded."""
    [number] = re.findall(rf"'{model}_0(?:_0)?' runs in process (\d+)", server.log_text())
    maps = Path(f"/proc/{number}/maps").read_text()
    return {Path(path).name for path in re.findall(r"/\S*onnxruntime\S*\.so\S*", maps)}


@pytest.mark.rows("BO14")
def test_models_of_both_packages_serve_beside_each_other(served: Serving) -> None:
    answers = {}
    for name in ("plain", "apart", "accelerated"):
        _, config = served.ask(f"/v2/models/{name}/config")
        with httpclient.InferenceServerClient(served.http_url) as client:
            spec = config["input"][0]["name"]
            given = httpclient.InferInput(spec, list(GIVEN.shape), "FP32").set_data_from_numpy(GIVEN)
            answers[name] = client.infer(name, [given]).as_numpy(config["output"][0]["name"])
        np.testing.assert_allclose(answers[name], answers["plain"], rtol=0, atol=1e-4)
    assert "libonnxruntime_providers_openvino.so" in libraries(served, "accelerated")
    assert "libonnxruntime_providers_openvino.so" not in libraries(served, "apart")


def test_server_without_the_provider_refuses_the_model(served: Serving) -> None:
    """The server's own package lacks it, and what is installed elsewhere does not count."""
    _, index = served.ask("/v2/repository/index", b"{}")
    [reason] = [each["reason"] for each in index if each["name"] == "without"]
    assert "OpenVINO Execution Accelerator is not enabled" in reason
