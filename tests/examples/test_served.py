"""The demo through a running server, over both protocols."""

import importlib
from collections.abc import Iterator
from contextlib import closing
from types import ModuleType
from typing import Any, Protocol

import embed
import numpy as np
import pytest
from digits_onnx import split
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

LABELS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


class DemoServer(Protocol):
    """A server on the demo's repository. Both URLs are "host:port"."""

    http_url: str
    grpc_url: str


class Server:
    """What the tests call on the server, over one protocol."""

    def __init__(self, protocol: str, url: str) -> None:
        self.protocol, self.url = protocol, url
        self.triton: ModuleType = importlib.import_module(f"tritonclient.{protocol}")
        self.client = self.triton.InferenceServerClient(url)

    def infer(self, model: str, name: str, array: NDArray[Any], **options: Any) -> Any:
        tensor = self.triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        return self.client.infer(model, [tensor], **options)

    def version_that_answered(self, result: Any) -> str:
        response = result.get_response()
        return str(response["model_version"] if self.protocol == "http" else response.model_version)


@pytest.fixture(params=["http", "grpc"])
def server(request: pytest.FixtureRequest, demo_server: DemoServer) -> Iterator[Server]:
    server = Server(request.param, getattr(demo_server, f"{request.param}_url"))
    with closing(server.client):
        yield server


@pytest.fixture
def embedder(server: Server) -> embed.Embedder:
    return embed.Embedder(server.triton, server.client)


def text(*sentences: bytes) -> NDArray[np.object_]:
    return np.array([[sentence] for sentence in sentences], dtype=object)


def test_embeddings_equal_reference(embedder: embed.Embedder, reference: NDArray[np.float32]) -> None:
    embeddings = embedder.embed(embed.SENTENCES)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, reference, rtol=0, atol=1e-4)


def test_embeddings_of_more_than_one_batch_equal_reference(
    embedder: embed.Embedder, reference: NDArray[np.float32]
) -> None:
    embeddings = embedder.embed(embed.SENTENCES * 3)
    np.testing.assert_allclose(embeddings, np.tile(reference, (3, 1)), rtol=0, atol=1e-4)


def test_nearest_sentence_is_of_the_same_topic(embedder: embed.Embedder) -> None:
    nearest, _ = embed.nearest_others(embedder.embed(embed.SENTENCES))
    assert [int(other) // 3 for other in nearest] == [own // 3 for own in range(12)]


def test_script_prints_a_row_per_sentence(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert embed.main(["--protocol", server.protocol, "--url", server.url, "a cat", "a kitten", "a bank"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines[1:3]] == ["a cat     a kitten", "a kitten  a cat"]
    assert lines[-1].startswith("3 sentences embedded in ")


def test_tokenizer_pads_to_the_longest_of_the_request(server: Server) -> None:
    result = server.infer("tokenizer", "TEXT", text(b"hello", "h\u00e9llo world".encode()))
    assert result.as_numpy("input_ids").tolist() == [[101, 7592, 102, 0], [101, 7592, 2088, 102]]
    assert result.as_numpy("attention_mask").tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_tokenizer_cuts_a_long_text_at_256(server: Server) -> None:
    ids = server.infer("tokenizer", "TEXT", text(b"word " * 1000)).as_numpy("input_ids")
    assert ids.shape == (1, 256)
    assert ids[0, [0, -1]].tolist() == [101, 102]


def test_tokenizer_refuses_text_that_is_not_utf8_and_goes_on(server: Server) -> None:
    with pytest.raises(InferenceServerException, match="TEXT is not UTF-8"):
        server.infer("tokenizer", "TEXT", text(b"\xff"))
    assert server.infer("tokenizer", "TEXT", text(b"hello")).as_numpy("input_ids").tolist() == [[101, 7592, 102]]


def test_digits_held_out_are_recognised(server: Server) -> None:
    _, held_out = split()
    right = 0
    for start in range(0, len(held_out.digits), 64):
        batch = slice(start, start + 64)
        result = server.infer("digits", "image", held_out.pixels[batch])
        assert server.version_that_answered(result) == "2"
        right += int((result.as_numpy("probabilities").argmax(axis=1) == held_out.digits[batch]).sum())
    assert right / len(held_out.digits) >= 0.96
