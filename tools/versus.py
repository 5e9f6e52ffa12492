#!/usr/bin/env python3
"""Compares two servers under the same load, alternately (A B, B A, ...), so that a drifting machine affects both alike.

    versus.py --a 'CMD ...' [--b 'CMD ...'] [--work NAME ...] [--rounds 3] [--seconds 0.8]
              [--gate 'throughput>=1.2 cpu<=0.9'] [--served] [--json FILE]

CMD starts a server in the foreground. {repo}, {http}, {grpc} and {metrics} in it are replaced. B defaults to the real
Triton (tools/oracle/oracle serve). The real perf_analyzer makes the load. Answers are checked before each row.

A row has, for each server, the median over the rounds of throughput (inferences/s), p50 and p99 latency (us) and CPU
time per inference (us, all processes of the server), then the ratios A/B. A throughput ratio above 1 means that A is
faster. A p99 or cpu ratio below 1 means that A is better.

--gate sets bounds on the median ratios of every row. In addition, no single round may be below 0.8 of a throughput
gate, and a failed round fails its row. --served skips the rows that A refuses to run, and prints the reason. --json
keeps every round.

Families of rows are never compared with each other: floor-* (the model costs nothing), py-* (a Python model as each
server runs it by default), inproc-* (a Python model in the server process for Halimede, the default for Triton), and
the rest.
"""

import argparse
import contextlib
import csv
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

HERE = Path(__file__).resolve().parent
ORACLE = HERE / "oracle" / "oracle"
MODELS = HERE.parent / "bench" / "models"


class Work(NamedTuple):
    """The load of one row. `concurrency` is None if `flags` set it."""

    model: str
    protocol: str
    concurrency: int | None
    flags: list[str]


class Check(NamedTuple):
    """The input of a JSON inference whose output must equal it."""

    datatype: str
    shape: list[int]
    data: list[float]
    parameters: dict[str, int | bool] | None


class Gate(NamedTuple):
    """A bound on the ratio A/B of one figure."""

    figure: str
    sign: str
    bound: float

    def holds(self, ratio: float) -> bool:
        return ratio >= self.bound if self.sign == ">=" else ratio <= self.bound


class RefusedError(RuntimeError):
    """The server refuses what a row needs. The message is the server's."""


class HungError(RuntimeError):
    """perf_analyzer does not end."""


TRIES = 3
"""Runs of perf_analyzer before a row fails. With hundreds of clients it sometimes never ends: its main thread is busy
with its own measurements, while either server continues to answer."""


Figures = dict[str, float]  # throughput (inferences/s), p50, p99 and cpu (us)
Rounds = dict[str, list[Figures]]  # by server name, in the order of the rounds


class Row(TypedDict):
    """One row in the file of --json. `work` describes the load."""

    work: str
    rounds: Rounds
    median: dict[str, Figures]
    ratio: Figures


class Facts(TypedDict):
    """A server in the file of --json: seconds until its last model was ready, and memory in MiB."""

    startup: float | None
    idle: float
    after: float


class Result(TypedDict):
    """The file of --json. `not_served` has the reasons by row; `short` describes what missed its gate or failed."""

    gate: str
    cores: int | None
    servers: dict[str, Facts]
    rows: dict[str, Row]
    not_served: dict[str, str]
    short: list[str]


SMALL = ["--shape", "INPUT0:16"]
IMAGE = ["--shape", "INPUT0:150528"]  # 3 x 224 x 224 FP32, 588 KiB
BIG = ["--shape", "INPUT0:4194304"]  # 16 MiB
SHM = ["--shared-memory", "system", "--output-shared-memory-size", "602112"]
JSON = ["--input-tensor-format", "json", "--output-tensor-format", "json"]
HELD_OUT = ["--shape", f"INPUT0:{random.randint(3, 3000)}"]  # random, so that no server can be tuned to it
SEQUENCES = ["--sequence-length", "20"]  # each concurrent request belongs to its own sequence

