"""`halimede graph`: from a command line to a drawing or one line of what is wrong, with a small server of HTTP."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from halimede.cli.main import main
from halimede.errors import Invalid
from halimede.options import Graph, HelpRequested, parse_graph
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


def test_repository_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "text_embedding", f"--model-repository={EXAMPLES}"]) == 0
    assert capsys.readouterr().out == f"{TEXT_EMBEDDING}\n"


def test_running_server_is_drawn_with_its_times(
    server: ThreadingHTTPServer, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["graph", "outer", "--url", url, "--ascii"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("outer (ensemble): 2 requests, 2.00 ms each\n")
    assert out.count("queue 100 us / compute 1.50 ms") == 3
    asked: list[str] = server.asked  # type: ignore[attr-defined]
    assert "/v2/models/last/versions/3/config" in asked
    assert "/v2/models/last/versions/3/stats" in asked
    assert asked.count("/v2/models/inner/config") == 1


def test_svg_is_written_and_nothing_printed(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "outer.svg"
    assert main(["graph", "outer", f"--url=http://{url}/", "--svg", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert path.read_text().startswith("<svg ")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["outre", "--url", "URL"], "says: Request for unknown model: outre\nDid you mean 'outer'?"),
        (["odd", "--url", "URL"], "is no inference server: /v2/models/odd/config is answered without JSON"),
        (["senseless", "--url", "URL"], "is no inference server: its configurations make no sense"),
        (["outer", "--url", "127.0.0.1:1"], "http://127.0.0.1:1 cannot be reached: "),
        (["outer", "--url", "127.0.0.1:port"], "is not answered as HTTP has it: "),
        (["outer", "--url", "ftp://127.0.0.1:1"], "cannot be reached: "),
        (["nope", f"--model-repository={EXAMPLES}"], f"no model 'nope' in {EXAMPLES}"),
        (["nope", "--model-repository=/nowhere"], "repository path is not a valid directory"),
        (["shapes", f"--model-repository={EXAMPLES}", "--svg", "/nowhere/x.svg"], "/nowhere/x.svg: No such file"),
        ([], "the name of a model is missing"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    url: str, words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["graph", *(url if word == "URL" else word for word in words)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert reason in said.err
    assert "Traceback" not in said.err


def test_names_say_nothing_to_the_terminal(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "loud", "--url", url]) == 0
    out = capsys.readouterr().out
    assert "?[31mred?X [1]" in out
    assert "\x1b" not in out


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: halimede graph MODEL [options]\n")


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["m"], Graph("m")),
        (["m", "--url", "host:1", "--ascii"], Graph("m", url="host:1", ascii=True)),
        (["--model-repository=a", "m", "--model-repository", "b"], Graph("m", ("a", "b"), "")),
        (["m", "--svg=x.svg"], Graph("m", svg="x.svg")),
    ],
)
def test_line_is_read(words: list[str], order: Graph) -> None:
    assert parse_graph(words) == order


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["a", "b"], "Unexpected argument: b"),
        (["m", "--ulr=x"], "unrecognized option '--ulr=x'\nDid you mean '--url'?"),
        (["m", "--url"], "option '--url' requires an argument"),
        (["m", "--svg="], "option '--svg' requires an argument"),
        (["m", "--ascii=1"], "option '--ascii' doesn't allow an argument"),
        (["m", "--url=x", "--model-repository=y"], "--url and --model-repository: "),
        (["m", "--svg=x", "--ascii"], "--ascii is for the terminal, not for --svg"),
    ],
)
def test_line_that_is_wrong_is_refused(words: list[str], reason: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_graph(words)
    assert str(caught.value).startswith(reason)


def test_help_is_asked_for_before_any_mistake() -> None:
    with pytest.raises(HelpRequested):
        parse_graph(["a", "b", "--help"])
