"""The repository of small models that `tests/compat` serves, and `halimede serve` as a process on free ports.

One thread; every wait is bounded. A process that a test leaves behind is stopped with its whole group.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from tests.ports import free_ports

DATATYPES = (
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
    "BF16",
)
MAX_BATCH_SIZE = 64
ANSWER_SECONDS = 60.0
START_SECONDS = 180.0
"""Longer than others, because several processes may import a large runtime at once: DALI took one minute on two busy
cores."""
STOP_SECONDS = 60.0
HELD_SECONDS = 120.0
"""The longest time for which a held model waits for its release: longer than any test waits for an answer."""

_HELD = f"""import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"])

    def execute(self, requests):
        (self.folder / "begun").touch()
        limit = time.monotonic() + {HELD_SECONDS}
        while not (self.folder / "go").exists() and time.monotonic() < limit:
            time.sleep(0.01)
        return [answer(request) for request in requests]


def answer(request):
    tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())])
"""


def write_model(
    repository: Path, name: str, datatype: str, *, backend: str = "identity", max_batch_size: int = 0, more: str = ""
) -> Path:
    """Writes a model with INPUT0 and OUTPUT0 of one variable dimension. Returns the folder of its version 1."""
    kind = "STRING" if datatype == "BYTES" else datatype
    tensor = f"data_type: TYPE_{kind} dims: [ -1 ]"
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(
        f'name: "{name}"\n'
        f'backend: "{backend}"\n'
        f"max_batch_size: {max_batch_size}\n"
        f'input [ {{ name: "INPUT0" {tensor} }} ]\n'
        f'output [ {{ name: "OUTPUT0" {tensor} }} ]\n'
        "instance_group [ { kind: KIND_CPU } ]\n" + more
    )
    return version


def write_held_model(repository: Path, name: str = "held") -> Path:
    """Writes a Python model (INT32) that makes a file `begun` in its folder when it executes, and continues when there
    is a file `go`. Returns that folder."""
    version = write_model(repository, name, "INT32", backend="python")
    (version / "model.py").write_text(_HELD)
    return version.parent


def write_repository(repository: Path) -> Path:
    """Writes `identity_<datatype>` (batches up to 64, dynamic batching) and `flat_<datatype>` (no batching) for every
    datatype in lower case."""
    repository.mkdir(parents=True, exist_ok=True)
    for datatype in DATATYPES:
        word = datatype.lower()
        write_model(
            repository, f"identity_{word}", datatype, max_batch_size=MAX_BATCH_SIZE, more="dynamic_batching { }\n"
        )
        write_model(repository, f"flat_{word}", datatype)
    return repository


def servers_of(repository: Path) -> list[int]:
    """The processes that serve a repository."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if f"--model-repository={repository}".encode() in each.read_bytes().split(b"\0"):
                found.append(int(each.parent.name))
    return found


class ServeError(AssertionError):
    """The server did not do what it should. The message ends with the end of its log."""


class Serving:
    """A `halimede serve` process on free ports of 127.0.0.1.

    `http_url` and `grpc_url` are `host:port`. As a context manager it leaves nothing running; a test that needs the
    exit status stops it itself. `ports` are those of HTTP, gRPC and metrics, if they must not be any free ones.
    """

    def __init__(
        self,
        repository: Path,
        log: Path,
        *flags: str,
        environment: dict[str, str] | None = None,
        ports: tuple[int, int, int] | None = None,
    ) -> None:
        self.http_port, self.grpc_port, self.metrics_port = ports or free_ports(3)
        self._has_metrics = not any(flag.startswith(("--allow-metrics", "--metrics-port")) for flag in flags)
        self.log = log
        self.mark = f"HALIMEDE_TEST_RUN={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                [*self.command(repository), *flags],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**os.environ, **(environment or {}), name: value},
                start_new_session=True,
            )

    def command(self, repository: Path) -> Sequence[str]:
        return (
            *(sys.executable, "-m", "halimede", "serve"),
            f"--model-repository={repository}",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            # Few tests close their connections before they stop the server.
            "--http-drain-secs=0",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def http_url(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until_live(self) -> Self:
        """Waits until the HTTP port answers: by then all models are loaded and the gRPC port is open (C61). Also waits
        for the metrics port, which opens last, unless flags configure it."""
        self.until(self._answers, "did not come up", START_SECONDS)
        if self._has_metrics:
            self.until(self._is_scraped, "opened no port for metrics", START_SECONDS)
        return self

    def until_logged(self, text: str, seconds: float = STOP_SECONDS) -> None:
        """Waits until the log has the text. A thread writes the log, so a line may come after the event."""
        self.until(lambda: text in self.log_text(), f"did not say '{text}'", seconds)

    def until(self, holds: Callable[[], bool], what: str, seconds: float = STOP_SECONDS) -> None:
        """Waits, while the server runs, until something holds. Raises ServeError if it does not within that time."""
        limit = time.monotonic() + seconds
        while not holds():
            if self._ended_within(0.02) or time.monotonic() > limit:
                raise ServeError(f"the server {what} (exit status {self.process.poll()}): ...{self.log_text()[-3000:]}")

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """The exit status of a server that ends. Raises ServeError if it does not end, or leaves a process behind."""
        if not self._ended_within(seconds):
            raise ServeError(f"the server did not end in {seconds} s: ...{self.log_text()[-3000:]}")
        limit = time.monotonic() + STOP_SECONDS
        while left := list(processes_with(self.mark)):
            if time.monotonic() > limit:
                raise ServeError(f"the server left processes behind: {left}")
        return self.process.returncode

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Asks the server to end, and returns its exit status."""
        self.process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """Ends all processes that still run."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)

    def _ended_within(self, seconds: float) -> bool:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _answers(self) -> bool:
        return self.status("/v2/health/live") == 200

    def _is_scraped(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.metrics_port), 5).close()
            return True
        return False

    def status(self, path: str) -> int | None:
        """The status of a GET, or None if nothing answers."""
        try:
            with urllib.request.urlopen(f"http://{self.http_url}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except (OSError, http.client.HTTPException):
            return None

    def ask(self, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Status and JSON of a GET, or of a POST if there is a body. JSON is None if the answer has no text."""
        try:
            request = urllib.request.Request(f"http://{self.http_url}{path}", body)
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                status, text = int(answer.status), answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        return status, json.loads(text) if text else None

    def metrics(self) -> str:
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            return str(answer.read().decode())

    def pending(self, model: str) -> int:
        """How many requests for a model wait, according to the metrics."""
        for line in self.metrics().splitlines():
            if line.startswith("nv_inference_pending_request_count{") and f'model="{model}"' in line:
                return int(line.rsplit(" ", 1)[1])
        return -1


def processes_with(mark: str) -> Iterator[int]:
    """The running processes that inherited `mark` in their environment, if the system shows environments."""
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in environment.read_bytes():
                yield int(environment.parent.name)
