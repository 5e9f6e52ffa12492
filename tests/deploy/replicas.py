"""Replicas of one server, and load balancers in front of them with the configurations of `deploy/replicas/`.

The configurations are used as they are, except for addresses, ports and the paths of sockets.
"""

import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from tests.compat.serving import STOP_SECONDS, Serving, write_model
from tests.ports import free_ports

CONFIGURATIONS = Path(__file__).resolve().parents[2] / "deploy" / "replicas"
REPLICAS = 3
START_SECONDS = 20.0
DELAY_SECONDS = 4.0
"""The `--shutdown-delay-secs` of the replicas: longer than a sequence of the load and a health check."""
GOOD = "good"
SUMS = "sums"
_SUMS_SOURCE = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = {tensor.name(): tensor.as_numpy().item() for tensor in request.inputs()}
        total = given["INPUT0"] + (0 if given["START"] else self.sums[given["CORRID"]])
        self.sums[given["CORRID"]] = total
        if given["END"]:
            del self.sums[given["CORRID"]]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([[total]], np.int32))])
"""
_SUMS_MORE = """sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 1024 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
"""


def write_models(repository: Path) -> Path:
    """Writes `good`, which answers its input, and `sums`, which answers the sum of the values of a sequence so far: it
    is right only if all requests of a sequence reach one replica in their order."""
    write_model(repository, GOOD, "INT32", max_batch_size=64, more="dynamic_batching { }\n")
    version = write_model(repository, SUMS, "INT32", backend="python", max_batch_size=64, more=_SUMS_MORE)
    (version / "model.py").write_text(_SUMS_SOURCE)
    return repository


class Replicas:
    """Three servers with the same models. A replica that is started again has the ports that it had. The methods that
    wait block their thread."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._repository = write_models(folder / "models")
        self._folder = folder
        self._flags = (f"--shutdown-delay-secs={DELAY_SECONDS}", "--http-drain-secs=5", *flags)
        ports = free_ports(3 * REPLICAS)
        self.ports = [(ports[3 * n], ports[3 * n + 1], ports[3 * n + 2]) for n in range(REPLICAS)]
        self.servers: dict[int, Serving] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers.values():
            server.kill()

    def start(self, *numbers: int) -> None:
        """Starts these replicas, and waits until each of them is ready."""
        for n in numbers:
            log = self._folder / f"replica-{n}.log"
            self.servers[n] = Serving(self._repository, log, *self._flags, ports=self.ports[n])
        for n in numbers:
            self.servers[n].wait_until_live()

    def terminate(self, n: int) -> None:
        """Sends SIGTERM, and waits for the end, which must be clean."""
        assert self.servers.pop(n).stop() == 0

    def kill(self, n: int) -> None:
        """Sends SIGKILL."""
        self.servers.pop(n).kill()


class Balancer:
    """A load balancer as a process: HTTP at `http_port`, gRPC at `grpc_port`."""

    program: str
    template: str

    def __init__(self, folder: Path, replicas: Replicas) -> None:
        program = shutil.which(self.program, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
        if program is None:
            pytest.skip(f"{self.program} is not installed; make test-deploy installs it as root")
        self.http_port, self.grpc_port = free_ports(2)
        self.file = folder / self.template
        self.log = folder / f"{self.program}.log"
        self._text = rendered(self.template, self._places(folder, replicas))
        self.file.write_text(self._text)
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                [program, *self._arguments()], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
            )
        self.until(lambda: _answers(self.http_port) and _answers(self.grpc_port), "did not start")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        finally:
            self.process.kill()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        limit = time.monotonic() + START_SECONDS
        while not holds():
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)
            ended = self.process.returncode is not None or time.monotonic() > limit
            assert not ended, f"{self.program} {what}: {self.log.read_text(errors='replace')[-3000:]}"

    def before_end(self, n: int) -> None:
        """What the operator does before replica `n` gets its signal."""

    def after_start(self, n: int) -> None:
        """What the operator does, or waits for, after replica `n` is ready again."""

    def _arguments(self) -> tuple[str, ...]:
        raise NotImplementedError

    def _places(self, folder: Path, replicas: Replicas) -> dict[str, str]:
        return {
            f"10.0.0.{n + 1}:{known}": f"127.0.0.1:{port}"
            for n, ports in enumerate(replicas.ports)
            for known, port in zip((8000, 8001), ports, strict=False)
        }


class Haproxy(Balancer):
    program = "haproxy"
    template = "haproxy.cfg"

    def after_start(self, n: int) -> None:
        """Waits until the health checks have found it."""
        self.until(lambda: self.state(n).startswith("UP"), f"does not see replica {n + 1}")

    def state(self, n: int) -> str:
        """The state of a replica, by the admin socket."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(START_SECONDS)
            admin.connect(str(self.file.parent / "haproxy.sock"))
            admin.sendall(b"show stat\n")
            text = b"".join(iter(lambda: admin.recv(65536), b"")).decode()
        rows = [line.split(",") for line in text.splitlines() if line]
        status = rows[0].index("status")
        return next(row[status] for row in rows if row[:2] == ["http", f"replica-{n + 1}"])

    def _arguments(self) -> tuple[str, ...]:
        return ("-db", "-f", str(self.file))

    def _places(self, folder: Path, replicas: Replicas) -> dict[str, str]:
        return super()._places(folder, replicas) | {
            "bind :8000": f"bind 127.0.0.1:{self.http_port}",
            "bind :8001": f"bind 127.0.0.1:{self.grpc_port}",
            "stats socket /run/": f"stats socket {folder}/",
        }


class Nginx(Balancer):
    program = "nginx"
    template = "nginx.conf"

    def before_end(self, n: int) -> None:
        """Marks the replica as `down`, and reloads."""
        drained = self._text
        for port in self._ports[n]:
            drained = drained.replace(f"127.0.0.1:{port} max_fails=1", f"127.0.0.1:{port} down max_fails=1")
        assert drained.count(" down ") == 2
        self._reload(drained)

    def after_start(self, n: int) -> None:
        self._reload(self._text)

    def _reload(self, text: str) -> None:
        """Reloads, and waits until the workers of before have begun to end."""
        self.file.write_text(text)
        before = _children(self.process.pid)
        self.process.send_signal(signal.SIGHUP)
        self.until(lambda: bool(_children(self.process.pid) - before), "did not reload")

    def _arguments(self) -> tuple[str, ...]:
        return ("-c", str(self.file), "-g", "daemon off;")

    def _places(self, folder: Path, replicas: Replicas) -> dict[str, str]:
        self._ports = [ports[:2] for ports in replicas.ports]
        return super()._places(folder, replicas) | {
            "listen 8000": f"listen 127.0.0.1:{self.http_port}",
            "listen 8001": f"listen 127.0.0.1:{self.grpc_port}",
            "pid /run/": f"pid {folder}/",
        }


def rendered(template: str, places: Mapping[str, str]) -> str:
    """A file of `deploy/replicas/` with other texts in place of some. Each of them must be there."""
    text = (CONFIGURATIONS / template).read_text()
    for known, other in places.items():
        text, count = re.subn(re.escape(known) + r"\b" * known[-1].isalnum(), other, text)
        assert count, f"{template} has no '{known}'"
    return text


def _answers(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 5).close()
        return True
    return False


def _children(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
