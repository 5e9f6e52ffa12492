"""Watches the memory of a server with models of torch, and what their loads cost other requests.

    .venv/bin/python -m bench.torch_life flat [--seconds 300]
    .venv/bin/python -m bench.torch_life loads [--models 50] [--megabytes 10] [--home child]

`flat` puts 32 clients of perf_analyzer on a TorchScript model. It passes if the server's memory in the last fifth of
the time is within 1 % of that in the second fifth. `loads` loads all models one after the other and unloads them, three
times, while a client asks another model 200 times a second. It passes if the 99th percentile of that client's latency
is at most 5 ms above that without loads, and if the memory after the unloads is within 10 % of that before. Needs
`make test-torch` to have installed torch.
"""

import argparse
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from tools.many_models import Served
from tools.memory_back import rss_mib
from tools.versus import ORACLE

TORCH = Path(os.environ.get("HALIMEDE_TORCH", ".cache/torch")).resolve()
FLOOR = Path(__file__).with_name("models") / "floor"
CLIENTS, ROUNDS, PAUSE, QUIET_SECONDS, UNLOAD_SECONDS = 32, 3, 0.005, 10.0, 60.0
MOST_DRIFT, MOST_DELAY_MS, MOST_RATIO = 0.01, 5.0, 1.1

_SCRIPT = """import sys
import torch
width = int(sys.argv[2])
torch.jit.script(torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.Linear(width, 16))).save(sys.argv[1])
"""
_CONFIG = """backend: "pytorch"
max_batch_size: 32
input { name: "x" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "y__0" data_type: TYPE_FP32 dims: [ 16 ] }
instance_group { kind: KIND_CPU count: 1 }
dynamic_batching { }
"""


def write(repository: Path, models: int, megabytes: float) -> None:
    script = repository.parent / "model.pt"
    width = max(1, int(megabytes * 1e6 / 4 / 33))
    subprocess.run([sys.executable, "-c", _SCRIPT, str(script), str(width)], check=True, timeout=120)
    for number in range(models):
        version = repository / f"m{number}" / "1"
        version.mkdir(parents=True)
        shutil.copy(script, version / "model.pt")
        (version.parent / "config.pbtxt").write_text(_CONFIG)
    shutil.copytree(FLOOR, repository / "floor")


def flat(served: Served, seconds: float) -> bool:
    """Whether the memory stays as it is under load."""
    command = [str(ORACLE), "perf", "-m", "m0", "-u", f"127.0.0.1:{served.port}", "--concurrency-range", str(CLIENTS)]
    window = int(seconds * 1000 / 3)
    command += ["-p", str(window), "-s", "999", "-r", "3"]
    found = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as load:
        until = time.monotonic() + seconds
        while time.monotonic() < until and load.poll() is None:
            time.sleep(1)
            found.append(rss_mib(served.process.pid))
        load.terminate()
    fifth = len(found) // 5
    first, last = np.mean(found[fifth : 2 * fifth]), np.mean(found[-fifth:])
    drift = last / first - 1
    print(f"{len(found)} s: {first:.1f} MiB in the second fifth, {last:.1f} in the last: {drift:+.2%}")
    return bool(abs(drift) <= MOST_DRIFT)


class Client(threading.Thread):
    """Asks the model `floor` at a steady rate until `over` is set; `took` has the latencies in milliseconds."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.over, self.took = threading.Event(), list[float]()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def run(self) -> None:
        body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]})
        while not self.over.is_set():
            began = time.perf_counter()
            self._connection.request("POST", "/v2/models/floor/infer", body)
            assert self._connection.getresponse().read().startswith(b'{"model_name"')
            self.took.append((time.perf_counter() - began) * 1000)
            time.sleep(PAUSE)


def post(port: int, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", path, "{}")
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{path}: {text.decode()}")


def loads(served: Served, models: int) -> bool:
    """Whether loads do not delay other requests, and unloads give the memory back."""

    def each(verb: str) -> None:
        for number in range(models):
            post(served.port, f"/v2/repository/models/m{number}/{verb}")

    post(served.port, "/v2/repository/models/floor/load")
    post(served.port, "/v2/repository/models/m0/load")  # imports torch
    post(served.port, "/v2/repository/models/m0/unload")
    time.sleep(2)
    before = rss_mib(served.process.pid)
    client = Client(served.port)
    client.start()
    time.sleep(QUIET_SECONDS)
    quiet, beside, took = list(client.took), list[float](), 0.0
    for _ in range(ROUNDS):
        first, began = len(client.took), time.perf_counter()
        each("load")
        took += time.perf_counter() - began
        beside += client.took[first:]
        full = rss_mib(served.process.pid)
        each("unload")
    client.over.set()
    client.join(60)
    # Models unload after the answer, and those in child processes end their process.
    until = time.monotonic() + UNLOAD_SECONDS
    time.sleep(2)
    while (after := rss_mib(served.process.pid)) / before > MOST_RATIO and time.monotonic() < until:
        time.sleep(1)
    without, during = float(np.percentile(quiet, 99)), float(np.percentile(beside, 99))
    print(
        f"{models * ROUNDS} loads in {took:.2f} s: p99 of another model {without:.2f} ms without "
        f"({len(quiet)} requests), {during:.2f} ms with them ({len(beside)} requests)"
    )
    print(f"memory before {before:.1f}, loaded {full:.1f}, unloaded {after:.1f} MiB: {after / before:.3f}")
    return during - without <= MOST_DELAY_MS and after / before <= MOST_RATIO


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("flat", "loads"))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument(
        "--home",
        choices=("server", "child"),
        default="server",
        help="run the models in the server or in child processes",
    )
    asked = parser.parse_args()
    subprocess.run([str(ORACLE), "install"], check=True, stdout=subprocess.DEVNULL)
    os.environ["PYTHONPATH"] = str(TORCH)
    with tempfile.TemporaryDirectory(prefix="torch-life-") as name:
        root = Path(name)
        if asked.what == "flat":
            write(root / "models", 1, 0.1)
            with Served(root / "models", root / "log") as served:
                served.wait()
                passed = flat(served, asked.seconds)
        else:
            write(root / "models", asked.models, asked.megabytes)
            flags = ["--model-control-mode=explicit", f"--backend-config=pytorch,home={asked.home}"]
            with Served(root / "models", root / "log", *flags) as served:
                served.wait()
                passed = loads(served, asked.models)
    print("PASSED" if passed else "FAILED")
    return not passed


if __name__ == "__main__":
    sys.exit(main())
