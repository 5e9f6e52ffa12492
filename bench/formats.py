"""Compares models of torch, OpenVINO and TensorFlow in a server with what else could serve them, by tools/versus.py.

    .venv/bin/python -m bench.formats {torch,openvino,tensorflow} [--rounds 5] [--seconds 1.5] [--json FILE]

- torch: TorchScript here (A) and the same file in a model.py of the real server (B).
- openvino: IR (A) and ONNX (B), each in a server of ours.
- tensorflow: a SavedModel in its child process here; there is no B.

The models are the classifier of digits and MiniLM (16 word pieces) of the examples, and a small network for pictures of
588 KiB. Each is measured without a server too, in a loop of one thread that has the process for itself (`alone`). Needs
what `make test-formats` installs.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from onnx_graph import Graph, Kind  # needs the path that was just added

from tests.formats.built import TENSORFLOW
from tests.formats.with_all_formats import QUESTIONS, SECONDS, TORCH, build
from tools import versus
from tools.versus import ORACLE, WORK, Figures, Server, Work

ALONE = Path(__file__).with_name("alone.py")
WARM_UP_SECONDS = 6.0
IDS = [101, *range(2000, 2014), 102]
SIDE, CHANNELS, CLASSES = 224, 16, 10
SERVE = (
    f"{sys.executable} -m halimede serve --model-repository={{repo}}/SIDE --http-address=127.0.0.1 "
    "--grpc-address=127.0.0.1 --http-port={http} --grpc-port={grpc} --metrics-port={metrics} --exit-on-error=false"
)
_PICTURE = (
    f'max_batch_size: 32 input {{ name: "picture" data_type: TYPE_FP32 dims: [ 3, {SIDE}, {SIDE} ] }} '
    f'output {{ name: "scores@" data_type: TYPE_FP32 dims: [ {CLASSES} ] }}'
)
_COMMON = "\ndynamic_batching { }\ninstance_group { kind: KIND_CPU count: 1 }\n"
_APART = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{TENSORFLOW}" }} }}\n'

_TORCH_PICTURES = f"""import sys
import torch
net = torch.nn.Sequential(torch.nn.Conv2d(3, {CHANNELS}, 7, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                          torch.nn.Flatten(), torch.nn.Linear({CHANNELS}, {CLASSES})).eval()
torch.jit.script(net).save(sys.argv[1])
"""
_MODEL_PY = """import numpy as np
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.module = torch.jit.load(f"{{args['model_repository']}}/{{args['model_version']}}/weights.pt").eval()

    def execute(self, requests):
        inputs = [
            [pb_utils.get_input_tensor_by_name(each, name).as_numpy() for each in requests] for name in {inputs}
        ]
        with torch.inference_mode():
            found = self.module(*[torch.from_numpy(np.concatenate(each)) for each in inputs]).numpy()
        ends = np.cumsum([len(each) for each in inputs[0]])[:-1]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("{output}", each)]) for each in np.split(found, ends)]
