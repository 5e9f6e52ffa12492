#!/usr/bin/env python3
"""Checks that unloading a model returns its memory.

    python -m tools.memory_back [--rounds 50] [--megabytes 90] [--only NAME ...] [--json FILE]

Starts `halimede serve` in explicit mode. Then it loads a model of about that many megabytes, sends a request and
unloads the model, again and again. It does so for a model of ONNX Runtime, a Python model in a worker process, and a
Python model in the server process.

It passes if, for each of them, the memory of the server and all its processes after the last unload is at most 1.1
times the memory after the first unload.
"""

import argparse
import http.client
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tools.many_models import Served
from tools.versus import tree

MOST_RATIO = 1.1
SETTLE_SECONDS = 1.2
MB = 1_000_000

_PYTHON = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.weights = np.ones({values}, np.float32)

    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    tensor = pb_utils.get_input_tensor_by_name(request, "x")
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor.as_numpy())])
"""
_TENSORS = "".join(f'{put} {{ name: "{name}" data_type: TYPE_FP32 dims: [ 4 ] }}\n' for put, name in
                   (("input", "x"), ("output", "y")))  # fmt: skip


def write_onnx(folder: Path, megabytes: int) -> None:
    """A model with `megabytes` of weights. A request multiplies its four numbers with all of them."""
    rows = megabytes * MB // 16
    weights = np.ones((4, rows), np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("ReduceSum", ["h", "axes"], ["s"], keepdims=1),
            helper.make_node("Add", ["x", "s"], ["y"]),
        ],
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array([1], np.int64), "axes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(model.SerializeToString())


def write_python(folder: Path, megabytes: int, execution: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(_PYTHON.format(values=megabytes * MB // 4))
    where = f'parameters {{ key: "EXECUTION" value {{ string_value: "{execution}" }} }}\n' if execution else ""
    (folder / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: 4\n{_TENSORS}{where}instance_group {{ kind: KIND_CPU }}\n'
    )


KINDS: dict[str, Callable[[Path, int], None]] = {
    "onnxruntime": write_onnx,
    "python": lambda folder, megabytes: write_python(folder, megabytes, ""),
    "python in process": lambda folder, megabytes: write_python(folder, megabytes, "in_process"),
}


def rss_mib(pid: int) -> float:
    """Resident memory of the process and all its descendants."""
    kib = 0
    for each in tree(pid):
        with suppress(OSError):
            found = re.search(r"^VmRSS:\s+(\d+)", Path(f"/proc/{each}/status").read_text(), re.MULTILINE)
            kib += int(found[1]) if found else 0
    return kib / 1024


def rounds_of(served: Served, name: str, rounds: int) -> tuple[list[float], float]:
    """Returns the memory after each unload, and with the model loaded for the first time, in MiB."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=120)

    def ask(path: str, body: str = "") -> bytes:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {text.decode()}")
        return text

    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})
    found, full = [], 0.0
    for number in range(rounds):
        ask(f"/v2/repository/models/{name}/load")
        ask(f"/v2/models/{name}/infer", body)
        full = full or rss_mib(served.process.pid)
        ask(f"/v2/repository/models/{name}/unload")
        while b'"unloaded"' not in ask("/v2/repository/index"):
            time.sleep(0.005)
        if number in (0, rounds - 1):
            time.sleep(SETTLE_SECONDS)  # the instance is closed on another thread
        found.append(rss_mib(served.process.pid))
    connection.close()
    return found, full


def main() -> int:
    parser = argparse.ArgumentParser(prog="memory_back", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--megabytes", type=int, default=90)
    parser.add_argument("--most-ratio", type=float, default=MOST_RATIO)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found, failed = {}, False
    for kind in options.only:
        with tempfile.TemporaryDirectory(prefix="halimede-memory-") as folder:
            root = Path(folder)
            KINDS[kind](root / "models" / "m", options.megabytes)
            with Served(root / "models", root / "log", "--model-control-mode=explicit") as served:
                served.wait()
                memory, full = rounds_of(served, "m", options.rounds)
        ratio = memory[-1] / memory[0]
        failed = failed or ratio > options.most_ratio
        found[kind] = {"full": full, "after": memory, "ratio": ratio}
        print(
            f"{kind:18} loaded {full:6.1f} MiB, after unload 1 {memory[0]:6.1f}, after unload {options.rounds} "
            f"{memory[-1]:6.1f} MiB, most {max(memory):6.1f}: {ratio:.3f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print("FAILED" if failed else "PASSED")
    return failed


if __name__ == "__main__":
    sys.exit(main())
