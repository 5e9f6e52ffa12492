"""The demo's models as PyTorch has them answer as their ONNX twins do."""

import os
from collections.abc import Iterator
from pathlib import Path

import build_repository
import numpy as np
import onnxruntime
import pytest
import torch_models
from digits_onnx import split
from tritonclient import http

from tests.compat.serving import Serving

DEMO = build_repository.REPOSITORY


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    try:
        build_repository.build()
    except build_repository.DownloadError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("examples")
    torch_models.build(folder / "models", DEMO, build_repository.CACHE)
    with Serving(folder / "models", folder / "server.log") as running:
        yield running.wait_until_live()
        assert running.stop() == 0, running.log_text()[-3000:]


def ask(serving: Serving, model: str, outputs: list[str], **inputs: np.ndarray) -> list[np.ndarray]:
    with http.InferenceServerClient(serving.http_url, network_timeout=60) as client:
        given = []
        for name, array in inputs.items():
            kind = "FP32" if array.dtype == np.float32 else "INT64"
            given.append(http.InferInput(name, list(array.shape), kind).set_data_from_numpy(array))
        answer = client.infer(model, given)
        return [answer.as_numpy(name) for name in outputs]


def twin(model: str, version: int, **inputs: np.ndarray) -> list[np.ndarray]:
    file: Path = DEMO / model / str(version) / "model.onnx"
    return onnxruntime.InferenceSession(file).run(None, inputs)


@pytest.mark.parametrize(("model", "output"), [("digits", "probabilities"), ("digits_exported", "OUTPUT__0")])
def test_digits(serving: Serving, model: str, output: str) -> None:
    images = split()[1].pixels[:40]
    [found] = ask(serving, model, [output], image=images)
    np.testing.assert_allclose(found, twin("digits", 2, image=images)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("model", ["minilm", "minilm_exported"])
def test_minilm(serving: Serving, model: str) -> None:
    numbers = np.random.default_rng(0)
    ids, mask = numbers.integers(0, 30_000, (3, 12)), np.ones((3, 12), np.int64)
    mask[1, 7:] = mask[2, 3:] = 0  # padding
    states, embedding = ask(serving, model, ["OUTPUT__0", "OUTPUT__1"], input_ids=ids, attention_mask=mask)
    expected = twin("minilm", 1, input_ids=ids, attention_mask=mask)
    np.testing.assert_allclose(embedding, expected[1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(states[mask == 1], expected[0][mask == 1], rtol=0, atol=1e-5)
