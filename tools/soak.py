#!/usr/bin/env python3
"""Puts a long mixed load with misbehaving clients on one server, and checks its answers and its memory.

    python -m tools.soak [--seconds 600] [--seed N] [--users 6] [--most-growth 16] [--json FILE]

Starts `halimede serve` on free ports of 127.0.0.1 with a few models. Users over HTTP and gRPC perform random actions:
inferences of all sizes, streams, invalid requests, connections that end at any point. Every answer is checked.

It passes if all of this holds:
- there is no error that a client did not cause, and the log has no line of level error except from the model that
  raises;
- resident memory of all server processes, sampled while the server is idle, is flat in the second half. The lowest
  sample of each tenth of that half counts, because the allocator returns memory in steps and a leak raises the lowest
  samples too. By the median of the slopes between any two of them, memory grows by less than --most-growth MiB;
- after the load, the server has no more open files than before it, when it had seen every action once. Shared memory of
  the workers is counted separately, because it is kept for reuse;
- SIGTERM ends the server with status 0, and no process of it remains.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from tools.soak_grpc import GrpcUser
from tools.soak_http import HttpUser
from tools.soak_users import BLOB_BYTES, Draw, Gate, Tally, User, use, use_each_kind
from tools.versus import cpu_seconds, free_ports, tree

ROOT = Path(__file__).resolve().parent.parent
MODELS = {
    "bench/models": ("floor", "echo", "slow"),
    "tests/conformance/models": ("int32", "bytes", "decoupled", "raises"),
}
START_SECONDS, STOP_SECONDS, SETTLE_SECONDS = 60.0, 60.0, 30.0
MIB = 1 << 20
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Makes glibc return freed memory at once. Large requests then leave nothing behind, so growth is a leak."""
QUIET_SECONDS, IDLE_LIMIT = 0.05, 5.0
PARTS = 10
"""Parts of the second half, of which the lowest samples are compared."""
ROUNDS_BEFORE = 3
"""How often each action runs before open files are counted."""


