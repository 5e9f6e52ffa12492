"""A server for the time of the analysis, with model control by requests (X32). Blocks; one thread."""

import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from halimede.errors import Invalid
from halimede.http_client import fetch
from halimede.perf.launch import Launched


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


class LocalServer(Launched):
    """A started server with these ports."""

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
        super().__init__(command, environment, log)

    def wait(self) -> None:
        """Until it is live. Raises Unavailable with the end of its log."""
        self.wait_until(partial(fetch, f"http://{self.ports.http}", "/v2/health/live", 2.0))


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
