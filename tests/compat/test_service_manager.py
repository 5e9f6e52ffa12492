"""A server that systemd starts says when it is ready, and when it ends."""

import socket
from pathlib import Path

from tests.compat.serving import Serving, write_model

SECONDS = 60.0


def test_server_tells_its_manager_when_it_is_ready_and_when_it_ends(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "same", "INT32")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "socket"))
        manager.settimeout(SECONDS)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "socket")}
        with Serving(tmp_path / "models", tmp_path / "log", environment=environment) as serving:
            assert manager.recv(100) == b"READY=1"
            assert serving.status("/v2/health/ready") == 200
            assert serving.stop() == 0
            assert manager.recv(100) == b"STOPPING=1"
