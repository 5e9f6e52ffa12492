"""The ensemble from text to embedding through a server, compared with its parts in numpy."""

import json
import random
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import embed
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving

Floats = NDArray[np.float32]

ODD = ("", "?", "Où est la bibliothèque ?", "猫は窓辺で眠る。", "a" * 300, "word " * 300)
WORDS = ("cat", "sleeps", "rates", "interest", "soup", "orbit", "garlic", "kitten", "on", "a", "warm", "windowsill")


def sentences(count: int, seed: int) -> list[str]:
    """Sentences of 1 to 40 words."""
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.choice((1, 2, 5, 12, 40)))) for _ in range(count)]


class Parts:
    """The embedding of one sentence by itself, so without padding. The last steps are in numpy."""

    def __init__(self, repository: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(repository / "tokenizer" / "1" / "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.no_padding()
        self.session = onnxruntime.InferenceSession(repository / "minilm" / "1" / "model.onnx")

    def embed(self, sentence: str) -> Floats:
        ids = np.array([self.tokenizer.encode(sentence).ids], np.int64)
        [vectors] = self.session.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        mean = vectors[0].mean(axis=0)
        embedding: Floats = mean / np.linalg.norm(mean)
        return embedding


@pytest.fixture(scope="module")
def parts(demo_repository: Path) -> Parts:
    return Parts(demo_repository)


@pytest.fixture(scope="module")
def client(demo_server: Serving) -> Iterator[triton.InferenceServerClient]:
    with closing(triton.InferenceServerClient(demo_server.grpc_url)) as client:
        yield client


def served(client: triton.InferenceServerClient, texts: list[str]) -> Floats:
    tensor = triton.InferInput("TEXT", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=object))
    embeddings: Floats = client.infer("text_embedding", [tensor]).as_numpy("embedding")
    return embeddings


def test_equals_its_parts_at_every_batch_size(client: triton.InferenceServerClient, parts: Parts) -> None:
    texts = sentences(32, seed=3)
    expected = np.stack([parts.embed(text) for text in texts])
    for size in range(1, 33):
        start = size * 7 % 32  # other sentences beside each other each time
        chosen = [(start + i) % 32 for i in range(size)]
        embeddings = served(client, [texts[i] for i in chosen])
        assert embeddings.shape == (size, 384)
        np.testing.assert_allclose(embeddings, expected[chosen], rtol=0, atol=1e-4)


def test_equals_its_parts_for_odd_texts_beside_each_other(client: triton.InferenceServerClient, parts: Parts) -> None:
    expected = np.stack([parts.embed(text) for text in ODD])
    np.testing.assert_allclose(served(client, list(ODD)), expected, rtol=0, atol=1e-4)


def test_equals_its_parts_for_many_clients_at_once(client: triton.InferenceServerClient, parts: Parts) -> None:
    """Requests of equal length share batches in the steps. Each still gets its own result."""
    texts = sentences(24, seed=4)
    expected = np.stack([parts.embed(text) for text in texts])

    def ask(number: int) -> tuple[list[int], Floats]:
        chosen = [(number * 5 + i) % len(texts) for i in range(1 + number % 4)]
        return chosen, served(client, [texts[i] for i in chosen])

    with ThreadPoolExecutor(16) as pool:
        for chosen, embeddings in pool.map(ask, range(120), timeout=60):
            np.testing.assert_allclose(embeddings, expected[chosen], rtol=0, atol=1e-4)
    [stats] = client.get_inference_statistics("minilm", as_json=True)["model_stats"]
    assert int(stats["execution_count"]) < int(stats["inference_stats"]["success"]["count"])


def test_equals_the_reference(client: triton.InferenceServerClient, reference: Floats) -> None:
    np.testing.assert_allclose(served(client, list(embed.SENTENCES)), reference, rtol=0, atol=1e-4)


def test_equals_its_parts_by_curl(demo_server: Serving, parts: Parts) -> None:
    """The request that a line of `curl` sends."""
    given = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["The cat sleeps."]}
    url = f"http://{demo_server.http_url}/v2/models/text_embedding/infer"
    with urllib.request.urlopen(url, json.dumps({"inputs": [given]}).encode(), timeout=30) as answer:
        [output] = json.load(answer)["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("embedding", "FP32", [1, 384])
    np.testing.assert_allclose(output["data"], parts.embed("The cat sleeps."), rtol=0, atol=1e-4)


def test_text_that_is_not_utf8_is_refused_with_the_step_that_did(client: triton.InferenceServerClient) -> None:
    tensor = triton.InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"\xff"]], dtype=object))
    with pytest.raises(InferenceServerException, match="TEXT is not UTF-8"):
        client.infer("text_embedding", [tensor])
    assert served(client, ["hello"]).shape == (1, 384)
