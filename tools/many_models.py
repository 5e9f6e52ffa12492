#!/usr/bin/env python3
"""Many small ONNX models: how long do they load, what do they cost, how long does the index take?

    python -m tools.many_models [--models 1000] [--broken 0] [--json FILE]

Serves as many models as asked for from one repository, and beside it opens the same files in a plain script (one
session after the other, with the runtime's own defaults). Of the models `--broken` are no ONNX files.

It passes when all of this holds:
- the server is up in at most twice the time that the script takes, and all models are ready that can be;
- its memory for each model is at most 1.5 MiB above that of the script's;
- the index answers in under 100 ms, and so does a request to the last model in under a second.
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from onnx import TensorProto, helper, numpy_helper

from tools.versus import free_ports, memory_mib

START_SECONDS, STOP_SECONDS = 600.0, 60.0
MOST_TIME, MOST_MIB, MOST_INDEX_MS = 2.0, 1.5, 100.0
WIDTH = 16

SCRIPT = """
import sys, time
began = time.perf_counter()
from pathlib import Path
import onnxruntime as ort

def memory():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024

before = memory()
sessions = []
for file in sorted(Path(sys.argv[1]).glob("*/1/model.onnx")):
    try:
        sessions.append(ort.InferenceSession(file, providers=["CPUExecutionProvider"]))
    except Exception:
        pass
print(len(sessions), time.perf_counter() - began, before, memory())
"""


@dataclass(frozen=True)
class Result:
    """Seconds from the start of the process, MiB for each model, milliseconds of the index."""

    models: int
    broken: int
    server_seconds: float
    script_seconds: float
    server_mib: float
    script_mib: float
    index_ms: float
    problems: list[str]

    def show(self, most_time: float) -> str:
        return (
            f"{self.models} models, {self.broken} of them broken\n"
            f"load     {self.server_seconds:8.2f} s    script {self.script_seconds:8.2f} s    "
            f"ratio {self.server_seconds / self.script_seconds:.2f} (at most {most_time:g})\n"
            f"memory   {self.server_mib:8.2f} MiB  script {self.script_mib:8.2f} MiB  "
            f"more {self.server_mib - self.script_mib:+.2f} for each (at most {MOST_MIB:g})\n"
            f"index    {self.index_ms:8.1f} ms   (under {MOST_INDEX_MS:g})"
        )


def write_models(repository: Path, number: int, broken: int = 0) -> None:
    """A fully connected layer each, with weights of its own."""
    import numpy as np

    random = np.random.default_rng(1)
    for index in range(number):
        version = repository / f"m{index:04d}" / "1"
        version.mkdir(parents=True)
        if index < broken:
            (version / "model.onnx").write_bytes(b"no model")
            continue
        weights = random.random((WIDTH, WIDTH), np.float32)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
            "layer",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
            [numpy_helper.from_array(weights, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        (version / "model.onnx").write_bytes(model.SerializeToString())


class Served:
    """`halimede serve` on a port of 127.0.0.1; a context manager that leaves nothing running."""

    def __init__(self, repository: Path, log: Path, *flags: str) -> None:
        self.log = log
        self.port, grpc, metrics = free_ports(3)
        self.began = time.perf_counter()
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "halimede", "serve", f"--model-repository={repository}"),
                    *("--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--exit-on-error=false"),
                    *(f"--http-port={self.port}", f"--grpc-port={grpc}", f"--metrics-port={metrics}", *flags),
                ],
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def wait(self) -> float:
        """Seconds until it answered."""
        while time.perf_counter() - self.began < START_SECONDS:
            try:
                self.ask("GET", "/v2/health/live")
                return time.perf_counter() - self.began
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.01)
        raise SystemExit(f"the server did not come up: ...{self.log.read_text()[-2000:]}")

    def ask(self, method: str, path: str, body: str = "") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def measure(number: int, broken: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="halimede-many-") as folder:
        root = Path(folder)
        write_models(root / "models", number, broken)
        (root / "none").mkdir()
        command = [sys.executable, "-c", SCRIPT, str(root / "models")]
        script = subprocess.run(
            command, capture_output=True, text=True, timeout=START_SECONDS, check=True
        ).stdout.split()
        problems: list[str] = []
        opened, script_seconds = int(script[0]), float(script[1])
        script_mib = (float(script[3]) - float(script[2])) / max(1, opened)
        write_models(root / "one", 1)
        with Served(root / "one", root / "one.log") as served:  # the runtime itself is not a model's
            served.wait()
            alone = memory_mib(served.process.pid)
        with Served(root / "models", root / "server.log") as served:
            seconds = served.wait()
            memory = (memory_mib(served.process.pid) - alone) / max(1, opened - 1)
            times = []
            for _ in range(11):
                began = time.perf_counter()
                status, index = served.ask("POST", "/v2/repository/index")
                times.append((time.perf_counter() - began) * 1000)
            ready = sum(entry.get("state") == "READY" for entry in json.loads(index))
            if (status, ready) != (200, number - broken) or opened != number - broken:
                problems.append(f"{ready} models are ready, {opened} could be opened")
            body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [1] * WIDTH}]})
            status, answer = served.ask("POST", f"/v2/models/m{number - 1:04d}/infer", body)
            if status != 200:
                problems.append(f"the last model answers {status}: {answer.decode()[:200]}")
    return Result(number, broken, seconds, script_seconds, memory, script_mib, median(times), problems)


def judge(result: Result, most_time: float) -> list[str]:
    problems = list(result.problems)
    if result.server_seconds > most_time * result.script_seconds:
        problems.append("the models load too slowly")
    if result.server_mib - result.script_mib > MOST_MIB:
        problems.append("a model takes too much memory")
    if result.index_ms >= MOST_INDEX_MS:
        problems.append("the index takes too long")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="many_models", description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--broken", type=int, default=0)
    parser.add_argument("--most-time", type=float, default=MOST_TIME, help="how many times that of the script")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = measure(options.models, options.broken)
    print(result.show(options.most_time))
    problems = judge(result, options.most_time)
    for problem in problems:
        print(f"FAILED: {problem}")
    if options.json:
        options.json.write_text(json.dumps({**asdict(result), "problems": problems}, indent=1) + "\n")
    print("FAILED" if problems else "PASSED")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