"""


class Model(NamedTuple):
    """In `config`, `@` stands for what a format adds to the name of an output. alone.py reads `inputs`."""

    config: str
    output: str
    protocol: str
    inputs: Mapping[str, Any]


MODELS = {
    "digits": Model(QUESTIONS["digits"].config, "probabilities", "http", {"image": {"shape": [1, 8, 8]}}),
    "minilm": Model(
        QUESTIONS["minilm"].config,
        "sentence_embedding",
        "grpc",
        {
            "input_ids": {"shape": [1, len(IDS)], "content": IDS},
            "attention_mask": {"shape": [1, len(IDS)], "content": [1] * len(IDS)},
        },
    ),
    "picture": Model(_PICTURE, "scores", "http", {"picture": {"shape": [1, 3, SIDE, SIDE]}}),
}
CLIENTS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "torch": {"digits": (1, 8, 32), "minilm": (1, 4), "picture": (1, 4)},
    "openvino": {"minilm": (1, 4, 16), "picture": (1, 4, 16)},
    "tensorflow": {"digits": (1, 8), "minilm": (1, 4)},
}


def picture_graph() -> bytes:
    random, graph = np.random.default_rng(0), Graph()
    weights = graph.constant(random.standard_normal((CHANNELS, 3, 7, 7)).astype(np.float32) / 12)
    seen = graph.op("Conv", "picture", weights, strides=[4, 4], pads=[3, 3, 3, 3])
    seen = graph.op("Flatten", graph.op("GlobalAveragePool", graph.op("Relu", seen)))
    last = graph.constant(random.standard_normal((CHANNELS, CLASSES)).astype(np.float32))
    graph.op("MatMul", seen, last, result="scores")
    inputs: dict[str, Kind] = {"picture": (TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])}
    model = graph.model("picture", inputs, {"scores": (TensorProto.FLOAT, ["batch", CLASSES])})
    return bytes(model.SerializeToString())


def build_all(folder: Path) -> None:
    """All models, as files called by their name and format."""
    from halimede.backends.openvino.runtime import ov

    build(folder)
    (folder / "picture.onnx").write_bytes(picture_graph())
    ov.save_model(ov.Core().read_model(folder / "picture.onnx"), folder / "picture.xml", compress_to_fp16=False)
    command = [sys.executable, "-c", _TORCH_PICTURES, str(folder / "picture.pt")]
    subprocess.run(command, check=True, timeout=SECONDS, env={**os.environ, "PYTHONPATH": str(TORCH)})


def place(repository: Path, name: str, files: Mapping[str, Path | str], config: str, suffix: str = "") -> None:
    """Writes a model of these files, which are copied, or text."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    for target, source in files.items():
        if isinstance(source, str):
            (version / target).write_text(source)
        elif source.is_dir():
            shutil.copytree(source, version / target)
        else:
            shutil.copy(source, version / target)
    (version.parent / "config.pbtxt").write_text(config + MODELS[name].config.replace("@", suffix) + _COMMON)


def write(kind: str, built: Path, root: Path) -> None:
    """Writes the repositories `a` and `b` of a comparison."""
    for name in CLIENTS[kind]:
        model = MODELS[name]
        if kind == "torch":
            script = built / f"{name}.pt"
            source = _MODEL_PY.format(inputs=list(model.inputs), output=f"{model.output}__0")
            place(root / "a", name, {"model.pt": script}, 'backend: "pytorch"\n', "__0")
            place(root / "b", name, {"weights.pt": script, "model.py": source}, 'backend: "python"\n', "__0")
        elif kind == "openvino":
            graph = {"model.xml": built / f"{name}.xml", "model.bin": built / f"{name}.bin"}
            place(root / "a", name, graph, 'backend: "openvino"\n')
            place(root / "b", name, {"model.onnx": built / f"{name}.onnx"}, 'backend: "onnxruntime"\n')
        else:
            saved = {"model.savedmodel": built / f"{name}.savedmodel"}
            place(root / "a", name, saved, f'platform: "tensorflow_savedmodel"\n{_APART}')