WORK: dict[str, Work] = {
    **{f"floor-{p}-{c}": Work("floor", p, c, SMALL) for p in ("http", "grpc") for c in (1, 8, 32)},
    "floor-grpc-stream-8": Work("floor", "grpc", 8, [*SMALL, "--streaming"]),
    "floor-http-json-8": Work("floor", "http", 8, [*SMALL, *JSON]),
    "floor-http-256": Work("floor", "http", 256, SMALL),
    "floor-batch8-8": Work("floor", "grpc", 8, [*SMALL, "-b", "8"]),
    "floor-http-image-4": Work("floor", "http", 4, IMAGE),
    "floor-grpc-image-4": Work("floor", "grpc", 4, IMAGE),
    "floor-shm-image-4": Work("floor", "grpc", 4, [*IMAGE, *SHM]),
    "floor-http-big-2": Work("floor", "http", 2, BIG),
    "floor-grpc-big-2": Work("floor", "grpc", 2, BIG),
    "floor-held-out": Work("floor", random.choice(("http", "grpc")), random.choice((2, 5, 12)), HELD_OUT),
    **{f"py-{p}-{c}": Work("echo", p, c, SMALL) for p in ("http", "grpc") for c in (1, 8, 32)},
    "py-http-image-4": Work("echo", "http", 4, IMAGE),
    "py-grpc-image-4": Work("echo", "grpc", 4, IMAGE),
    "py-mixed-8": Work("mixed", "grpc", 8, []),
    "py-held-out": Work("echo", random.choice(("http", "grpc")), random.choice((2, 5, 12)), HELD_OUT),
    **{f"inproc-{p}-{c}": Work("echo_inproc", p, c, SMALL) for p in ("http", "grpc") for c in (1, 8)},
    "slow-16": Work("slow", "grpc", 16, SMALL),
    "ensemble-1": Work("pipeline", "grpc", 1, SMALL),
    "ensemble-8": Work("pipeline", "grpc", 8, SMALL),
    **{f"ensemble-floor-{c}": Work("floor_pipeline", "grpc", c, SMALL) for c in (1, 8)},
    "bls-1": Work("bls", "grpc", 1, SMALL),
    "bls-8": Work("bls", "grpc", 8, SMALL),
    "sequence-16": Work("accumulate", "grpc", 16, SEQUENCES),
    "sequence-direct-16": Work("accumulate_rows", "grpc", 16, SEQUENCES),
}
UNCHECKED = {"mixed"}  # it has four inputs, and `Check` has one
CHECKS = dict.fromkeys(
    ("accumulate", "accumulate_rows"),
    Check("INT32", [1, 1], [5], {"sequence_id": 7, "sequence_start": True, "sequence_end": True}),
)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free at the time of the call."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [int(s.getsockname()[1]) for s in sockets]


