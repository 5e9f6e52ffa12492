"""What a service manager hears."""

import socket
from pathlib import Path

import pytest

from halimede.platform.service_manager import VARIABLE, notify


def test_state_reaches_the_socket_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address, name in ((str(tmp_path / "socket"),) * 2, (f"\0{tmp_path}", f"@{tmp_path}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(address)
            manager.settimeout(10)
            monkeypatch.setenv(VARIABLE, name)
            notify("READY=1")
            assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "relative", "/nonexistent/socket"])
def test_manager_that_does_not_listen_is_no_error(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv(VARIABLE, address)
    notify("READY=1")