def alone(kind: str, file: Path, name: str, seconds: float) -> Figures:
    """Median latency and CPU time of a call without a server, in microseconds."""
    python = str(TENSORFLOW / "bin" / "python") if kind == "tensorflow" else sys.executable
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"} | ({"PYTHONPATH": str(TORCH)} if kind == "torch" else {})
    command = [python, str(ALONE), kind, str(file), json.dumps(MODELS[name].inputs), str(seconds)]
    done = subprocess.run(command, check=True, timeout=SECONDS, env=environment, capture_output=True, text=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


ENDINGS = {"torch": ("pt",), "openvino": ("xml", "onnx"), "tensorflow": ("savedmodel",)}


def measure_alone(kind: str, built: Path, rounds: int, seconds: float) -> dict[str, Figures]:
    """The medians over the rounds, by model and format."""
    found: dict[str, list[Figures]] = {}
    for _ in range(rounds):
        for name in CLIENTS[kind]:
            for ending in ENDINGS[kind]:
                runtime = "onnx" if ending == "onnx" else kind
                each = alone(runtime, built / f"{name}.{ending}", name, seconds)
                found.setdefault(f"{name}.{ending}", []).append(each)
    return {key: {each: statistics.median(r[each] for r in all_) for each in all_[0]} for key, all_ in found.items()}


def serve_alone(root: Path, rows: Mapping[str, Work], rounds: int, seconds: float) -> dict[str, Any]:
    """Measures one server. Returns the medians over the rounds, by row."""
    server = Server("a", SERVE.replace("SIDE", "a"), root, {work.model for work in rows.values()})
    try:
        versus.settle([server])
        for model in {work.model: name for name, work in rows.items()}.values():
            server.measure(model, WARM_UP_SECONDS)  # the first call of TensorFlow takes seconds
        found = {name: [server.measure(name, seconds) for _ in range(rounds)] for name in rows}
    finally:
        server.stop()
    medians = {name: {k: statistics.median(r[k] for r in each) for k in each[0]} for name, each in found.items()}
    for name, each in medians.items():
        print(
            f"{name:20}{each['throughput']:8.0f}/s  p50 {each['p50']:7.0f} us  p99 {each['p99']:7.0f} us"
            f"  cpu {each['cpu']:7.0f} us"
        )
    return {"median": medians, "rounds": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=CLIENTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--json", default="")
    asked = parser.parse_args()
    subprocess.run([str(ORACLE), "install"], check=True, stdout=subprocess.DEVNULL)
    if asked.kind == "torch":
        # The real server ignores the first, ours the second.
        os.environ.update(PYTHONPATH=str(TORCH), TRITON_ORACLE_PYTHONPATH=str(TORCH.resolve()))
    with tempfile.TemporaryDirectory() as folder:
        built, root = Path(folder) / "built", Path(folder) / "models"
        built.mkdir()
        build_all(built)
        write(asked.kind, built, root)
        data = Path(folder) / "minilm.json"
        of_minilm = {name: {**each, "shape": each["shape"][1:]} for name, each in MODELS["minilm"].inputs.items()}
        data.write_text(json.dumps({"data": [of_minilm]}))
        rows = {
            f"{name}-{clients}": Work(
                name, MODELS[name].protocol, clients, ["--input-data", str(data)] if name == "minilm" else []
            )
            for name, counts in CLIENTS[asked.kind].items()
            for clients in counts
        }
        WORK.update(rows)
        versus.UNCHECKED.update(MODELS)
        result: dict[str, Any]
        if asked.kind == "tensorflow":
            result = serve_alone(root, rows, asked.rounds, asked.seconds)
        else:
            original = f"{ORACLE} serve {{repo}}/b {{http}} {{grpc}} {{metrics}} --exit-on-error=false"
            options = argparse.Namespace(
                a=SERVE.replace("SIDE", "a"),
                b=original if asked.kind == "torch" else SERVE.replace("SIDE", "b"),
                repo=str(root),
                work=list(rows),
                rounds=asked.rounds,
                seconds=asked.seconds,
                served=False,
                gate="",
            )
            result = {**versus.compare(options, [])}
        result["alone"] = measure_alone(asked.kind, built, asked.rounds, asked.seconds)
    for key, each in result["alone"].items():
        print(f"{key} alone: p50 {each['p50']:.0f} us, cpu {each['cpu']:.0f} us")
    if asked.json:
        # The file with MiniLM's input is gone by now.
        kept = json.dumps(result, indent=1).replace(f", --input-data {data}", "")
        Path(asked.json).write_text(kept + "\n")


if __name__ == "__main__":
    main()
