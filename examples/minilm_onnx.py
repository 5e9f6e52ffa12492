"""Writes the ONNX graph of all-MiniLM-L6-v2 from its weights, with `onnx` alone.

Knows the safetensors format and the layers of BERT; does not know the source of the weights or the repository.
onnxruntime's fused attention was measured and is not faster here, because the matrix products take the time.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto
from onnx_graph import Graph

SAFETENSORS_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
MASKED = -1e9  # added to the scores of padding; with -inf a row of nothing but padding would become NaN

Weights = Mapping[str, NDArray[Any]]


def read_safetensors(data: bytes) -> Weights:
    """Returns the tensors of a safetensors file as views of `data`. Raises KeyError for a dtype other than F32 and I64.

    The file has the length of the header (u64, little endian), the header (JSON: name to dtype, shape, offsets) and
    the data.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    return {name: _view(data, start, entry) for name, entry in header.items() if name != "__metadata__"}


def _view(data: bytes, start: int, entry: Mapping[str, Any]) -> NDArray[Any]:
    first, end = entry["data_offsets"]
    dtype = SAFETENSORS_DTYPES[entry["dtype"]]
    values = np.frombuffer(data, dtype, count=(end - first) // dtype.itemsize, offset=start + first)
    return values.reshape(entry["shape"])


def build_minilm(weights: Weights, config: Mapping[str, Any]) -> onnx.ModelProto:
    """Builds MiniLM. `config` is the model's config.json.

    Inputs: `input_ids` and `attention_mask`, INT64 [batch, sequence]. Outputs, FP32: `last_hidden_state` [batch,
    sequence, hidden], one vector per word piece (meaningless for padding), and `sentence_embedding` [batch, hidden],
    their mean over the mask, of length 1.
    """
    bert = _Bert(weights, config)
    bert.sentence_embedding(bert.last_hidden_state())
    integers, floats, rows = TensorProto.INT64, TensorProto.FLOAT, ("batch", "sequence")
    return bert.graph.model(
        "all-MiniLM-L6-v2",
        inputs={"input_ids": (integers, [*rows]), "attention_mask": (integers, [*rows])},
        outputs={
            "last_hidden_state": (floats, [*rows, bert.hidden]),
            "sentence_embedding": (floats, ["batch", bert.hidden]),
        },
    )


class _Bert:
    """The layers of BERT. Each method takes and returns names of tensors. Names of weights are the checkpoint's."""

    def __init__(self, weights: Weights, config: Mapping[str, Any]) -> None:
        self.graph = Graph()
        self.op = self.graph.op
        self.weights = weights
        self.layers = int(config["num_hidden_layers"])
        self.heads = int(config["num_attention_heads"])
        self.hidden = int(config["hidden_size"])
        self.epsilon = float(config["layer_norm_eps"])

    def weight(self, name: str) -> str:
        return self.graph.constant(self.weights[name], name)

    def linear(self, x: str, layer: str) -> str:
        matrix = self.graph.constant(self.weights[f"{layer}.weight"].T, f"{layer}.weight")
        return self.op("Add", self.op("MatMul", x, matrix), self.weight(f"{layer}.bias"))

    def layer_norm(self, x: str, layer: str, result: str = "") -> str:
        scale, bias = self.weight(f"{layer}.weight"), self.weight(f"{layer}.bias")
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=self.epsilon, result=result)

    def last_hidden_state(self) -> str:
        x, score_mask = self.embeddings(), self.score_mask()
        for index in range(self.layers):
            layer = f"encoder.layer.{index}"
            x = self.attention(x, score_mask, f"{layer}.attention")
            x = self.feed_forward(x, layer, "last_hidden_state" if index == self.layers - 1 else "")
        return x

    def embeddings(self) -> str:
        words = self.op("Gather", self.weight("embeddings.word_embeddings.weight"), "input_ids")
        # A single text has only token type 0, so its vector is added to the positions once, not in every run.
        token_type = self.weights["embeddings.token_type_embeddings.weight"][0]
        table = self.graph.constant(self.weights["embeddings.position_embeddings.weight"] + token_type, "positions")
        zero, length = self.graph.ints(0), self.op("Shape", "input_ids", start=1, end=2)
        positions = self.op("Slice", table, zero, length, zero)
        return self.layer_norm(self.op("Add", words, positions), "embeddings.LayerNorm")

    def score_mask(self) -> str:
        """[batch, 1, 1, sequence]: 0 for a word piece, a large negative number for padding."""
        mask = self.op("Unsqueeze", "attention_mask", self.graph.ints(1, 2))
        kept = self.op("Cast", mask, to=TensorProto.BOOL)
        return self.op("Where", kept, self.graph.scalar(0), self.graph.scalar(MASKED))

    def attention(self, x: str, score_mask: str, layer: str) -> str:
        query = self.by_head(self.linear(x, f"{layer}.self.query"), [0, 2, 1, 3])
        key = self.by_head(self.linear(x, f"{layer}.self.key"), [0, 2, 3, 1])
        value = self.by_head(self.linear(x, f"{layer}.self.value"), [0, 2, 1, 3])
        root = self.graph.scalar(math.sqrt(self.hidden // self.heads))
        scores = self.op("Add", self.op("Div", self.op("MatMul", query, key), root), score_mask)
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        joined = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = self.op("Reshape", joined, self.graph.ints(0, 0, self.hidden))
        output = self.linear(joined, f"{layer}.output.dense")
        return self.layer_norm(self.op("Add", output, x), f"{layer}.output.LayerNorm")

    def by_head(self, x: str, order: list[int]) -> str:
        """Splits [batch, sequence, hidden] into [batch, sequence, head, size], and transposes it to `order`."""
        split = self.op("Reshape", x, self.graph.ints(0, 0, self.heads, self.hidden // self.heads))
        return self.op("Transpose", split, perm=order)

    def feed_forward(self, x: str, layer: str, result: str) -> str:
        wide = self.op("Gelu", self.linear(x, f"{layer}.intermediate.dense"))
        output = self.linear(wide, f"{layer}.output.dense")
        return self.layer_norm(self.op("Add", output, x), f"{layer}.output.LayerNorm", result)

    def sentence_embedding(self, x: str) -> str:
        return add_pooling(self.graph, x)


def add_pooling(graph: Graph, x: str) -> str:
    """Adds `sentence_embedding`: the mean of the vectors over `attention_mask`, of length 1. Neither divisor is ever 0,
    so a row of nothing but padding gives zeros."""
    ones, twos = graph.ints(1), graph.ints(2)
    mask = graph.op("Cast", "attention_mask", to=TensorProto.FLOAT)
    total = graph.op("ReduceSum", graph.op("Mul", x, graph.op("Unsqueeze", mask, twos)), ones, keepdims=0)
    count = graph.op("ReduceSum", mask, ones, keepdims=1)
    mean = graph.op("Div", total, graph.op("Max", count, graph.scalar(1e-9)))
    length = graph.op("ReduceL2", mean, ones, keepdims=1)
    return graph.op("Div", mean, graph.op("Max", length, graph.scalar(1e-12)), result="sentence_embedding")


def build_pooling(hidden: int) -> onnx.ModelProto:
    """Builds the last step of MiniLM as a model.

    Inputs: `last_hidden_state` FP32 [batch, sequence, hidden] and `attention_mask` INT64 [batch, sequence]. Output:
    `sentence_embedding` FP32 [batch, hidden]."""
    graph = Graph()
    add_pooling(graph, "last_hidden_state")
    return graph.model(
        "mean-pooling",
        inputs={
            "last_hidden_state": (TensorProto.FLOAT, ["batch", "sequence", hidden]),
            "attention_mask": (TensorProto.INT64, ["batch", "sequence"]),
        },
        outputs={"sentence_embedding": (TensorProto.FLOAT, ["batch", hidden])},
    )
