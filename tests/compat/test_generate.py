"""The generate extension over plain HTTP: events arrive when they are sent; clients that do not read, or leave; endless
streams.

Uses raw sockets and the standard library, so that nothing but the operating system reads ahead.
"""

import json
import socket
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.compat.serving import Serving, write_model
from tests.compat.test_back_pressure import AHEAD, GROWTH, SIZE, Flooded, other_model_answers, served
from tests.compat.test_far_port import FarServing

LIMIT = 20.0
COUNT = 400

_STEPWISE = f"""import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"])

    def execute(self, requests):
        for request in requests:
            kind = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0]
            work = self.endless if kind else self.two
            threading.Thread(target=work, args=(request.get_response_sender(),)).start()

    def send(self, sender, number):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([number], np.int32))]))

    def two(self, sender):
        self.send(sender, 0)
        limit = time.monotonic() + {LIMIT}
        while not (self.folder / "go").exists() and time.monotonic() < limit:
            time.sleep(0.01)
        self.send(sender, 1)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def endless(self, sender):
        number = 0
        while not sender.is_cancelled():
            self.send(sender, number)
            number += 1
            time.sleep(0.01)
        (self.folder / "left").touch()
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def write_stepwise(repository: Path) -> Path:
    """Writes a decoupled model. For 0 it sends a response, and a second one when there is a file `go` in the returned
    folder. For other values it sends responses until the client has gone, and then makes a file `left`."""
    decoupled = "model_transaction_policy { decoupled: true }\n"
    version = write_model(repository, "stepwise", "INT32", backend="python", more=decoupled)
    (version / "model.py").write_text(_STEPWISE)
    return version.parent


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("generate") / "models"
    write_stepwise(repository)
    write_model(repository, "text", "BYTES")
    write_model(repository, "numbers", "FP32", max_batch_size=4)
    return repository


@pytest.fixture(scope="module", params=[Serving, FarServing], ids=["near", "far"])
def generating(repository: Path, request: pytest.FixtureRequest) -> Iterator[Serving]:
    with request.param(repository, repository.parent / f"{request.node.name}.log") as serving:
        serving.wait_until_live()
        yield serving
        assert serving.stop() == 0, serving.log_text()[-3000:]


class Events:
    """A request for a stream on its own connection, with its events one by one."""

    def __init__(self, serving: Serving, model: str, body: Any) -> None:
        self._connection = HTTPConnection("127.0.0.1", serving.http_port, timeout=LIMIT)
        self._connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(body))
        self.answer = self._connection.getresponse()

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *_: object) -> None:
        self.answer.close()
        self._connection.close()

    def __iter__(self) -> Iterator[Any]:
        while line := self.answer.readline():
            assert line.startswith(b"data: ")
            assert self.answer.readline() == b"\n"
            yield json.loads(line[6:])


def asked_raw(serving: Serving, model: str, body: Any) -> socket.socket:
    """A connection that has asked for a stream and reads nothing."""
    text = json.dumps(body).encode()
    made = socket.create_connection(("127.0.0.1", serving.http_port), LIMIT)
    head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
    made.sendall(head.encode() + text)
    return made


# What comes back.


def test_generate_with_the_standard_library(generating: Serving) -> None:
    body = json.dumps({"INPUT0": ["a", "é"], "id": "7", "parameters": {"max": 3}}).encode()
    url = f"http://{generating.http_url}/v2/models/text/generate"
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=LIMIT) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.read().decode() == '{"OUTPUT0":["a","é"],"id":"7","model_name":"text","model_version":"1"}'


@pytest.mark.rows("H136")
def test_events_come_as_the_model_sends_them(generating: Serving, repository: Path) -> None:
    go = repository / "stepwise" / "go"
    go.unlink(missing_ok=True)
    with Events(generating, "stepwise", {"INPUT0": 0}) as events:
        assert events.answer.status == 200
        assert events.answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        found = iter(events)
        assert next(found) == {"OUTPUT0": 0, "model_name": "stepwise", "model_version": "1"}
        go.touch()  # only now the model goes on
        assert [event["OUTPUT0"] for event in found] == [1]


def test_requests_of_all_kinds_on_one_connection(generating: Serving, repository: Path) -> None:
    (repository / "stepwise" / "go").touch()
    connection = HTTPConnection("127.0.0.1", generating.http_port, timeout=LIMIT)
    connection.connect()
    first = connection.sock
    infer = {"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
    asked = [
        ("numbers/generate", {"INPUT0": [1, 2]}, 200, b'"OUTPUT0":[1.0,2.0]'),
        ("stepwise/generate_stream", {"INPUT0": 0}, 200, b'"OUTPUT0":1,'),
        ("numbers/infer", infer, 200, b'"data":[1.0,2.0]'),
        ("stepwise/generate", {"INPUT0": 0}, 200, b"exactly 1 response"),
        ("numbers/generate", {"INPUT0": "x"}, 500, b'{"error":'),
        ("nope/generate_stream", {}, 404, b"unknown model"),
        ("numbers/generate_stream", {"INPUT0": 5}, 200, b'data: {"OUTPUT0":5.0,'),
    ]
    for path, body, status, part in asked * 3:
        connection.request("POST", f"/v2/models/{path}", json.dumps(body))
        answer = connection.getresponse()
        assert answer.status == status
        assert part in answer.read()
        assert connection.sock is first
    connection.close()


def test_large_text_there_and_back(generating: Serving) -> None:
    """The server decodes and encodes it on another thread."""
    text = "é\n" * 1_000_000
    with Events(generating, "text", {"INPUT0": [text, "b"]}) as events:
        [event] = events
        assert event["OUTPUT0"] == [text, "b"]


@pytest.mark.rows("H137")
def test_body_over_the_limit(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "text", "BYTES")
    with Serving(tmp_path / "models", tmp_path / "server.log", "--http-max-input-size=100") as serving:
        serving.wait_until_live()
        for path in ("generate", "generate_stream"):
            connection = HTTPConnection("127.0.0.1", serving.http_port, timeout=LIMIT)
            connection.request("POST", f"/v2/models/text/{path}", json.dumps({"INPUT0": "x" * 100}))
            answer = connection.getresponse()
            assert answer.status == 400
            assert json.loads(answer.read())["error"].startswith("request JSON size of 114 bytes exceeds")
            connection.close()
        assert serving.stop() == 0


# Clients that leave, or do not read.


def test_client_that_leaves_an_endless_stream_stops_its_model(generating: Serving, repository: Path) -> None:
    left = repository / "stepwise" / "left"
    left.unlink(missing_ok=True)
    with Events(generating, "stepwise", {"INPUT0": 1}) as events:
        found = iter(events)
        assert [next(found)["OUTPUT0"] for _ in range(3)] == [0, 1, 2]
        assert not left.exists()
    generating.until(left.exists, "did not tell the model", LIMIT)


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flooded]:
    with served(tmp_path_factory.mktemp("flooded"), count=COUNT) as flooded:
        yield flooded
        assert flooded.serving.stop() == 0, flooded.serving.log_text()[-3000:]


def flood(flooded: Flooded) -> socket.socket:
    """A stream that is not read, once its model is held back."""
    before = flooded.memory()
    made = asked_raw(flooded.serving, "flood", {"INPUT0": flooded.count})
    sent = flooded.wait_until_it_stands_still()
    assert sent * SIZE < AHEAD
    assert flooded.memory() - before < GROWTH
    return made


def test_slow_reader_slows_its_model_and_gets_everything_in_order(flooded: Flooded) -> None:
    with flood(flooded) as made:
        assert other_model_answers(flooded.serving)
        with Events(flooded.serving, "flood", {"INPUT0": 50}) as second:
            assert [event["OUTPUT0"][-1] for event in second] == list(range(50))
        made.settimeout(LIMIT)
        seen = 0
        with made.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"data: "):
                    assert line.startswith(b'data: {"OUTPUT0":[%d,%d,' % (seen, seen))
                    seen += 1
                elif line == b"0\r\n":
                    break
        assert seen == flooded.count


def test_client_that_goes_without_reading_releases_the_model(flooded: Flooded) -> None:
    with flood(flooded) as made:
        sent = flooded.progress()[0]
        made.close()
    flooded.serving.until(lambda: flooded.progress()[1], "did not tell the model", LIMIT)
    assert flooded.progress()[0] < sent + 100
    assert other_model_answers(flooded.serving)


def test_server_ends_although_a_stream_has_no_end(tmp_path: Path) -> None:
    write_stepwise(tmp_path / "models")
    with Serving(tmp_path / "models", tmp_path / "server.log", "--exit-timeout-secs=1") as serving:
        serving.wait_until_live()
        with Events(serving, "stepwise", {"INPUT0": 1}) as events:
            found = iter(events)
            assert next(found)["OUTPUT0"] == 0
            serving.stop()
