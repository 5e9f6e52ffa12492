"""`halimede perf` without a port: with a server of its own, and with one at a Unix socket."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.compat.serving import Serving, servers_of, write_model

LIMIT = 60.0
SHAPE = ("--shape", "INPUT0:16")
SLEEPING = """import time


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(10)
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path / "models", "floor", "FP32", max_batch_size=8)
    return tmp_path / "models"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "halimede", "perf", *SHAPE, *words]


def alone(repository: Path, model: str = "floor") -> tuple[str, ...]:
    return ("-m", model, "--service-kind", "triton_c_api", "--model-repository", str(repository))


def perf(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.mark.rows("X2")
@pytest.mark.parametrize("more", [(), ("--async", "--streaming"), ("-b", "4", "--shared-memory", "system")])
def test_own_server_is_measured_with_its_statistics_and_ends(repository: Path, more: tuple[str, ...]) -> None:
    done = perf(*alone(repository), "--request-count", "20", "--concurrency-range", "4", *more)
    assert done.returncode == 0, done.stderr
    assert "  Service Kind: TRITON_C_API\n" in done.stdout
    assert "    Request count: 20\n" in done.stdout
    assert "  Server: \n" in done.stdout
    assert "    Successful request count: 20\n" in done.stdout
    assert not servers_of(repository)


def test_model_that_cannot_be_loaded_is_one_line(repository: Path, tmp_path: Path) -> None:
    done = perf(*alone(repository, "none"))
    assert done.returncode == 99
    why = "failed to load 'none', failed to poll from model repository"
    assert done.stderr.strip() == f"error: failed to load the model: {why}"
    done = perf(*alone(tmp_path / "other"))
    why = f"the model repository '{tmp_path}/other' is no folder"
    assert done.stderr.strip() == f"error: failed to start the server: {why}"


def test_second_interrupt_ends_the_server_too(repository: Path) -> None:
    version = write_model(repository, "sleeping", "FP32", backend="python")
    (version / "model.py").write_text(SLEEPING)
    running = subprocess.Popen(command(*alone(repository, "sleeping")), stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    for awaited in ("Request concurrency: 1", "Waiting for in-flight"):
        for line in running.stdout:
            if line.startswith(awaited):
                break
        os.kill(running.pid, signal.SIGINT)
    running.communicate(timeout=LIMIT)
    assert running.returncode == 0
    until = time.monotonic() + LIMIT
    while servers_of(repository):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_server_does_not_outlive_the_run(repository: Path, number: int, status: int) -> None:
    running = subprocess.Popen(command(*alone(repository), "-p", "60000"), stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("Request concurrency: 1"):
            break
    assert servers_of(repository)
    os.kill(running.pid, number)
    running.communicate(timeout=LIMIT)
    assert running.returncode == status
    until = time.monotonic() + LIMIT
    while servers_of(repository):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_server_at_a_unix_socket_is_measured(repository: Path, tmp_path: Path, protocol: str) -> None:
    path = tmp_path / protocol
    with Serving(repository, tmp_path / "log", f"--{protocol}-address=unix:{path}") as serving:
        until = time.monotonic() + LIMIT
        while not path.exists():
            assert serving.process.poll() is None, serving.log_text()
            assert time.monotonic() < until
            time.sleep(0.02)
        words = ("-m", "floor", "-i", protocol, "-u", f"unix:{path}", "--concurrency-range", "8")
        done = perf(*words, "--request-count", "50")
    assert done.returncode == 0, done.stderr
    assert "    Successful request count: 50\n" in done.stdout
    done = perf(*words)
    assert done.returncode == 99
    assert "failed to connect to localhost: " in done.stderr
