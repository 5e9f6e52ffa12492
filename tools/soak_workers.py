#!/usr/bin/env python3
"""Kills child processes of a model under load, and checks that every request is answered and nothing remains.

    python -m tools.soak_workers [--kind python] [--kills 1000] [--pause 0.3] [--instances 8] [--clients 12] [--seed N]
                                 [--json FILE]

Starts `halimede serve` on free ports of 127.0.0.1 with a model of several instances that returns its input: a Python
model, one of ONNX Runtime in child processes, or one of TensorFlow (that of `make test-tensorflow`). Clients send
requests without a pause, and one of twenty has a tensor that travels in shared memory. While at least half of the
processes exist, a random one is killed with SIGKILL, also one that is just starting.

It passes if all of this holds:
- every request was answered, with its own numbers or with status 500 and the text for a process that died;
- at the end all instances serve again, and no process was a zombie for longer than ten seconds;
- the server has as many processes as before, no more descriptors, no more segments than its processes keep, never
  anything in /dev/shm, and no more threads but for one of the event loop's executor, which starts with its first work;
- its own memory grows by less than --most-growth MiB in the second half of the kills;
- SIGTERM ends the server with status 0, and no process of it remains.
"""

import argparse
import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from halimede.workers.child.segments import FREE_SEGMENTS
from tools.versus import free_ports, tree

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS, STOP_SECONDS, SETTLE_SECONDS, REQUEST_SECONDS = 180.0, 60.0, 180.0, 60.0
PAUSE_SECONDS = 0.3
"""The longest pause between two kills by default. The start of a Python worker takes about half of it."""
ZOMBIE_SECONDS = 10.0
"""How long an ended process may wait for its parent. Long, because the machine may be busy."""
MIB = 1 << 20
UNHEALTHY = re.compile(
    r"Stub process 'echo_0_\d+' is not healthy\.|the process of instance 'echo_0_\d+' is not healthy"
)
LATE_THREADS = 1
"""Threads of the server that may start during the run: the event loop's executor returns freed memory to the system."""
LARGE, LARGE_SHARE = 80_000, 0.05
"""Numbers of a tensor that travels in a shared segment (`workers.child.segments`), and the share of such requests."""

_MODEL = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    tensor = pb_utils.get_input_tensor_by_name(request, "X")
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor.as_numpy())])
"""


def write_python(version: Path) -> str:
    (version / "model.py").write_text(_MODEL)
    return 'backend: "python"\n'


def write_onnx(version: Path) -> str:
    from onnx import TensorProto, helper

    tensors = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"])] for name in ("X", "Y")]
    graph = helper.make_graph([helper.make_node("Identity", ["X"], ["Y"])], "echo", *tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (version / "model.onnx").write_bytes(model.SerializeToString())
    return 'backend: "onnxruntime"\nparameters { key: "HOME" value { string_value: "child" } }\n'


def write_tensorflow(version: Path) -> str:
    folder = Path(os.environ.get("HALIMEDE_TENSORFLOW", ".cache/tensorflow")).resolve()
    shutil.copytree(folder / "models" / "elements.savedmodel", version / "model.savedmodel")
    environment = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{folder}" }} }}\n'
    return f'platform: "tensorflow_savedmodel"\n{environment}'


class Kind(NamedTuple):
    """What writes the model and returns the beginning of its configuration, and the names of input and output."""

    write: Callable[[Path], str]
    given: str = "X"
    taken: str = "Y"


KINDS = {
    "python": Kind(write_python),
    "onnx": Kind(write_onnx),
    "tensorflow": Kind(write_tensorflow, "INPUT0", "OUTPUT0"),
}


def write_model(repository: Path, kind: Kind, instances: int) -> None:
    version = repository / "echo" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(
        kind.write(version)
        + f"input [ {{ name: '{kind.given}' data_type: TYPE_FP32 dims: [ -1 ] }} ]\n"
        + f"output [ {{ name: '{kind.taken}' data_type: TYPE_FP32 dims: [ -1 ] }} ]\n"
        + f"instance_group [ {{ kind: KIND_CPU count: {instances} }} ]\n"
    )


@dataclass(frozen=True, slots=True)
class State:
    """The number of processes of the server, itself included, of its own threads and descriptors, and of its mappings
    of segments, which have a descriptor each that does not count among those."""

    processes: int
    threads: int
    descriptors: int
    segments: int


class Server:
    """The process of the server under load."""

    def __init__(self, folder: Path, kind: Kind, instances: int) -> None:
        self.http, grpc, metrics = free_ports(3)
        self.log = folder / "server.log"
        write_model(folder / "models", kind, instances)
        addresses = [f"--{name}-address=127.0.0.1" for name in ("http", "grpc", "metrics")]
        ports = [f"--http-port={self.http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
        command = [sys.executable, "-m", "halimede", "serve", f"--model-repository={folder / 'models'}"]
        self.metrics = metrics
        with self.log.open("wb") as sink:
            self._process = subprocess.Popen(
                [*command, *addresses, *ports], stdout=sink, stderr=sink, cwd=ROOT, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        wait_until(lambda: self._process.poll() is not None or self._is_ready(), START_SECONDS)
        if self._process.poll() is not None:
            raise RuntimeError("the server did not come up")

    def _is_ready(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.http}/v2/health/ready"):
            return True
        return False

    def restarts(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics") as answer:
            found = re.search(r"^halimede_worker_restarts_total\{.*\} (\d+)", answer.read().decode(), re.MULTILINE)
        return int(found[1]) if found else -1

    def workers(self) -> list[int]:
        return tree(self.pid)[1:]

    def state(self) -> State:
        files = [_target(each) for each in Path(f"/proc/{self.pid}/fd").iterdir()]
        segments = sum(each.startswith("/memfd:halimede") for each in files)
        threads = len(list(Path(f"/proc/{self.pid}/task").iterdir()))
        return State(len(tree(self.pid)), threads, len(files) - segments, segments)

    def shared_memory(self) -> int:
        """How many of its processes have a mapping of /dev/shm."""
        return sum("/dev/shm/" in _read(f"/proc/{pid}/maps") for pid in tree(self.pid))

    def memory(self) -> int:
        """Resident memory of the server itself, without its workers, in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def zombies(self) -> list[int]:
        """Workers that ended and were not waited for."""
        return [pid for pid in self.workers() if _is_zombie(pid)]

    def stop(self) -> tuple[int | None, int]:
        """Sends SIGTERM. Returns the exit status (None if it did not end) and the number of remaining processes."""
        members = tree(self.pid)
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        return self._process.poll(), sum(Path(f"/proc/{pid}").exists() for pid in members)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)


