"""A digits classifier, MiniLM and a model of strings, written once for TensorFlow and PyTorch.

`python graphs.py tensorflow FOLDER` and `python graphs.py torch FOLDER` read digits.npz and minilm.npz in FOLDER and
write the models there. The weights are those of the examples' ONNX models. Imports nothing of this repository."""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Weights = Mapping[str, npt.NDArray[Any]]
HEADS, HIDDEN, EPSILON, MASKED = 12, 384, 1e-12, -1e9


class Framework(Protocol):
    """What the models need besides the operators of Python."""

    def constant(self, array: npt.NDArray[Any]) -> Any: ...
    def rows(self, table: Any, indices: Any) -> Any: ...
    def size(self, x: Any, axis: int) -> Any: ...
    def reshape(self, x: Any, shape: list[Any]) -> Any: ...
    def transpose(self, x: Any, order: list[int]) -> Any: ...
    def softmax(self, x: Any) -> Any: ...
    def relu(self, x: Any) -> Any: ...
    def erf(self, x: Any) -> Any: ...
    def mean(self, x: Any) -> Any: ...
    def total(self, x: Any, axis: int) -> Any: ...
    def floats(self, x: Any) -> Any: ...


def digits(f: Framework, weights: Weights, image: Any) -> Any:
    x = f.reshape(image, [-1, 64]) / 16.0
    for layer in range(len(weights) // 2):
        if layer:
            x = f.relu(x)
        x = x @ f.constant(weights[f"matrix{layer}"]) + f.constant(weights[f"bias{layer}"])
    return f.softmax(x)


def minilm(f: Framework, weights: Weights, ids: Any, mask: Any) -> Any:
    """The embedding of each sentence."""

    def linear(x: Any, layer: str) -> Any:
        return x @ f.constant(weights[f"{layer}.weight"].T.copy()) + f.constant(weights[f"{layer}.bias"])

    def norm(x: Any, layer: str) -> Any:
        x = x - f.mean(x)
        x = x / (f.mean(x * x) + EPSILON) ** 0.5
        return x * f.constant(weights[f"{layer}.weight"]) + f.constant(weights[f"{layer}.bias"])

    def by_head(x: Any, order: list[int]) -> Any:
        return f.transpose(f.reshape(x, [f.size(x, 0), f.size(x, 1), HEADS, HIDDEN // HEADS]), order)

    kept = f.floats(mask)
    positions = weights["embeddings.position_embeddings.weight"]
    positions = positions + weights["embeddings.token_type_embeddings.weight"][0]
    words = f.rows(f.constant(weights["embeddings.word_embeddings.weight"]), ids)
    x = norm(words + f.constant(positions)[: f.size(ids, 1)], "embeddings.LayerNorm")
    hidden = (1.0 - f.reshape(kept, [f.size(ids, 0), 1, 1, f.size(ids, 1)])) * MASKED
    for index in range(6):
        layer = f"encoder.layer.{index}"
        query, key, value = (
            by_head(linear(x, f"{layer}.attention.self.{part}"), order)
            for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        mixed = f.softmax(query @ key / math.sqrt(HIDDEN // HEADS) + hidden) @ value
        joined = f.reshape(f.transpose(mixed, [0, 2, 1, 3]), [f.size(ids, 0), f.size(ids, 1), HIDDEN])
        x = norm(linear(joined, f"{layer}.attention.output.dense") + x, f"{layer}.attention.output.LayerNorm")
        wide = linear(x, f"{layer}.intermediate.dense")
        wide = wide * 0.5 * (1.0 + f.erf(wide / math.sqrt(2.0)))
        x = norm(linear(wide, f"{layer}.output.dense") + x, f"{layer}.output.LayerNorm")
    kept = f.reshape(kept, [f.size(ids, 0), f.size(ids, 1), 1])
    pooled = f.total(x * kept, 1) / f.total(kept, 1)
    return pooled / f.reshape(f.total(pooled * pooled, 1) ** 0.5, [f.size(ids, 0), 1])


def with_tensorflow(folder: Path, digit_weights: Weights, text_weights: Weights) -> None:
    import tensorflow as tf

    class OfTensorFlow:
        constant = staticmethod(tf.constant)
        rows = staticmethod(tf.gather)
        reshape = staticmethod(tf.reshape)
        transpose = staticmethod(tf.transpose)
        softmax = staticmethod(tf.nn.softmax)
        relu = staticmethod(tf.nn.relu)
        erf = staticmethod(tf.math.erf)

        def size(self, x: Any, axis: int) -> Any:
            return tf.shape(x)[axis]

        def mean(self, x: Any) -> Any:
            return tf.reduce_mean(x, -1, keepdims=True)

        def total(self, x: Any, axis: int) -> Any:
            return tf.reduce_sum(x, axis)

        def floats(self, x: Any) -> Any:
            return tf.cast(x, tf.float32)

    f = OfTensorFlow()
    models: Mapping[str, Any] = {
        "digits": (
            {"image": ("float32", [8, 8])},
            lambda image: {"probabilities": digits(f, digit_weights, image)},
        ),
        "minilm": (
            {"input_ids": ("int64", [None]), "attention_mask": ("int64", [None])},
            lambda input_ids, attention_mask: {
                "sentence_embedding": minilm(f, text_weights, input_ids, attention_mask)
            },
        ),
        "text": ({"words": ("string", [1])}, lambda words: {"same": tf.identity(words)}),
    }
    for name, (inputs, compute) in models.items():
        module = tf.Module()
        specs = [tf.TensorSpec([None, *dims], kind, name=key) for key, (kind, dims) in inputs.items()]
        module.run = tf.function(compute, input_signature=specs)
        path = str(folder / f"{name}.savedmodel")
        tf.saved_model.save(module, path, signatures={"serving_default": module.run})
        (folder / f"{name}.tflite").write_bytes(tf.lite.TFLiteConverter.from_saved_model(path).convert())
        with tf.Graph().as_default() as graph:
            given = {
                key: tf.compat.v1.placeholder(kind, [None, *dims], name=key) for key, (kind, dims) in inputs.items()
            }
            for output, value in compute(**given).items():
                tf.identity(value, name=output)
        (folder / f"{name}.graphdef").write_bytes(graph.as_graph_def().SerializeToString())


def with_torch(folder: Path, digit_weights: Weights, text_weights: Weights) -> None:
    import torch

    class OfTorch:
        constant = staticmethod(torch.from_numpy)
        relu = staticmethod(torch.relu)
        erf = staticmethod(torch.erf)
        reshape = staticmethod(torch.reshape)
        transpose = staticmethod(torch.permute)

        def rows(self, table: Any, indices: Any) -> Any:
            return table[indices]

        def size(self, x: Any, axis: int) -> Any:
            return x.shape[axis]

        def softmax(self, x: Any) -> Any:
            return torch.softmax(x, -1)

        def mean(self, x: Any) -> Any:
            return x.mean(-1, keepdim=True)

        def total(self, x: Any, axis: int) -> Any:
            return x.sum(axis)

        def floats(self, x: Any) -> Any:
            return x.float()

    f = OfTorch()

    module: Any = torch.nn.Module

    class Digits(module):  # type: ignore[misc]
        def forward(self, image: Any) -> Any:
            return digits(f, digit_weights, image)

    class MiniLm(module):  # type: ignore[misc]
        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return minilm(f, text_weights, input_ids, attention_mask)

    class Text(module):  # type: ignore[misc]
        def forward(self, words: list[str]) -> list[str]:
            return words

    ids = torch.ones((2, 5), dtype=torch.int64)
    torch.jit.trace(Digits(), (torch.zeros((2, 8, 8)),)).save(str(folder / "digits.pt"))
    torch.jit.trace(MiniLm(), (ids, ids)).save(str(folder / "minilm.pt"))
    torch.jit.script(Text()).save(str(folder / "text.pt"))


if __name__ == "__main__":
    kind, place = sys.argv[1], Path(sys.argv[2])
    both = [dict(np.load(place / f"{name}.npz")) for name in ("digits", "minilm")]
    (with_tensorflow if kind == "tensorflow" else with_torch)(place, both[0], both[1])
