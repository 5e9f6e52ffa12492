"""`halimede graph`: from a command line to a drawing or one line of what is wrong, with a small server of HTTP."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from halimede.cli.main import main
from tests.devtools.test_graph_pipeline import EXAMPLES, NESTED, TEXT_EMBEDDING

STATS = {
    "success": {"count": 2, "ns": 4_000_000},
    "queue": {"count": 2, "ns": 200_000},
    "compute_infer": {"count": 2, "ns": 3_000_000},
}


class Answers(BaseHTTPRequestHandler):
    """What a server says of the models of NESTED, and of one whose answers make no sense."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        parts = self.path.split("/")
        name, what = parts[3], parts[-1]
        if name == "odd":
            return self._answer(200, b"<html>")
        if name == "senseless":
            return self._answer(200, b'{"input": [{"nom": 1}], "max_batch_size": []}')
        if name == "loud":
            return self._answer(200, json.dumps({"input": [{"name": "\x1b[31mred\nX", "dims": [1]}]}).encode())
        if name not in NESTED:
            return self._answer(400, b'{"error":"Request for unknown model: %s"}' % name.encode())
        if what == "config":
            return self._answer(200, json.dumps(NESTED[name]).encode())
        told = {"model_stats": [{"name": name, "version": "1", "inference_stats": STATS}]}
        return self._answer(200, json.dumps(told).encode())

    def do_POST(self) -> None:
        self._answer(200, json.dumps([{"name": name} for name in NESTED]).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join(10)
    server.server_close()


@pytest.fixture
def url(server: ThreadingHTTPServer) -> str:
    return f"127.0.0.1:{server.server_address[1]}"


def test_model_of_a_repository_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "text_embedding", f"--model-repository={EXAMPLES}"]) == 0
    assert capsys.readouterr().out == f"{TEXT_EMBEDDING}\n"


def test_model_of_a_running_server_is_shown_with_times(
    server: ThreadingHTTPServer, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["graph", "outer", "--url", url]) == 0
    out = capsys.readouterr().out
    assert out.startswith("outer (ensemble): 2 requests, 2.00 ms each\n")
    assert out.count("queue 100 us, compute 1.50 ms") == 3
    asked: list[str] = server.asked  # type: ignore[attr-defined]
    assert "/v2/models/last/versions/3/config" in asked
    assert "/v2/models/last/versions/3/stats" in asked
    assert asked.count("/v2/models/inner/config") == 1


@pytest.mark.parametrize(("form", "start"), [("svg", "<svg "), ("mermaid", "---\ntitle: "), ("json", '{\n "name": ')])
def test_other_formats_are_printed(url: str, form: str, start: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "outer", f"--url=http://{url}/", "--format", form]) == 0
    assert capsys.readouterr().out.startswith(start)


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "halimede.devtools.graph_svg", raising=False)
    monkeypatch.setitem(sys.modules, "grandalf.graphs", None)
    assert main(["graph", "shapes", f"--model-repository={EXAMPLES}", "--format=svg"]) == 1
    assert capsys.readouterr() == ("", "error: SVG needs a library: pip install 'halimede[graph]'\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["outre", "--url", "URL"], "says: Request for unknown model: outre. Did you mean 'outer'?"),
        (["odd", "--url", "URL"], "is no inference server: /v2/models/odd/config is answered without JSON"),
        (["senseless", "--url", "URL"], "is no inference server: its configurations make no sense"),
        (["outer", "--url", "127.0.0.1:1"], "http://127.0.0.1:1 cannot be reached: "),
        (["outer", "--url", "127.0.0.1:port"], "is not answered as HTTP has it: "),
        (["outer", "--url", "ftp://127.0.0.1:1"], "cannot be reached: "),
        (["nope", f"--model-repository={EXAMPLES}"], f"no model 'nope' in {EXAMPLES}"),
        (["nope", "--model-repository=/nowhere"], "repository path is not a valid directory"),
        ([], "the following arguments are required: MODEL"),
    ],
)
def test_mistake_is_one_line(url: str, words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", *(url if word == "URL" else word for word in words)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert reason in said.err
    assert "Traceback" not in said.err


def test_names_cannot_control_the_terminal(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "loud", "--url", url]) == 0
    out = capsys.readouterr().out
    assert "?[31mred?X [1]" in out
    assert "\x1b" not in out
