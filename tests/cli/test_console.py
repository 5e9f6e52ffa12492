"""`halimede console`: its command line, and a console beside a server that is away."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

from halimede.cli.arguments import Console, read
from halimede.errors import Invalid
from tests.ports import free_ports

SECONDS = 60.0


def test_command_line_is_read() -> None:
    order = read("console", ["gpu:8000", "--console-port=0", "--console-host=Box", "--metrics-url=gpu:9"])
    assert order == Console("gpu:8000", "gpu:9", 0, "127.0.0.1", ("box",))
    assert read("console", []) == Console("localhost:8000", "", 8003, "127.0.0.1", ())


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_port_that_does_not_exist_is_refused(port: str) -> None:
    with pytest.raises(Invalid, match="port"):
        read("console", [f"--console-port={port}"])


def test_server_that_is_away_is_said_on_the_page_and_signal_ends_the_console() -> None:
    away, port = free_ports(2)
    command = [sys.executable, "-m", "halimede", "console", f"127.0.0.1:{away}", f"--console-port={port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            link = process.stdout.readline().split()[-1]
            assert link.startswith(f"http://localhost:{port}/#token=")
            with urllib.request.urlopen(f"http://localhost:{port}/api/events", timeout=SECONDS) as stream:
                events = (json.loads(line[6:]) for line in stream if line.startswith(b"data: "))
                assert next(events)["hello"]["features"] == []
                assert "cannot be reached" in next(events)["down"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()


def test_port_that_is_taken_is_an_error() -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "halimede", "console", "127.0.0.1:1", f"--console-port={port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            first.stdout.readline()
            second = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
            assert second.returncode == 1
            assert str(port) in second.stderr
        finally:
            first.kill()
