"""The graph of MiniLM against embeddings made by transformers and torch from the same weights."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from embed import SENTENCES, nearest_others
from minilm_onnx import read_safetensors
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tests.examples.conftest import REFERENCE

Floats = NDArray[np.float32]


class MiniLM:
    def __init__(self, repository: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(repository / "tokenizer" / "1" / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.enable_padding()
        self.session = onnxruntime.InferenceSession(repository / "minilm" / "1" / "model.onnx")

    def run(self, output: str, ids: Sequence[Sequence[int]], mask: Sequence[Sequence[int]]) -> Floats:
        inputs = {"input_ids": np.array(ids, np.int64), "attention_mask": np.array(mask, np.int64)}
        result: Floats = self.session.run([output], inputs)[0]
        return result

    def embed(self, sentences: Sequence[str]) -> Floats:
        pieces = self.tokenizer.encode_batch(sentences)
        return self.run("sentence_embedding", [one.ids for one in pieces], [one.attention_mask for one in pieces])


@pytest.fixture(scope="module")
def minilm(demo_repository: Path) -> MiniLM:
    return MiniLM(demo_repository)


def test_reference_is_of_the_sentences_of_the_demo() -> None:
    assert tuple((REFERENCE / "sentences.txt").read_text(encoding="utf-8").splitlines()) == SENTENCES


def test_sentence_embedding_equals_reference(minilm: MiniLM, reference: Floats) -> None:
    np.testing.assert_allclose(minilm.embed(SENTENCES), reference, rtol=0, atol=1e-5)


def test_sentence_embedding_alone_equals_the_one_in_a_padded_batch(minilm: MiniLM, reference: Floats) -> None:
    alone = np.concatenate([minilm.embed([sentence]) for sentence in SENTENCES])
    np.testing.assert_allclose(alone, reference, rtol=0, atol=1e-5)


def test_nearest_sentence_is_of_the_same_topic(minilm: MiniLM) -> None:
    nearest, _ = nearest_others(minilm.embed(SENTENCES))
    assert [int(other) // 3 for other in nearest] == [own // 3 for own in range(12)]


def test_last_hidden_state_pooled_by_hand_is_the_sentence_embedding(minilm: MiniLM, reference: Floats) -> None:
    pieces = minilm.tokenizer.encode_batch(SENTENCES)
    ids, mask = [one.ids for one in pieces], [one.attention_mask for one in pieces]
    vectors = minilm.run("last_hidden_state", ids, mask)
    assert vectors.shape == (12, len(ids[0]), 384)
    pooled = np.stack([row[np.array(kept) == 1].mean(axis=0) for row, kept in zip(vectors, mask, strict=True)])
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(pooled, reference, rtol=0, atol=1e-5)


def test_sentence_embedding_of_padding_only_is_zero(minilm: MiniLM) -> None:
    both = minilm.run("sentence_embedding", [[101, 102], [0, 0]], [[1, 1], [0, 0]])
    assert np.linalg.norm(both, axis=1) == pytest.approx([1, 0], abs=1e-6)


def test_sequence_of_512_runs_and_a_longer_one_is_an_error(minilm: MiniLM) -> None:
    assert minilm.run("sentence_embedding", [[101] * 512], [[1] * 512]).shape == (1, 384)
    with pytest.raises(Exception, match="512 by 513"):  # onnxruntime's error types have no public name
        minilm.run("sentence_embedding", [[101] * 513], [[1] * 513])


def safetensors(dtype: str, data: bytes, shape: list[int]) -> bytes:
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [4, 4 + len(data)]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "weight": entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4) + data


@pytest.mark.parametrize(("dtype", "numpy_dtype"), [("F32", "<f4"), ("I64", "<i8")])
def test_safetensors_reads_values_at_their_offset(dtype: str, numpy_dtype: str) -> None:
    values = np.arange(6, dtype=numpy_dtype).reshape(2, 3)
    read = read_safetensors(safetensors(dtype, values.tobytes(), [2, 3]))
    assert list(read) == ["weight"]
    np.testing.assert_array_equal(read["weight"], values, strict=True)


def test_safetensors_of_another_dtype_is_refused() -> None:
    with pytest.raises(KeyError, match="BF16"):
        read_safetensors(safetensors("BF16", bytes(4), [2]))
