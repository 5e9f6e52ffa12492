"""Measures what the server adds to a real model: the median gRPC latency of one client, less that of the model alone.

    python bench/overhead.py [ROUNDS]

Serves the demo's models and `models/floor`. Each round runs `perf_analyzer` against each model, and the model alone in
a loop with its own session. The last column is the difference relative to the latency of `floor`, a model that costs
nothing: the server should add hardly more to a real model.
"""

import csv
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.versus import ORACLE, Server, settle  # noqa: E402  # needs the path that was just added

DEMO = ROOT / "examples" / "model_repository"
FLOOR = ROOT / "bench" / "models" / "floor"
SERVE = (
    f"{sys.executable} -m halimede serve --model-repository={{repo}} --http-address=127.0.0.1 --grpc-address=127.0.0.1 "
    "--http-port={http} --grpc-port={grpc} --metrics-port={metrics}"
)
DIRECT_SECONDS = 1.0


class Model(NamedTuple):
    """A model to measure. `file` lies in the demo repository; None for the model that costs nothing."""

    shapes: dict[str, tuple[int, ...]]
    dtype: str
    file: str | None


MODELS = {
    "floor": Model({"INPUT0": (16,)}, "float32", None),
    "digits": Model({"image": (8, 8)}, "float32", "digits/2/model.onnx"),
    "minilm": Model({"input_ids": (16,), "attention_mask": (16,)}, "int64", "minilm/1/model.onnx"),
}


def served(name: str, model: Model, port: int, folder: Path) -> float:
    """The median latency that perf_analyzer measures, in microseconds."""
    out = folder / "out.csv"
    out.unlink(missing_ok=True)
    shapes = [f"--shape={key}:{chr(44).join(map(str, shape))}" for key, shape in model.shapes.items()]
    command = [
        str(ORACLE),
        "perf",
        "-m",
        name,
        "-i",
        "grpc",
        "-u",
        f"127.0.0.1:{port}",
        *shapes,
        "--input-data",
        "zero",
    ]
    command += ["--concurrency-range", "1", "-p", "1500", "-s", "999", "-r", "3", "-f", str(out)]
    subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with out.open() as rows:
        return float(next(csv.DictReader(rows))["p50 latency"])


def direct(session: Any, model: Model) -> float:
    """The median time of `session.run`, called in a loop, in microseconds."""
    feeds = {key: np.zeros((1, *shape), model.dtype) for key, shape in model.shapes.items()}
    took = []
    until = time.perf_counter() + DIRECT_SECONDS
    while time.perf_counter() < until:
        began = time.perf_counter()
        session.run(None, feeds)
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e6


def main(rounds: int) -> None:
    sessions = {name: onnxruntime.InferenceSession(DEMO / m.file) for name, m in MODELS.items() if m.file}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository = folder / "models"
        shutil.copytree(DEMO, repository)
        shutil.copytree(FLOOR, repository / "floor")
        server = Server("a", SERVE, repository, set(MODELS))
        try:
            settle([server])
            through: dict[str, list[float]] = {name: [] for name in MODELS}
            alone: dict[str, list[float]] = {name: [] for name in sessions}
            for _ in range(rounds):
                for key, model in MODELS.items():
                    through[key].append(served(key, model, server.grpc, folder))
                    if key in sessions:
                        alone[key].append(direct(sessions[key], model))
        finally:
            server.stop()
    floor = statistics.median(through["floor"])
    print("| model | over gRPC, us | alone, us | difference | relative to floor |")
    print("|---|---:|---:|---:|---:|")
    print(f"| floor | {floor:.0f} | | {floor:.0f} | 1.00 |")
    for key in sessions:
        over, by_itself = statistics.median(through[key]), statistics.median(alone[key])
        added = over - by_itself
        print(f"| {key} | {over:.0f} | {by_itself:.0f} | {added:.0f} | {added / floor:.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
