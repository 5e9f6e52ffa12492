"""Asking a server that is a fake, over a real socket."""

import json
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from halimede.errors import Unavailable
from halimede.top.server import Server

STATS = {"model_stats": [{"name": "a b", "version": "3", "inference_stats": {"success": {"count": 4, "ns": 8}}}]}
FACTS = {"name": "triton", "version": "2.51.0"}
CONFIG = {"instance_group": [{"count": 2, "gpus": [0, 1]}, {"count": 3}, {}]}


class Fake:
    """Answers GETs by their path; what is no path is not found."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        asked = self.asked = []  # type: list[str]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                answer = answers.get(self.path)
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"127.0.0.1:{self.http.server_port}"
        self.thread = Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join(10)


@pytest.fixture
def answers() -> dict[str, object]:
    return {"/v2": FACTS, "/v2/models/stats": STATS, "/v2/models/a%20b/versions/3/config": CONFIG}


@pytest.fixture
def fake(answers: dict[str, object]) -> Iterator[Fake]:
    made = Fake(answers)
    yield made
    made.close()


def test_server_without_metrics_is_asked_for_its_instances_once(fake: Fake) -> None:
    server = Server(fake.url, f"{fake.url}/none", lambda: 5.0)
    for _ in range(2):
        snapshot = server.snapshot()
        assert (snapshot.at, snapshot.server, snapshot.version, snapshot.has_metrics) == (
            5.0,
            "triton",
            "2.51.0",
            False,
        )
        model = snapshot.models["a b", "3"]
        assert (model.success.count, model.instances, model.pending) == (4, 8, None)
    assert fake.asked.count("/v2/models/a%20b/versions/3/config") == 1


def test_metrics_are_searched_at_the_http_port_too(fake: Fake, answers: dict[str, object]) -> None:
    answers["/metrics"] = b'halimede_instances{model="a b",version="3"} 6\nnv_cpu_utilization 0.5\n'
    server = Server(f"http://{fake.url}/")
    server._places = [f"http://{fake.url}/nowhere", f"http://{fake.url}/metrics"]
    for _ in range(2):
        snapshot = server.snapshot()
        assert (snapshot.has_metrics, snapshot.machine.cpu, snapshot.models["a b", "3"].instances) == (True, 0.5, 6)
    assert fake.asked.count("/nowhere") == 1
    assert not any("config" in path for path in fake.asked)


@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("h:8000", ["http://h:8002/metrics", "http://h:8000/metrics"]),
        ("http://h:1/p/", ["http://h:8002/metrics", "http://h:1/p/metrics"]),
        ("http://[::1]:8000", ["http://[::1]:8002/metrics", "http://[::1]:8000/metrics"]),
    ],
)
def test_places_where_metrics_are_searched(url: str, places: list[str]) -> None:
    assert Server(url)._places == places
    assert Server(url, "m:1/x")._places == ["http://m:1/x"]
    assert Server(url, "m:1")._places == Server(url, "http://m:1/")._places == ["http://m:1/metrics"]


@pytest.mark.parametrize(
    ("path", "answer"),
    [("/v2", b"<html>"), ("/v2", [1]), ("/v2", {}), ("/v2", None), ("/v2/models/stats", {}), ("/v2/models/stats", 3)],
)
def test_other_server_is_an_error(fake: Fake, answers: dict[str, object], path: str, answer: object) -> None:
    answers[path] = answer
    with pytest.raises(Unavailable, match=fake.url):
        Server(fake.url, f"{fake.url}/none").snapshot()


def test_missing_server_is_an_error(fake: Fake) -> None:
    fake.close()
    with pytest.raises(Unavailable, match="cannot be reached"):
        Server(fake.url).snapshot()
