"""Builds `examples/torch_repository/`: two models of the demo as PyTorch has them, with the weights of their twins.

`digits` is TorchScript and, as `digits_exported`, an exported program. `minilm` is both, too. With `--compiled` there
is also `minilm_compiled`, an AOTInductor package; that needs a C++ compiler and some minutes. The answers are those of
the ONNX models.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import build_repository
import onnx
import torch
from minilm_onnx import read_safetensors
from onnx import numpy_helper
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE / "torch_repository"

CONFIG = """# {about}
backend: "pytorch"
{platform}max_batch_size: {rows}
input [
{inputs}
]
output [
{outputs}
]
dynamic_batching {{ }}
"""


class Digits(nn.Module):
    """`layers` are (matrix, bias)."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        for matrix, bias in layers:
            linear = nn.Linear(*matrix.shape)
            linear.load_state_dict({"weight": matrix.T, "bias": bias})
            steps += [nn.ReLU(), linear] if steps else [linear]
        self.steps = nn.Sequential(*steps)

    def forward(self, image: Tensor) -> Tensor:
        return torch.softmax(self.steps(image.flatten(1) / 16), -1)  # the darkest pixel is 16


class Layer(nn.Module):
    """A layer of BERT."""

    def __init__(self, hidden: int, inner: int, heads: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.joined = (nn.Linear(hidden, hidden) for _ in range(4))
        self.wide, self.narrow = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.norm, self.last_norm = nn.LayerNorm(hidden, epsilon), nn.LayerNorm(hidden, epsilon)

    def by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, x.shape[-1] // self.heads)).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.by_head(self.query(x)), self.by_head(self.key(x)), self.by_head(self.value(x))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, mask)
        x = self.norm(self.joined(mixed.transpose(1, 2).flatten(2)) + x)
        return self.last_norm(self.narrow(nn.functional.gelu(self.wide(x))) + x)


class MiniLM(nn.Module):
    """Word pieces to their vectors, and to the mean of those that the mask selects, of length 1."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        hidden, epsilon = int(config["hidden_size"]), float(config["layer_norm_eps"])
        self.words = nn.Embedding(int(config["vocab_size"]), hidden)
        self.positions = nn.Embedding(int(config["max_position_embeddings"]), hidden)
        self.norm = nn.LayerNorm(hidden, epsilon)
        inner, heads = int(config["intermediate_size"]), int(config["num_attention_heads"])
        self.layers = nn.ModuleList(
            Layer(hidden, inner, heads, epsilon) for _ in range(int(config["num_hidden_layers"]))
        )
        self.load_state_dict(_renamed(weights, len(self.layers)))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.words(input_ids) + self.positions.weight[: input_ids.shape[1]])
        mask = ((attention_mask == 0).to(x.dtype) * -1e9)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        selected = attention_mask.to(x.dtype)
        mean = (x * selected[:, :, None]).sum(1) / selected.sum(1, keepdim=True).clamp(min=1e-9)
        return x, nn.functional.normalize(mean, dim=1)


_NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "joined": "attention.output.dense",
    "norm": "attention.output.LayerNorm",
    "wide": "intermediate.dense",
    "narrow": "output.dense",
    "last_norm": "output.LayerNorm",
}
"""The names of the checkpoint, by those of `Layer`."""


def _renamed(weights: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    embeddings = "embeddings."
    # A single text has only token type 0, so its vector is added to the positions once.
    positions = weights[embeddings + "position_embeddings.weight"]
    named = {
        "words.weight": weights[embeddings + "word_embeddings.weight"],
        "positions.weight": positions + weights[embeddings + "token_type_embeddings.weight"][0],
    }
    for part in ("weight", "bias"):
        named[f"norm.{part}"] = weights[f"{embeddings}LayerNorm.{part}"]
        for i in range(layers):
            for ours, theirs in _NAMES.items():
                named[f"layers.{i}.{ours}.{part}"] = weights[f"encoder.layer.{i}.{theirs}.{part}"]
    return named


def digits(demo: Path) -> Digits:
    """The network of the demo's `digits`, version 2."""
    graph = onnx.load(demo / "digits" / "2" / "model.onnx").graph
    arrays = {each.name: torch.tensor(numpy_helper.to_array(each)) for each in graph.initializer}
    layers = [node.input[1:] for node in graph.node if node.op_type == "Gemm"]
    return Digits([(arrays[matrix], arrays[bias]) for matrix, bias in layers]).eval()


def minilm(cache: Path) -> MiniLM:
    package = build_repository.Package(cache, print)
    arrays = read_safetensors(package.read("model.safetensors"))
    weights = {name: torch.tensor(array) for name, array in arrays.items()}
    return MiniLM(json.loads(package.read("config.json")), weights).eval()


def build(repository: Path, demo: Path, cache: Path, compiled: bool = False, say: build_repository.Say = print) -> None:
    """Builds the models. `demo` is the built repository of the demo."""
    image, text = digits(demo), minilm(cache)
    pieces = ("input_ids", "INT64", "-1"), ("attention_mask", "INT64", "-1")
    states = ("{}", "FP32", "-1, 384"), ("{}", "FP32", "384")
    plain = [("OUTPUT__0", *states[0][1:]), ("OUTPUT__1", *states[1][1:])]
    folder = _folder(repository, "digits", "Handwritten digits of 8 x 8 pixels, as TorchScript.", 64,
                     [("image", "FP32", "8, 8")], [("probabilities", "FP32", "10")])  # fmt: skip
    _script(image, folder)
    folder = _folder(repository, "minilm", "all-MiniLM-L6-v2 as TorchScript.", 32, pieces, plain)
    _script(text, folder)
    rows, length = torch.export.Dim("rows", max=64), torch.export.Dim("length", min=2, max=512)
    program = torch.export.export(image, (torch.zeros(2, 8, 8),), dynamic_shapes={"image": {0: rows}})
    _exported(program, repository, "digits_exported")
    shape = {0: rows, 1: length}
    # Two tensors: torch takes arguments that are the same object for one and the same.
    examples = torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)
    shapes = {"input_ids": shape, "attention_mask": shape}
    program = torch.export.export(text, examples, dynamic_shapes=shapes)
    _exported(program, repository, "minilm_exported")
    say("minilm, minilm_exported, digits, digits_exported: built")
    if compiled:
        inputs = [(f"ARGS[{i}]", kind, dims) for i, (_, kind, dims) in enumerate(pieces)]
        outputs = [(f"RESULT[{i}]", kind, dims) for i, (_, kind, dims) in enumerate(states)]
        about = "all-MiniLM-L6-v2, compiled by AOTInductor."
        folder = _folder(repository, "minilm_compiled", about, 32, inputs, outputs, 'platform: "torch_aoti"\n')
        torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))
        say("minilm_compiled: built")


def _folder(repository: Path, name: str, about: str, rows: int, inputs: Any, outputs: Any, platform: str = "") -> Path:
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    sides = [
        ",\n".join(f'  {{ name: "{each}" data_type: TYPE_{kind} dims: [ {dims} ] }}' for each, kind, dims in tensors)
        for tensors in (inputs, outputs)
    ]
    text = CONFIG.format(about=about, platform=platform, rows=rows, inputs=sides[0], outputs=sides[1])
    (version.parent / "config.pbtxt").write_text(text)
    return version


def _script(module: nn.Module, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch advises against TorchScript, which is the point
        torch.jit.save(torch.jit.script(module), str(folder / "model.pt"))


def _exported(program: Any, repository: Path, name: str) -> None:
    """Needs no configuration."""
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, version / "model.pt2")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the demo's models for PyTorch.")
    parser.add_argument("--repository", type=Path, default=REPOSITORY, help="folder to build them in")
    parser.add_argument("--compiled", action="store_true", help="also a package of AOTInductor")
    options = parser.parse_args()
    build_repository.build()
    build(options.repository.absolute(), build_repository.REPOSITORY, build_repository.CACHE, options.compiled)
    return 0


if __name__ == "__main__":
    sys.exit(main())