def _is_zombie(pid: int) -> bool:
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] == ["Z"]


def _target(link: Path) -> str:
    """What a descriptor refers to; empty if it was closed."""
    with suppress(OSError):
        return str(link.readlink())
    return ""


def _read(path: str) -> str:
    """The text of a file in /proc; empty if the process has ended."""
    with suppress(OSError):
        return Path(path).read_text()
    return ""


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Waits until `holds()` is true. Returns False if that takes longer than `seconds`."""
    limit = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


@dataclass(slots=True)
class Tally:
    """The answers that one client got."""

    answered: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


class Client(threading.Thread):
    """Sends requests until the event `over` is set."""

    def __init__(self, port: int, kind: Kind, seed: str, over: threading.Event) -> None:
        super().__init__(name=f"client {seed}", daemon=True)
        self.tally = Tally()
        self._lot = random.Random(seed)
        self._over = over
        self._kind = kind
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)

    def run(self) -> None:
        while not self._over.is_set():
            size = LARGE if self._lot.random() < LARGE_SHARE else self._lot.randint(1, 16)
            try:
                self._ask(np.full(size, self._lot.randrange(1 << 20), np.float32).tobytes())
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                self.tally.wrong.append(f"{type(error).__name__}: {error}")
                self._connection.close()
        self._connection.close()

    def _ask(self, numbers: bytes) -> None:
        """Sends them as binary data, and asks for binary data."""
        tensor: dict[str, Any] = {"name": self._kind.given, "datatype": "FP32", "shape": [len(numbers) // 4]}
        tensor["parameters"] = {"binary_data_size": len(numbers)}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        self._connection.request("POST", "/v2/models/echo/infer", head + numbers, headers)
        answer = self._connection.getresponse()
        said = answer.read()
        if answer.status == 200 and said[int(answer.headers["Inference-Header-Content-Length"]) :] == numbers:
            self.tally.answered += 1
        elif answer.status == 500 and UNHEALTHY.fullmatch(json.loads(said)["error"]):
            self.tally.refused += 1
        else:
            self.tally.wrong.append(f"{answer.status}: {said[:300]!r}")


def kill_workers(
    server: Server, times: int, least: int, pause: float, lot: random.Random
) -> tuple[Counter[str], list[int]]:
    """Kills random workers until `times` were killed, only while there are at least `least`. Pauses for up to `pause`
    seconds between two.

    Returns counters of what was seen, and the server's memory before each kill."""
    seen: Counter[str] = Counter()
    memory: list[int] = []
    suspects: dict[int, float] = {}
    while seen["kills"] < times:
        time.sleep(lot.uniform(0.0, pause))
        zombies, now = server.zombies(), time.monotonic()
        suspects = {pid: suspects.get(pid, now) for pid in zombies}
        seen["zombies"] += sum(now - since > ZOMBIE_SECONDS for since in suspects.values())
        workers = [pid for pid in server.workers() if pid not in zombies]
        if len(workers) < least:
            continue
        seen["shared_memory"] += server.shared_memory()
        with suppress(ProcessLookupError):
            os.kill(lot.choice(workers), signal.SIGKILL)
            seen["kills"] += 1
        memory.append(server.memory())
    return seen, memory


