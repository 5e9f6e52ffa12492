"""Runs of load generators against both servers: the models, data and command lines, and what a run says.

`test_perf_analyzer` compares the servers, as the real perf_analyzer sees them; `test_perf` compares it with ours.
"""

import csv
import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance import servers
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair
from tests.conformance.servers import Server

SECONDS = 30.0
REAL = (str(servers.ORACLE), "perf")
TRIES = 3
"""Runs of the real one. On a busy machine perf_analyzer hangs about once in 1,000 runs, with either server: everything
is answered, and one of its threads waits for others that have ended."""
BENCH = servers.ROOT / "bench" / "models"
MODELS = {
    **{name: BENCH / name for name in ("accumulate", "bls", "echo", "mixed", "pipeline")},
    **{name: servers.MODELS / name for name in ("batched_bytes", "decoupled", "parameters")},
}
FLAGS = ("--cache-config=local,size=1048576",)
COUNT = ("--request-count", "20")

_MIXED = {"INPUT0": [0.5] * 8, "INPUT1": list(range(8)), "INPUT2": ["a", "", "ü"], "INPUT3": [True, False] * 2 + [True]}
DATA: Mapping[str, object] = {
    "strings": {"data": [{"INPUT0": ["ab", "cdé"]}, {"INPUT0": ["", "x" * 1000]}]},
    "many": {"data": [{"INPUT0": {"content": [7, 8, 9], "shape": [3]}}, {"INPUT0": {"content": [1], "shape": [1]}}]},
    "mixed": {"data": [_MIXED], "validation_data": [{key.replace("IN", "OUT"): _MIXED[key] for key in _MIXED}]},
    "wrong": {
        "data": [_MIXED],
        "validation_data": [{key.replace("IN", "OUT"): _MIXED[key] for key in _MIXED} | {"OUTPUT0": [0.25] * 8}],
    },
    "sums": {
        "data": [[{"INPUT0": [1]}, {"INPUT0": [2]}, {"INPUT0": [3]}], [{"INPUT0": [10]}, {"INPUT0": [20]}]],
        "validation_data": [
            [{"OUTPUT0": [1]}, {"OUTPUT0": [3]}, {"OUTPUT0": [6]}],
            [{"OUTPUT0": [10]}, {"OUTPUT0": [30]}],
        ],
    },
}

SERVED = (
    "http -m echo --shape INPUT0:16 -b 3 --shared-memory system --concurrency-range 2",
    "grpc -m mixed -b 2 --shared-memory system --output-shared-memory-size 4096",
    "grpc -m echo --shape INPUT0:16 --shared-memory system --streaming",
    "http -m mixed --input-data {mixed} --input-tensor-format json --output-tensor-format json",
    "grpc -m mixed --input-data {mixed}",
    "http -m batched_bytes --input-data {strings}",
    "grpc -m batched_bytes --string-length 10 -b 4",
    "grpc -m decoupled --streaming --input-data {many} --concurrency-range 2",
    "grpc -m accumulate --streaming --concurrency-range 3 --sequence-length 4 --sequence-id-range 10:30",
    "http -m accumulate --sync --concurrency-range 2 --sequence-length 4",
    # Without a stream the real server may take an end and the start after it in either order (20 of 171 times).
    "http -m accumulate --sync --input-data {sums} --serial-sequences",
    "http -m pipeline --shape INPUT0:16",
    "grpc -m bls --shape INPUT0:16 --bls-composing-models echo",
    "grpc -m parameters --shape INPUT0:1 --request-parameter tokens:256:int --grpc-compression-algorithm gzip",
    "http -m echo --shape INPUT0:16 --async --request-rate-range 20 --request-distribution poisson",
    "http -m echo --shape INPUT0:16 --collect-metrics --verbose-csv --metrics-url {metrics} -H x-a:b",
    "grpc -m echo --shape INPUT0:16 --trace-level OFF --trace-rate 7 --trace-count 9 --log-frequency 3",
)
REFUSED = (
    "http -m echo --shape INPUT0:100 --shared-memory system --output-shared-memory-size 40",
    "grpc -m mixed --input-data {wrong}",
    "http -m decoupled --input-data {many}",
    "grpc -m bls --shape INPUT0:16 --bls-composing-models nosuch",
    "grpc -m echo --shape INPUT0:16 -b 65",
    "http -m nosuch",
)

_BY_CHANCE = (
    "Server average accounted time was larger",
    "    Avg send request rate",
    "    [WARNING] Perf Analyzer was not able to keep up",
    "[WARNING] Perf Analyzer is not able to keep up",
    "WARNING: Pass contained only one request",
    "Warning: Request latency is not stabilizing",
)
OTHER_DATA = "Thread [N] had error: Output doesn't match expected output"
"""Sequences that are ended early, at the end of a run, may be answered with other data than are wanted."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A run: its status, its lines without numbers on both streams, and its table."""

    status: int
    said: tuple[str, ...]
    complained: tuple[str, ...]
    table: tuple[Mapping[str, str], ...]

    @property
    def faults(self) -> list[str]:
        """The complaints, without those that are by chance."""
        return [line for line in self.complained if line != OTHER_DATA]


@contextmanager
def serving(folder: Path, models: Mapping[str, Path]) -> Iterator[Pair]:
    """Both servers with these models."""
    for name, model in models.items():
        servers.copy_models(folder / "models" / name, model)
    with pair_of(folder / "models", folder, *FLAGS) as started:
        yield started


def data_files(folder: Path) -> Mapping[str, Path]:
    files = {name: folder / f"{name}.json" for name in DATA}
    for name, file in files.items():
        file.write_text(json.dumps(DATA[name]))
    return files


def run(
    tool: Sequence[str], server: Server, case: str, data: Mapping[str, Path], table: Path, more: Sequence[str] = COUNT
) -> Ran:
    protocol, *words = case.format(metrics=f"127.0.0.1:{server.metrics}/metrics", **data).split()
    port = server.http if protocol == "http" else server.grpc
    command = [*tool, "-i", protocol, "-u", f"127.0.0.1:{port}", "-f", str(table), *words, *more]
    for _ in range(TRIES if tool is REAL else 1):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            break
        except subprocess.TimeoutExpired:
            assert not _pending(server)
    else:
        pytest.fail(f"{case} hangs")
    rows: Sequence[Mapping[str, str]] = ()
    if table.exists():
        with table.open(newline="") as lines:
            rows = tuple(csv.DictReader(lines))
    return Ran(done.returncode, tuple(_words(done.stdout)), tuple(_words(done.stderr)), tuple(rows))


def _pending(server: Server) -> list[str]:
    """The models with unanswered requests."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics", timeout=SECONDS) as answer:
        told = str(answer.read(), "utf-8")
    return [
        model for model, number in re.findall(r"nv_inference_pending_request_count{(.*)} (\d+)", told) if number != "0"
    ]


def _words(text: str) -> Iterator[str]:
    for line in text.splitlines():
        words = re.sub(r"\d+(\.\d+)?(e\+\d+)?", "N", line)
        # Triton 2.51 writes "seconds" here; later versions "second" (X21).
        words = words.replace("inference requests per seconds", "inference requests per second")
        if words.strip() and not words.startswith(_BY_CHANCE):
            yield words
