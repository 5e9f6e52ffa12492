"""`halimede health`: what its exit status says about a server."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from halimede.cli.main import main
from tests.ports import free_ports


class _Loading(BaseHTTPRequestHandler):
    """A server that is live, but not ready."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v2/health/live" else 400)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def loading() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Loading) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_live_server_may_not_be_ready(loading: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", loading, "--live"]) == 0
    assert capsys.readouterr().out == "live\n"
    assert main(["health", f"http://{loading}/"]) == 1
    assert capsys.readouterr().err.startswith(f"error: not ready: http://{loading} says: 400")


def test_server_that_is_away_is_not_live(capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    assert main(["health", f"127.0.0.1:{port}", "--live"]) == 1
    assert "not live: http://127.0.0.1" in capsys.readouterr().err