def growth(memory: list[int]) -> float:
    """The lowest memory of the last quarter minus the lowest of the third quarter, in MiB."""
    quarter = max(1, len(memory) // 4)
    return (min(memory[-quarter:]) - min(memory[-2 * quarter : -quarter] or memory)) / MIB


def soak(server: Server, options: argparse.Namespace) -> dict[str, object]:
    """Runs the whole soak and returns the report."""
    lot, over = random.Random(options.seed), threading.Event()
    kind = KINDS[options.kind]
    clients = [Client(server.http, kind, f"{options.seed}-{number}", over) for number in range(options.clients)]
    for client in clients:
        client.start()
    wait_until(lambda: all(client.tally.answered for client in clients), START_SECONDS)
    before, began = server.state(), time.monotonic()
    seen, memory = kill_workers(server, options.kills, options.instances // 2, options.pause, lot)
    took = time.monotonic() - began
    most_segments = 2 * (FREE_SEGMENTS * options.instances + options.clients)
    settled = wait_until(lambda: _has_settled(server, before, most_segments), SETTLE_SECONDS)
    after = server.state()
    over.set()
    for client in clients:
        client.join(REQUEST_SECONDS)
    tallies = [client.tally for client in clients]
    return {
        "seconds": round(took, 1),
        "kills": seen["kills"],
        "restarts": server.restarts(),
        "answered": sum(tally.answered for tally in tallies),
        "failed_in_flight": sum(tally.refused for tally in tallies),
        "wrong": [words for tally in tallies for words in tally.wrong],
        "unfinished": sum(client.is_alive() for client in clients),
        "zombies": seen["zombies"],
        "shared_memory": seen["shared_memory"],
        "settled": settled,
        "before": asdict(before),
        "after": asdict(after),
        "memory_mib": [round(size / MIB, 1) for size in memory],
        "growth_mib": round(growth(memory), 2),
    }


def _has_settled(server: Server, before: State, most_segments: int) -> bool:
    """`most_segments` are those that the processes keep, and one for each request and answer under way."""
    now = server.state()
    return (
        now.processes == before.processes
        and now.threads <= before.threads + LATE_THREADS
        and now.descriptors <= before.descriptors
        and now.segments <= most_segments
        and not server.zombies()
    )


def verdict(report: dict[str, object], most_growth: float) -> list[str]:
    """Describes the requirements that do not hold."""
    wrong, rise = report["wrong"], report["growth_mib"]
    assert isinstance(wrong, list)
    assert isinstance(rise, float)
    rules = (
        (not wrong, f"{len(wrong)} wrong answers, such as {wrong[:3]}"),
        (not report["unfinished"], f"{report['unfinished']} clients still wait for an answer"),
        (not report["zombies"], f"{report['zombies']} zombies"),
        (not report["shared_memory"], f"/dev/shm was in use {report['shared_memory']} times"),
        (report["settled"], f"{report['before']} before the kills, {report['after']} after them"),
        (report["answered"] and report["restarts"], "no request was answered, or no worker was restarted"),
        (rise < most_growth, f"memory grew by {rise} MiB"),
        (report["exit_status"] == 0, f"exit status {report['exit_status']} after SIGTERM"),
        (not report["processes_left"], f"{report['processes_left']} processes remain"),
    )
    return [words for holds, words in rules if not holds]


def main() -> int:
    """Returns 0 if the run passed, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default="python")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--pause", type=float, default=PAUSE_SECONDS, help="the longest between two kills, in seconds")
    parser.add_argument("--most-growth", type=float, default=8.0, help="MiB of the server's own memory")
    parser.add_argument("--json", help="write the results to this file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="soak-workers-") as folder:
        server = Server(Path(folder), KINDS[options.kind], options.instances)
        try:
            server.wait_until_ready()
            report = soak(server, options)
            report["exit_status"], report["processes_left"] = server.stop()
        except (RuntimeError, OSError) as error:
            print(f"soak: {type(error).__name__}: {error}; the server's log: ...{server.log.read_text()[-2000:]}")
            return 1
        finally:
            server.kill()
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    short = verdict(report, options.most_growth)
    print(
        f"soak of {report['kills']} kills in {report['seconds']} s: {report['answered']} answered, "
        f"{report['failed_in_flight']} failed with their worker, {report['restarts']} restarts, "
        f"memory {report['growth_mib']:+} MiB: {'; '.join(short) if short else 'PASSED'}"
    )
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