def tree(pid: int) -> list[int]:
    """The process ids of a process and all its living descendants."""
    found = [pid]
    with contextlib.suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                found += tree(int(child))
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants so far, in seconds."""
    ticks = 0
    for p in tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, fields[11:15]))  # its own time, and that of children that it waited for
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    """Proportional memory (Pss) of a process and its descendants, in MiB."""
    kib = 0
    for p in tree(pid):
        with contextlib.suppress(OSError):
            found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{p}/smaps_rollup").read_text(), re.MULTILINE)
            kib += int(found[1]) if found else 0
    return kib / 1024


class Server:
    """The process group of one of the two servers."""

    def __init__(self, name: str, command: str, repo: Path, models: set[str]) -> None:
        self.name, self.models = name, models
        self.http, self.grpc, self.metrics = free_ports(3)
        self.startup: float | None = None
        self.idle = 0.0
        self.ready: set[str] = set()
        values = {"repo": str(repo), "http": self.http, "grpc": self.grpc, "metrics": self.metrics}
        words = [re.sub(r"\{(repo|http|grpc|metrics)\}", lambda m: str(values[m[1]]), w) for w in shlex.split(command)]
        self.log = (repo.parent / f"{name}.log").open("w+")
        self.began = time.monotonic()
        self.process = subprocess.Popen(words, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)

    def has_settled(self) -> bool:
        """Notes which models are ready. Returns True if all are, or after 15 s (60 s while none is).

        Models that are not ready fail their rows. Raises RuntimeError if the server has ended."""
        age = time.monotonic() - self.began
        if self.process.poll() is not None:
            self.log.seek(0)
            raise RuntimeError(f"server {self.name} has ended: ...{self.log.read()[-1500:]}")
        ready = {m for m in self.models if self.ok(f"/v2/models/{m}/ready")}
        if ready != self.ready:
            self.ready, self.startup = ready, time.monotonic() - self.began
        return self.ready == self.models or age > (15 if self.ready else 60)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.http}{path}"

    def ok(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(self.url(path), timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def served(self, model: str) -> int:
        """The number of successful requests of the model."""
        with urllib.request.urlopen(self.url(f"/v2/models/{model}/stats"), timeout=5) as answer:
            return int(json.load(answer)["model_stats"][0]["inference_stats"]["success"]["count"])

    def check(self, work: Work) -> None:
        """Checks that the server has what the row needs, and answers one JSON inference correctly. Raises RuntimeError,
        or RefusedError if the server refuses it."""
        if work.model not in self.ready:
            raise RefusedError("the model is not ready")
        if "--shared-memory" in work.flags:
            self._ask("/v2/systemsharedmemory/status")
        if work.model in UNCHECKED:
            return
        check = CHECKS.get(work.model, Check("FP32", [1, 4], [1.5, -2.0, 0.25, random.randint(1, 999)], None))
        tensor = {"name": "INPUT0", "datatype": check.datatype, "shape": check.shape, "data": check.data}
        body: dict[str, Any] = {"inputs": [tensor]}
        if check.parameters:
            body["parameters"] = check.parameters
        answer = self._ask(f"/v2/models/{work.model}/infer", json.dumps(body).encode())
        output = answer.get("outputs", [{}])[0]
        if output.get("data") != check.data or output.get("shape") != check.shape:
            raise RuntimeError(f"wrong answer: {answer}")

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        """Returns a JSON answer. Raises RefusedError with the server's error, RuntimeError without an answer."""
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url(path), body), timeout=20) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with contextlib.suppress(ValueError, LookupError, TypeError):
                raise RefusedError(json.load(error)["error"]) from error
            raise RefusedError(f"status {error.code}") from error
        except (OSError, ValueError) as error:
            raise RuntimeError(f"no answer: {error}") from error

    def measure(self, name: str, seconds: float) -> Figures:
        """Runs perf_analyzer; again if it hangs although the server answers. Raises RuntimeError if it fails."""
        for _ in range(TRIES - 1):
            try:
                return self._measured(name, seconds)
            except HungError:
                self.check(WORK[name])
        return self._measured(name, seconds)

    def _measured(self, name: str, seconds: float) -> Figures:
        model, pid = WORK[name].model, self.process.pid
        cpu, count = cpu_seconds(pid), self.served(model)
        row = self._perf(WORK[name], seconds)
        cpu, count = cpu_seconds(pid) - cpu, self.served(model) - count
        return {
            "throughput": float(row["Inferences/Second"]),
            "p50": float(row["p50 latency"]),
            "p99": float(row["p99 latency"]),
            "cpu": cpu / max(count, 1) * 1e6,
        }

    def _perf(self, work: Work, seconds: float) -> dict[str, str]:
        port = self.http if work.protocol == "http" else self.grpc
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.csv"
            command = [str(ORACLE), "perf", "-m", work.model, "-i", work.protocol, "-u", f"127.0.0.1:{port}"]
            command += [*work.flags, "-p", str(int(seconds * 1000)), "-s", "999", "-r", "3", "-f", str(out)]
            command += [] if work.concurrency is None else ["--concurrency-range", str(work.concurrency)]
            said, status = run_load(command, work.concurrency or 1, 60 + 10 * seconds, out)
            if status or not out.exists():
                raise RuntimeError(" / ".join(said.strip().splitlines()[-3:]))
            with out.open() as rows:
                return next(csv.DictReader(rows))

    def stop(self) -> int:
        """Sends SIGTERM, then kills the process group. Returns the number of processes that SIGTERM left alive."""
        members = tree(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        left = [p for p in members if Path(f"/proc/{p}/exe").exists()]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.log.close()
        return len(left)


def settle(servers: Sequence[Server]) -> None:
    """Waits until the servers have loaded their models."""
    waiting = list(servers)
    while waiting:
        waiting = [server for server in waiting if not server.has_settled()]
        time.sleep(0.02)
    for server in servers:
        server.idle = memory_mib(server.process.pid)


def run_load(command: list[str], threads: int, limit: float, out: Path) -> tuple[str, int]:
    """Runs perf_analyzer and returns its output and its exit status.

    Raises HungError if it does not end in time, unless its results are written: it may hang while it closes its own
    streams, with either server."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as load:
        prefer_main_thread(load.pid, threads)
        try:
            said, _ = load.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            load.kill()
            if not is_complete(out):
                raise HungError("perf_analyzer hung") from None
            return "", 0
        return said, load.returncode


def is_complete(out: Path) -> bool:
    """Whether perf_analyzer has written its line of figures."""
    return out.exists() and out.read_text().count("\n") > 1


def prefer_main_thread(pid: int, threads: int) -> None:
    """Raises the priority of perf_analyzer's main thread above its load threads, once those have started.

    The main thread evaluates results between the windows. On few cores, 32 busy load threads and the server starve it.
    It then evaluates more slowly than requests arrive and never ends, with either server. Needs a privilege. Without
    it, rows with many clients may fail as hung.
    """
    until = time.monotonic() + 5
    with contextlib.suppress(OSError):
        while len(list(Path(f"/proc/{pid}/task").iterdir())) <= threads and time.monotonic() < until:
            time.sleep(0.02)
        os.setpriority(os.PRIO_PROCESS, pid, -15)


def judge(gates: Iterable[Gate], ratio: Figures, rounds: Rounds) -> list[str]:
    """Describes the gates that do not hold."""
    short = []
    for gate in gates:
        if not gate.holds(ratio[gate.figure]):
            short.append(f"{gate.figure} {ratio[gate.figure]:.2f} (gate {gate.sign} {gate.bound})")
    for gate in gates:
        if gate.figure == "throughput" and gate.sign == ">=":
            worst = min(a["throughput"] / b["throughput"] for a, b in zip(rounds["a"], rounds["b"], strict=True))
            if worst < 0.8 * gate.bound:
                short.append(f"a round of {worst:.2f}")
    return short


def run_row(name: str, servers: Sequence[Server], rounds: int, seconds: float) -> Rounds:
    """Runs all rounds of one row, with the order of the servers reversed each time. Raises RuntimeError at the first
    failure."""
    found: Rounds = {"a": [], "b": []}
    for server in servers:
        try:
            server.check(WORK[name])
        except RuntimeError as error:
            raise RuntimeError(f"server {server.name}: {error}") from error
    for i in range(rounds):
        for server in servers if i % 2 == 0 else servers[::-1]:
            try:
                found[server.name].append(server.measure(name, seconds))
            except (RuntimeError, OSError, ValueError, LookupError, StopIteration) as error:
                raise RuntimeError(f"server {server.name}: {error}") from error
    return found


def summarise(work: Work, found: Rounds) -> Row:
    """Computes the medians over the rounds and their ratios A/B."""
    median = {s: {k: statistics.median(r[k] for r in found[s]) for k in found[s][0]} for s in found}
    ratio = {k: median["a"][k] / max(median["b"][k], 1e-9) for k in median["a"]}
    asked = f"{work.model}, {work.protocol}, {work.concurrency or 'many'} clients, {' '.join(work.flags)}"
    return {"work": asked.rstrip(", "), "rounds": found, "median": median, "ratio": ratio}


def print_heading(a: Server, b: Server) -> None:
    started = [s.startup if s.startup is not None else float("nan") for s in (a, b)]
    print(f"load {os.getloadavg()[0]:.1f}; start-up s: a {started[0]:.2f} b {started[1]:.2f};", end=" ")
    print(f"idle memory MiB: a {a.idle:.0f} b {b.idle:.0f}")
    print(f"{'work':20}{'a inf/s':>9}{'b inf/s':>9}{'ratio':>7} |{'a p50':>8}{'b p50':>8} |", end="")
    print(f"{'a p99':>8}{'b p99':>8}{'ratio':>7} |{'a cpu':>8}{'b cpu':>8}{'ratio':>7}", flush=True)


def print_row(name: str, row: Row, below: Sequence[str]) -> None:
    a, b, ratio = row["median"]["a"], row["median"]["b"], row["ratio"]
    print(f"{name:20}{a['throughput']:9.0f}{b['throughput']:9.0f}{ratio['throughput']:7.2f} |", end="")
    print(f"{a['p50']:8.0f}{b['p50']:8.0f} |{a['p99']:8.0f}{b['p99']:8.0f}{ratio['p99']:7.2f} |", end="")
    print(f"{a['cpu']:8.0f}{b['cpu']:8.0f}{ratio['cpu']:7.2f}{'  SHORT' if below else ''}", flush=True)


def refusals(server: Server, names: Iterable[str]) -> dict[str, str]:
    """The rows that a server refuses, with its reasons."""
    found = {}
    for name in names:
        try:
            server.check(WORK[name])
        except RefusedError as error:
            found[name] = str(error).splitlines()[0][:200]
        except RuntimeError:
            continue  # a wrong answer is not a refusal; the row itself will fail
    return found


def run_rows(
    names: Iterable[str], options: argparse.Namespace, servers: Sequence[Server], gates: Sequence[Gate]
) -> tuple[dict[str, Row], list[str]]:
    """Runs and prints rows. Returns them, and a description of what missed its gate or failed."""
    rows: dict[str, Row] = {}
    short: list[str] = []
    for name in names:
        try:
            row = summarise(WORK[name], run_row(name, servers, options.rounds, options.seconds))
        except RuntimeError as error:
            short.append(f"{name}: {error}")
            print(f"{name:20}FAILED: {str(error)[:300]}", flush=True)
            continue
        rows[name] = row
        below = judge(gates, row["ratio"], row["rounds"])
        short += [f"{name}: {s}" for s in below]
        print_row(name, row, below)
    return rows, short


def compare(options: argparse.Namespace, gates: Sequence[Gate]) -> Result:
    """Starts both servers, runs the rows, and always stops both servers."""
    models = {WORK[w].model for w in options.work}
    servers: list[Server] = []
    left: list[int] = []
    with tempfile.TemporaryDirectory(prefix="versus-") as folder:
        try:
            for name, command in (("a", options.a), ("b", options.b)):
                repo = Path(folder) / name / "models"
                shutil.copytree(options.repo, repo, ignore=shutil.ignore_patterns("__pycache__"))
                servers.append(Server(name, command, repo, models))
            settle(servers)
            a, b = servers
            print_heading(a, b)
            refused = refusals(a, options.work) if options.served else {}
            rows, short = run_rows([w for w in options.work if w not in refused], options, servers, gates)
            facts = {s.name: Facts(startup=s.startup, idle=s.idle, after=memory_mib(s.process.pid)) for s in servers}
            print(f"memory MiB after: a {facts['a']['after']:.0f} b {facts['b']['after']:.0f}")
        finally:
            left += [s.stop() for s in servers]
    if left[0]:
        print(f"server a left {left[0]} processes alive after SIGTERM")
    return Result(gate=options.gate, cores=os.cpu_count(), servers=facts, rows=rows, not_served=refused, short=short)


def parse() -> tuple[argparse.Namespace, list[Gate]]:
    """The options and the gates of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--a", required=True)
    parser.add_argument("--b", default=f"{ORACLE} serve {{repo}} {{http}} {{grpc}} {{metrics}} --exit-on-error=false")
    parser.add_argument("--repo", default=str(MODELS))
    parser.add_argument("--work", nargs="+", default=list(WORK), metavar="NAME", help=" ".join(WORK))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.8, help="seconds of a perf_analyzer window (of three)")
    parser.add_argument("--served", action="store_true", help="skip the rows that A refuses to run")
    parser.add_argument("--json")
    parser.add_argument("--gate", default="")
    options = parser.parse_args()
    if unknown := [w for w in options.work if w not in WORK]:
        parser.error(f"no such work: {' '.join(unknown)}")
    found = re.findall(r"(throughput|p50|p99|cpu)(>=|<=)([0-9.]+)", options.gate)
    return options, [Gate(figure, sign, float(bound)) for figure, sign, bound in found]


def main() -> int:
    """Returns 0 if all rows hold, 1 if one missed its gate or failed."""
    options, gates = parse()
    subprocess.run([str(ORACLE), "install"], check=True, stdout=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    result = compare(options, gates)
    rows, short = result["rows"], result["short"]
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    for name, reason in result["not_served"].items():
        print(f"{name:20}not served by a: {reason}")
    if rows:
        worst = min(rows, key=lambda w: rows[w]["ratio"]["throughput"])
        print(f"lowest throughput ratio: {rows[worst]['ratio']['throughput']:.2f} ({worst})")
    print("; ".join(short)[:400] if short else f"all {len(rows)} rows hold" + (f" ({options.gate})" if gates else ""))
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
