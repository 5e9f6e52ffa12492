"""Embeds sentences with a running server, and prints the nearest other sentence of each.

It uses two models of the demo in a row: `tokenizer` (Python) turns text into word pieces, `minilm` (ONNX) turns those
into embeddings. It works with any server that speaks Triton's protocol and has these two models.
"""

import argparse
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import clients
import numpy as np
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

TOPICS = {
    "cats": (
        "The cat sleeps on the warm windowsill.",
        "A kitten is napping in a patch of sunlight.",
        "Our old cat dozes on the sofa all day.",
    ),
    "cooking": (
        "Simmer the tomato sauce over low heat for an hour.",
        "Add garlic and basil to the sauce and let it cook slowly.",
        "Stir the soup gently until the vegetables are tender.",
    ),
    "space": (
        "The rocket lifted off and carried a satellite into orbit.",
        "A new space telescope was launched towards its orbit around the sun.",
        "Astronauts flew their capsule to the station in orbit.",
    ),
    "money": (
        "The central bank raised interest rates to fight inflation.",
        "Higher interest rates make mortgages more expensive.",
        "Inflation slowed after the bank tightened its monetary policy.",
    ),
}
SENTENCES = tuple(sentence for sentences in TOPICS.values() for sentence in sentences)
LARGEST_BATCH = 32  # `max_batch_size` of both models

Array = NDArray[Any]


class Embedder:
    """Asks a server's two models. `triton` is the module of `client`."""

    def __init__(self, triton: Any, client: Any) -> None:
        self._triton = triton
        self._client = client

    def embed(self, sentences: Sequence[str]) -> NDArray[np.float32]:
        """Returns one embedding per sentence: FP32 [n, 384], each of length 1. Raises what the client does."""
        starts = range(0, len(sentences), LARGEST_BATCH)
        return np.concatenate([self._embed_batch(sentences[start : start + LARGEST_BATCH]) for start in starts])

    def _embed_batch(self, sentences: Sequence[str]) -> Array:
        text = np.array([[sentence.encode()] for sentence in sentences], dtype=object)
        pieces = self._infer("tokenizer", {"TEXT": text}, ["input_ids", "attention_mask"])
        return self._infer("minilm", pieces, ["sentence_embedding"])["sentence_embedding"]

    def _infer(self, model: str, arrays: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        inputs = []
        for name, array in arrays.items():
            inputs.append(self._triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array)
        requested = [self._triton.InferRequestedOutput(name) for name in outputs]
        result = self._client.infer(model, inputs, outputs=requested)
        return {name: result.as_numpy(name) for name in outputs}


def nearest_others(embeddings: Array) -> tuple[NDArray[np.intp], Array]:
    """For each row, the index of the most similar other row, and the cosine of the two. Rows must have length 1."""
    similarities = embeddings @ embeddings.T
    np.fill_diagonal(similarities, -np.inf)  # otherwise each row would be nearest to itself
    nearest = similarities.argmax(axis=1)
    return nearest, similarities.max(axis=1)


def table(sentences: Sequence[str], nearest: Iterable[int], similarities: Iterable[float]) -> str:
    shown = [textwrap.shorten(sentence, 72, placeholder=" ...") for sentence in sentences]
    width = max(map(len, shown))
    lines = [f"similarity  {'sentence':<{width}}  nearest other sentence"]
    for sentence, other, similarity in zip(shown, nearest, similarities, strict=True):
        lines.append(f"{similarity:10.2f}  {sentence:<{width}}  {shown[other]}")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Print the nearest other sentence of each sentence.")
    parser.add_argument("sentences", nargs="*", help="two or more; without any, twelve on four topics")
    clients.add_server(parser, "http")
    options = parser.parse_args(arguments)
    if len(options.sentences) == 1:
        parser.error("one sentence has no other to be near to: give two or more")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    return clients.run("embed", partial(work, parse(arguments)))


def work(options: argparse.Namespace) -> None:
    sentences = options.sentences or SENTENCES
    server = clients.server_of(options)
    with server.connected() as client:
        start = time.perf_counter()
        embeddings = Embedder(server.triton, client).embed(sentences)
        milliseconds = (time.perf_counter() - start) * 1e3
    print(table(sentences, *nearest_others(embeddings)))
    print(f"\n{len(sentences)} sentences embedded in {milliseconds:.0f} ms over {server.protocol}")


if __name__ == "__main__":
    sys.exit(main())
