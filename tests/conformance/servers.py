"""The two servers that are compared: the real one (`tools/oracle/oracle`) and ours, each as a process group.

Both serve the same copy of the model repository, so that even tracebacks name the same files. HALIMEDE_CONFORMANCE_OURS
can be another command for ours, with {repo} {http} {grpc} {metrics} in it. One thread; every wait is bounded.
"""

import contextlib
import http.client
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
ORACLE = ROOT / "tools" / "oracle" / "oracle"
MODELS = Path(__file__).resolve().parent / "models"
STARTUP = 120.0  # seconds until a server must live
STOP = 10.0  # seconds until it is killed
CRASHES = 2
"""How often the real server is started again if a signal ended it before it served. It sometimes crashes when a Python
model fails to load, and some repositories have such a model."""

_REAL = (str(ORACLE), "serve", "{repo}", "{http}", "{grpc}", "{metrics}", "--exit-on-error=false")
_OURS = (
    sys.executable,
    "-m",
    "halimede",
    "serve",
    "--model-repository={repo}",
    "--http-address=127.0.0.1",
    "--grpc-address=127.0.0.1",
    "--http-port={http}",
    "--grpc-port={grpc}",
    "--metrics-port={metrics}",
    "--exit-on-error=false",
    "--allow-client-shm=true",
)


class StartError(Exception):
    """A server did not come up. The message ends with the end of its log."""


def real_command() -> Sequence[str]:
    return _REAL


def our_command() -> Sequence[str]:
    """The command of our server, or the one in the environment."""
    other = os.environ.get("HALIMEDE_CONFORMANCE_OURS")
    return shlex.split(other) if other else _OURS


def install_oracle() -> str | None:
    """Installs the real server once per machine. Returns None, or why that failed."""
    try:
        done = subprocess.run([str(ORACLE), "install"], capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def copy_models(to: Path, models: Path = MODELS) -> Path:
    """A copy of the repository, without files that a run leaves there."""
    return shutil.copytree(models, to, ignore=shutil.ignore_patterns("__pycache__"))


class Server:
    """A server on free ports of 127.0.0.1. As a context manager it leaves nothing running."""

    def __init__(
        self, name: str, command: Sequence[str], repo: Path, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self._command, self._repo, self.log = name, command, repo, log
        self._environment = {**os.environ, **(environment or {})}
        self.http, self.grpc, self.metrics = free_ports(3)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def has_ended(self) -> bool:
        """Whether the server has ended, or is ending: a truncated answer arrives before the process is gone."""
        limit = time.monotonic() + STOP
        while self.alive and not self._lives() and time.monotonic() < limit:
            self._ends_within(0.05)
        return not self.alive

    def start(self) -> None:
        """Starts the process; `wait` says when it serves."""
        values = {"repo": str(self._repo), "http": self.http, "grpc": self.grpc, "metrics": self.metrics}
        words = [re.sub(r"\{(\w+)\}", lambda m: str(values[m[1]]), word) for word in self._command]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                words, stdout=log, stderr=log, cwd=ROOT, env=self._environment, start_new_session=True
            )

    def wait(self) -> None:
        """Waits until the server is live, and its metrics port open, which the real server opens some milliseconds
        later. Raises StartError."""
        limit, crashes = time.monotonic() + STARTUP, 0
        while not (self._lives() and self._offers_metrics()):
            ended = self._ends_within(0.05)
            if ended and self._crashed() and crashes < CRASHES:
                crashes += 1
                self.start()
            elif ended or time.monotonic() > limit:
                tail = self.log.read_text(errors="replace")[-1500:]
                raise StartError(f"{self.name} did not come up: ...{tail}")

    def revive(self) -> None:
        """Starts the server again if it has ended."""
        if not self.alive:
            self.start()
            self.wait()

    def stop(self, seconds: float = STOP) -> None:
        """Asks the server to end, and kills its group after a while."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        self._ends_within(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _crashed(self) -> bool:
        """Whether this is the real server, and a signal ended it."""
        assert self._process is not None
        return self._command[0] == str(ORACLE) and (self._process.returncode or 0) < 0

    def _ends_within(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _lives(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/v2/health/live", timeout=2) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            return error.code == 403  # it answers, though not everybody may ask
        except (OSError, http.client.HTTPException):
            return False

    def _offers_metrics(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.metrics), 2).close()
        except OSError:
            return False
        return True