@dataclass(frozen=True, slots=True)
class Files:
    """Numbers of open files of the server's processes: shared memory of the workers (`shared`), and all others."""

    shared: int
    others: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in the second half of the samples, in bytes. `spread` is the largest minus the smallest."""

    mean: float
    growth: float
    spread: int


class Server:
    """The process of the server under load."""

    def __init__(
        self,
        folder: Path,
        models: Mapping[str, Sequence[str]] = MODELS,
        more_flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.http, self.grpc, self.metrics = free_ports(3)
        self.log = folder / "server.log"
        flags = [f"--{name}-address=127.0.0.1" for name in ("http", "grpc", "metrics")]
        flags += [f"--http-port={self.http}", f"--grpc-port={self.grpc}", f"--metrics-port={self.metrics}"]
        repository = copy_models(folder, models)
        command = [sys.executable, "-m", "halimede", "serve", f"--model-repository={repository}", *flags, *more_flags]
        with self.log.open("wb") as sink:
            variables = {**os.environ, **(environment or {})}
            self._process = subprocess.Popen(
                command, stdout=sink, stderr=sink, cwd=ROOT, env=variables, start_new_session=True
            )

    def wait_until_ready(self) -> None:
        limit = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError("the server did not come up")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.http}/v2/health/ready"):
            return True
        return False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def cpu_seconds(self) -> float:
        """CPU time of all its processes so far."""
        return cpu_seconds(self._process.pid)

    def memory(self) -> int:
        """Resident memory of all its processes, in bytes."""
        pages = 0
        for pid in tree(self._process.pid):
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def files(self) -> Files:
        names = list(self._open_files())
        shared = sum(name.startswith("/memfd:") for name in names)
        return Files(shared, len(names) - shared)

    def _open_files(self) -> Iterator[str]:
        for pid in tree(self._process.pid):
            with contextlib.suppress(OSError):
                for path in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        yield str(path.readlink())

    def logged_errors(self) -> list[str]:
        """The log lines of level error, except those of the model that raises on purpose."""
        return [
            line for line in self.log.read_text().splitlines() if re.match(r"E\d{4} ", line) and "'raises" not in line
        ]

    def stop(self) -> tuple[int | None, int]:
        """Sends SIGTERM. Returns the exit status (None if it did not end) and the number of remaining processes."""
        members = tree(self._process.pid)
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        left = [pid for pid in members if Path(f"/proc/{pid}/exe").exists()]
        return self._process.poll(), len(left)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)


def copy_models(folder: Path, models: Mapping[str, Sequence[str]]) -> Path:
    repository = folder / "models"
    for place, names in models.items():
        for name in names:
            shutil.copytree(ROOT / place / name, repository / name, ignore=shutil.ignore_patterns("__pycache__"))
            (repository / name / "1").mkdir(exist_ok=True)
    return repository


def second_half(samples: Sequence[tuple[float, int]]) -> Memory:
    """Evaluates the second half of the samples, which are (seconds, bytes)."""
    half = samples[len(samples) // 2 :]
    size = max(1, len(half) // PARTS)
    lowest = [min(half[at : at + size], key=lambda each: each[1]) for at in range(0, len(half), size)]
    slope = statistics.median((b - a) / (later - t) for (t, a), (later, b) in combinations(lowest, 2))
    sizes = [size for _, size in half]
    return Memory(statistics.fmean(sizes), slope * (half[-1][0] - half[0][0]), max(sizes) - min(sizes))


async def idle(server: Server) -> None:
    """Waits until the server is idle, for `IDLE_LIMIT` seconds at most. Requests of users who left may still run."""
    limit = time.monotonic() + IDLE_LIMIT
    used = -1.0
    while used != (used := server.cpu_seconds()) and time.monotonic() < limit:
        await asyncio.sleep(QUIET_SECONDS)


async def sample(server: Server, gate: Gate, until: float, every: float) -> list[tuple[float, int]]:
    """Samples memory while the users wait and the server is idle, because requests in flight are not a leak."""
    loop = asyncio.get_running_loop()
    samples = []
    while loop.time() < until:
        async with gate.closed():
            await idle(server)
            samples.append((loop.time(), server.memory()))
        await asyncio.sleep(every)
    return samples


def users_of(server: Server, count: int, seed: int) -> list[User]:
    blob = random.Random(seed).randbytes(BLOB_BYTES)
    users: list[User] = []
    for number in range(count):
        users.append(HttpUser(server.http, Draw(f"{seed}-http-{number}", blob)))
        users.append(GrpcUser(server.grpc, Draw(f"{seed}-grpc-{number}", blob)))
    return users


async def settled(server: Server, before: Files) -> Files:
    """Waits until there are no more open files than before, for `SETTLE_SECONDS` at most. Returns the open files."""
    limit = time.monotonic() + SETTLE_SECONDS
    while (now := server.files()).others > before.others and time.monotonic() < limit:
        await asyncio.sleep(0.1)
    return now


async def load(server: Server, options: argparse.Namespace, tally: Tally) -> dict[str, Any]:
    """Runs the whole load and returns the report."""
    loop = asyncio.get_running_loop()
    users = users_of(server, options.users, options.seed)
    idle = server.files()
    await use_each_kind(users[:2], ROUNDS_BEFORE, tally)
    before = await settled(server, idle)
    began = loop.time()
    until = began + options.seconds
    every = min(3.0, max(0.25, options.seconds / 200))
    gate = Gate()
    sampling = asyncio.ensure_future(sample(server, gate, until, every))
    await asyncio.gather(*(use(user, until, gate, tally) for user in users))
    samples = await sampling
    took = loop.time() - began
    after = await settled(server, before)
    memory = second_half(samples)
    return {
        "seconds": round(took, 1),
        "done": dict(sorted(tally.done.items())),
        "errors": sum(tally.wrong.values()),
        "memory_mib": {
            "second_half_mean": round(memory.mean / MIB, 1),
            "second_half_growth": round(memory.growth / MIB, 2),
            "growth_per_hour": round(memory.growth / MIB / max(took / 2, 1e-9) * 3600, 1),
            "second_half_max_less_min": round(memory.spread / MIB, 1),
            "most_growth": options.most_growth,
            "samples": [[round(t - began, 1), round(size / MIB, 1)] for t, size in samples],
        },
        "files": {"before": before.others, "after": after.others},
        "shared_memory_files": {"before": before.shared, "after": after.shared},
    }


def verdict(report: dict[str, Any]) -> list[str]:
    """Describes the requirements that do not hold."""
    memory, files = report["memory_mib"], report["files"]
    rules = (
        (not report["errors"], f"{report['errors']} errors that no client caused"),
        (not report["lines_of_errors"], f"{report['lines_of_errors']} log lines of level error"),
        (
            memory["second_half_growth"] < memory["most_growth"],
            f"memory grew by {memory['second_half_growth']} MiB in the second half",
        ),
        (files["after"] <= files["before"], f"{files['after']} files open, {files['before']} before"),
        (report["exit_status"] == 0, f"exit status {report['exit_status']} after SIGTERM"),
        (not report["processes_left"], f"{report['processes_left']} processes remain"),
    )
    return [words for holds, words in rules if not holds]


def print_report(report: dict[str, Any], tally: Tally) -> None:
    for kind, count in report["done"].items():
        print(f"  {kind:26}{count:9,}" + (f"   wrong: {tally.wrong[kind]}" if tally.wrong[kind] else ""))
    for kind in tally.wrong.keys() - report["done"].keys():
        print(f"  {kind:26}        0   wrong: {tally.wrong[kind]}")
    for line in tally.errors:
        print(f"  ! {line}")
    memory, files, shared = report["memory_mib"], report["files"], report["shared_memory_files"]
    print(
        f"memory, second half: mean {memory['second_half_mean']} MiB, growth {memory['second_half_growth']:+} MiB "
        f"({memory['growth_per_hour']:+} MiB an hour), max - min {memory['second_half_max_less_min']} MiB"
    )
    print(f"files open: before {files['before']}, after {files['after']}; ", end="")
    print(f"shared memory of the workers: before {shared['before']}, after {shared['after']}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--users", type=int, default=6, help="users of each of the two protocols")
    parser.add_argument("--most-growth", type=float, default=16.0, help="MiB of memory in the second half")
    parser.add_argument("--json", help="write the results to this file")
    return parser.parse_args()


def main() -> int:
    """Returns 0 if the run passed, else 1."""
    options, tally = parse(), Tally()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        server = Server(Path(folder), environment=AT_ONCE)
        try:
            server.wait_until_ready()
            report = asyncio.run(load(server, options, tally))
            report["exit_status"], report["processes_left"] = server.stop()
            lines = server.logged_errors()
        except (RuntimeError, OSError) as error:
            print(f"soak: {type(error).__name__}: {error}; the server's log: ...{server.log.read_text()[-2000:]}")
            return 1
        finally:
            server.kill()
    report["lines_of_errors"] = len(lines)
    report["seed"] = options.seed
    print_report(report, tally)
    for line in lines[:10]:
        print(f"  ! {line[:500]}")
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    short = verdict(report)
    total = sum(report["done"].values())
    print(f"soak of {report['seconds']:.0f} s, {total:,} actions: {'; '.join(short) if short else 'PASSED'}")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
