"""A server for the time of the analysis, with model control by requests (X32). Blocks; one thread."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from halimede.errors import Invalid, Unavailable
from halimede.http_client import fetch

START_SECONDS = 120.0
STOP_SECONDS = 30.0
_STEP = 0.05
_LAST_LINES = 5
"""Lines of the log in the message of a failed start."""


class Ports:
    """The addresses of a server: `host:port` of each protocol."""

    def __init__(self, http: str, grpc: str, metrics: str) -> None:
        self.http, self.grpc, self.metrics = http, grpc, metrics


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def is_used(address: str) -> bool:
    """Whether something listens at `host:port`."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host or "localhost", int(port))) == 0


class LocalServer:
    """A started server. `pid` is its process."""

    def __init__(
        self, path: str, repository: Path, ports: Ports, flags: Sequence[str], environment: Mapping[str, str], log: str
    ) -> None:
        """Raises Invalid if the program or the repository is not there."""
        self.ports = ports
        command = [*_program(path), f"--model-repository={repository}", "--model-control-mode=explicit"]
        for name, address in (("http", ports.http), ("grpc", ports.grpc), ("metrics", ports.metrics)):
            command.append(f"--{name}-port={address.rpartition(':')[2]}")
        command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", *flags]
        if not repository.is_dir():
            raise Invalid(f"the model repository '{repository}' is no folder")
        self._sink = Path(log).open("w+b") if log else tempfile.TemporaryFile()  # noqa: SIM115 (`stop` closes it)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._sink,
                stderr=self._sink,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for this program
            )
        except OSError as error:
            self._sink.close()
            raise Invalid(f"the server '{path}' cannot be started: {error.strerror}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> None:
        """Until it is live. Raises Unavailable with the end of its log."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if not self.is_running:
                raise Unavailable(f"the server ended at its start: {self.last_words()}")
            try:
                fetch(f"http://{self.ports.http}", "/v2/health/live", 2.0)
            except Unavailable:
                time.sleep(_STEP)
            else:
                return
        raise Unavailable(f"the server is not live after {START_SECONDS:g} seconds: {self.last_words()}")

    def last_words(self) -> str:
        self._sink.flush()
        self._sink.seek(0)
        lines = self._sink.read().decode(errors="replace").strip().splitlines()
        return " | ".join(lines[-_LAST_LINES:]) or "it said nothing"

    def stop(self) -> None:
        """Ends it, and what it started."""
        if self.is_running:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):  # then it is killed
                self._process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):  # nothing is left of its group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._sink.close()

    def kill(self) -> None:
        """Ends it at once."""
        os.killpg(self._process.pid, signal.SIGKILL)


def _program(path: str) -> list[str]:
    """The words that start a server: this program's own, unless another one was named."""
    if not path:
        return [sys.executable, "-m", "halimede", "serve"]
    if shutil.which(path) is None:
        raise Invalid(f"the server '{path}' is not there")
    return [path]


def flags_of(values: Mapping[str, Any] | None) -> list[str]:
    """Flags of the server: `{log_verbose: True}` -> `--log-verbose=true` (X46)."""
    found = []
    for name, value in (values or {}).items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        found.append(f"--{str(name).replace('_', '-')}={text}")
    return found
