#!/usr/bin/env python3
"""Measures how long many small ONNX models take to load, their memory, and the time of the repository index.

    python -m tools.many_models [--models 1000] [--broken 0] [--rounds 3] [--json FILE]

Serves --models models from one repository. For comparison, a plain script opens the same sessions one after the other,
each with as many threads as the server gives it. (With the runtime's own defaults a script takes many times as long,
because each session has a spinning thread for each further core.) --broken of the models are not ONNX files.

Both are whole processes and run alternately. The time of the script is from the start of Python to its last open
session. The time of the server is to its first answer; its ports open once all models are ready. The best of --rounds
counts, because other programs may use the machine. The same holds for the CPU time, which they influence less.

It passes if all of this holds:
- the server is up in at most twice the time of the script, and all valid models are ready;
- its memory for each model is at most 1.5 MiB above that of the script;
- the index answers in under 100 ms, and the last model answers a request.
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

from halimede.backends.api import CpuShare
from tools.versus import free_ports, memory_mib

START_SECONDS, STOP_SECONDS = 600.0, 60.0
MOST_TIME, MOST_MIB, MOST_INDEX_MS = 2.0, 1.5, 100.0
WIDTH = 16

SCRIPT = """
import sys, time
from pathlib import Path
import onnxruntime as ort

def memory():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024

before = memory()
options = ort.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = int(sys.argv[2]), 1
sessions = []
for file in sorted(Path(sys.argv[1]).glob("*/1/model.onnx")):
    try:
        sessions.append(ort.InferenceSession(file, options, providers=["CPUExecutionProvider"]))
    except Exception:
        pass
print(len(sessions), before, memory(), time.process_time(), flush=True)
"""


@dataclass(frozen=True)
class Result:
    """Seconds from the start of the process, CPU seconds until then, MiB for each model, milliseconds of the index."""

    models: int
    broken: int
    server_seconds: float
    script_seconds: float
    server_cpu: float
    script_cpu: float
    server_mib: float
    script_mib: float
    index_ms: float
    problems: list[str]

    def show(self, most_time: float) -> str:
        return (
            f"{self.models} models, {self.broken} of them broken\n"
            f"load     {self.server_seconds:8.2f} s    script {self.script_seconds:8.2f} s    "
            f"ratio {self.server_seconds / self.script_seconds:.2f} (at most {most_time:g})\n"
            f"CPU      {self.server_cpu:8.2f} s    script {self.script_cpu:8.2f} s    "
            f"ratio {self.server_cpu / self.script_cpu:.2f}\n"
            f"memory   {self.server_mib:8.2f} MiB  script {self.script_mib:8.2f} MiB  "
            f"difference {self.server_mib - self.script_mib:+.2f} for each (at most {MOST_MIB:g})\n"
            f"index    {self.index_ms:8.1f} ms   (under {MOST_INDEX_MS:g})"
        )


def write_models(repository: Path, number: int, broken: int = 0) -> None:
    """Writes `number` models, each a fully connected layer with its own weights. The first `broken` are invalid."""
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
    """`halimede serve` on free ports of 127.0.0.1. A context manager that stops the server at its end."""

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
        """Waits until the server answers, and returns the seconds since its start. Raises SystemExit if it does not."""
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


@dataclass(frozen=True)
class Script:
    """What one run of the script took: seconds, CPU seconds, open sessions, MiB for each."""

    seconds: float
    cpu: float
    opened: int
    mib: float


def run_script(repository: Path) -> Script:
    """Opens the sessions with as many threads as the server's sessions have."""
    instances = 2  # the backend's default for models without instance groups
    threads = CpuShare(frozenset(os.sched_getaffinity(0)), instances).pool
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(repository), str(threads)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
        process.communicate(timeout=START_SECONDS)
    if process.returncode:
        raise SystemExit("the script failed")
    opened, before, after, cpu = line.split()
    return Script(seconds, float(cpu), int(opened), (float(after) - float(before)) / max(1, int(opened)))


def cpu_seconds(pid: int) -> float:
    """CPU time of one process so far, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve_once(repository: Path, log: Path) -> tuple[float, float]:
    """Starts a server. Returns the seconds until it answers, and its CPU seconds until then."""
    with Served(repository, log) as served:
        return served.wait(), cpu_seconds(served.process.pid)


def measure(number: int, broken: int, rounds: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="halimede-many-") as folder:
        root = Path(folder)
        write_models(root / "models", number, broken)
        scripts, servers = [run_script(root / "models")], list[tuple[float, float]]()
        for _ in range(rounds - 1):
            servers.append(serve_once(root / "models", root / "rounds.log"))
            scripts.append(run_script(root / "models"))
        problems: list[str] = []
        opened, script_mib = scripts[0].opened, scripts[0].mib
        write_models(root / "one", 1)
        with Served(root / "one", root / "one.log") as served:  # memory of the runtime itself does not count
            served.wait()
            alone = memory_mib(served.process.pid)
        with Served(root / "models", root / "server.log") as served:
            servers.append((served.wait(), cpu_seconds(served.process.pid)))
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
    return Result(
        number,
        broken,
        min(seconds for seconds, _ in servers),
        min(script.seconds for script in scripts),
        min(cpu for _, cpu in servers),
        min(script.cpu for script in scripts),
        memory,
        script_mib,
        median(times),
        problems,
    )


def judge(result: Result, most_time: float) -> list[str]:
    problems = list(result.problems)
    ratio = result.server_seconds / result.script_seconds
    if ratio > most_time:
        problems.append(f"the models load {ratio:.2f} times as long as the script")
    if result.server_mib - result.script_mib > MOST_MIB:
        problems.append(f"a model takes {result.server_mib - result.script_mib:.2f} MiB more than in a script")
    if result.index_ms >= MOST_INDEX_MS:
        problems.append(f"the index takes {result.index_ms:.1f} ms")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="many_models", description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--broken", type=int, default=0)
    parser.add_argument("--most-time", type=float, default=MOST_TIME, help="as a multiple of the script's time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = measure(options.models, options.broken, options.rounds)
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
