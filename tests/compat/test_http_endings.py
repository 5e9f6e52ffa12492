"""How connections end: the client leaves or closes its sending half, the server refuses a client that is still sending,
the server stops."""

import contextlib
import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.serving import Serving, write_held_model, write_model

LIMIT = 60.0
STILL_SENT = 20 << 20

_WATCHING = f"""import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"])

    def execute(self, requests):
        return [self.watch(request) for request in requests]

    def watch(self, request):
        mark = self.folder / request.request_id()
        mark.with_suffix(".begun").touch()
        limit = time.monotonic() + {LIMIT}
        while not request.is_cancelled() and time.monotonic() < limit:
            if mark.with_suffix(".go").exists():
                break
            time.sleep(0.01)
        mark.with_suffix(".cancelled" if request.is_cancelled() else ".ran").touch()
        tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())])
"""

_CLIENT = """import socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
client.sendall(sys.stdin.buffer.read())
client.recv(1)
"""


class Watched:
    """A server with the model `watch`. The model reports what became of a request in files named after its id, and ends
    it when there is a file `ID.go`."""

    def __init__(self, serving: Serving, folder: Path) -> None:
        self.serving = serving
        self._folder = folder

    def until(self, name: str) -> None:
        self.serving.until((self._folder / name).exists, f"did not come to {name}", LIMIT)

    def happened(self, name: str) -> bool:
        return (self._folder / name).exists()

    def go(self, name: str) -> None:
        (self._folder / f"{name}.go").touch()

    def until_pending(self, count: int) -> None:
        line = f'nv_inference_pending_request_count{{model="watch",version="1"}} {count}'
        self.serving.until(lambda: line in self.serving.metrics(), f"did not come to {count} waiting requests", LIMIT)

    def ask(self, name: str) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.serving.http_port), LIMIT)
        client.sendall(request(name))
        return client


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("endings")
    version = write_model(folder / "models", "watch", "INT32", backend="python")
    (version / "model.py").write_text(_WATCHING)
    with Serving(folder / "models", folder / "server.log", "--log-verbose=1") as made:
        yield Watched(made.wait_until_live(), version.parent)
        assert made.stop() == 0


def request(name: str, model: str = "watch") -> bytes:
    item = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [1]}
    body = json.dumps({"id": name, "inputs": [item]}).encode()
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def read_to_end(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(1 << 16), b""))


# The client goes.


def closed(client: socket.socket) -> None:
    client.close()


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.rows("H22")
@pytest.mark.parametrize("leave", [closed, reset])
def test_request_of_a_client_that_goes_is_cancelled(watched: Watched, leave: Callable[[socket.socket], None]) -> None:
    name = leave.__name__
    client = watched.ask(name)
    watched.until(f"{name}.begun")
    leave(client)
    watched.until(f"{name}.cancelled")
    line = f"HTTP: a request for model 'watch' was cancelled by its client, request id '{name}'"
    assert watched.serving.log_text().count(line) == 1


@pytest.mark.rows("H22")
def test_request_of_a_client_that_is_killed_is_cancelled(watched: Watched) -> None:
    command = [sys.executable, "-c", _CLIENT, str(watched.serving.http_port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as client:
        assert client.stdin is not None
        client.stdin.write(request("killed"))
        client.stdin.close()
        watched.until("killed.begun")
        client.kill()
    watched.until("killed.cancelled")


@pytest.mark.rows("H22")
def test_request_that_waits_never_runs_when_its_client_goes(watched: Watched) -> None:
    with watched.ask("before") as first:
        watched.until("before.begun")
        waiting = watched.ask("waiting")
        watched.until_pending(1)
        waiting.close()
        watched.until_pending(0)
        watched.go("before")
        assert first.recv(17) == b"HTTP/1.1 200 OK\r\n"
    with watched.ask("after") as last:
        watched.go("after")
        assert last.recv(17) == b"HTTP/1.1 200 OK\r\n"
    assert not watched.happened("waiting.begun")


@pytest.mark.rows("H22")
@pytest.mark.parametrize("late", [False, True], ids=["soon", "late"])
def test_client_that_closes_its_sending_half_gets_its_answer(watched: Watched, late: bool) -> None:
    """The same bytes as from Triton 2.51. Ours sends the first of them early if the answer is late."""
    name = "late" if late else "soon"
    with watched.ask(name) as client:
        client.shutdown(socket.SHUT_WR)
        watched.until(f"{name}.begun")
        begin = client.recv(1) if late else b""
        watched.go(name)
        answer = begin + read_to_end(client)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
    assert answer.endswith(b'"outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[1],"data":[1]}]}')
    assert watched.happened(f"{name}.ran")


# The server refuses, and the client still sends.


def talk(port: int, *parts: bytes) -> bytes:
    """Sends everything before it reads anything, like most clients."""
    with socket.create_connection(("127.0.0.1", port), LIMIT) as client:
        for part in parts:
            client.sendall(part)
        return read_to_end(client)


@pytest.mark.rows("H16")
def test_refusal_reaches_a_client_that_still_sends(watched: Watched) -> None:
    head = b"POST /v2/models/watch/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    large = b"%x\r\n%b\r\n" % (STILL_SENT, bytes(STILL_SENT))
    answer = talk(watched.serving.http_port, head, b"1\r\nx\r\n" * 65_537, large, b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(b'Send fewer or larger HTTP chunks."}')


def test_last_answer_reaches_a_client_that_still_sends(watched: Watched) -> None:
    asked = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = talk(watched.serving.http_port, asked, bytes(STILL_SENT))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n")


def test_goaway_reaches_a_client_that_still_sends(watched: Watched) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = b"\0\0\0\4\0\0\0\0\0"
    on_idle_stream = b"\0\0\0\0\0\0\0\0\1"
    answer = talk(watched.serving.grpc_port, preface, settings, on_idle_stream, bytes(STILL_SENT))
    kind, code = answer[-len("DATA on an idle stream") - 14], answer[-len("DATA on an idle stream") - 1]
    assert answer.endswith(b"DATA on an idle stream")
    assert (kind, code) == (7, 1)  # GOAWAY, PROTOCOL_ERROR


# The server stops.


@pytest.mark.rows("H21", "C61")
def test_stopping_server_logs_each_second_what_it_waits_for(tmp_path: Path) -> None:
    folder = write_held_model(tmp_path / "models")
    with Serving(tmp_path / "models", tmp_path / "server.log", "--exit-timeout-secs=90") as serving:
        serving.wait_until_live()
        idle = socket.create_connection(("127.0.0.1", serving.http_port), LIMIT)
        client = socket.create_connection(("127.0.0.1", serving.http_port), LIMIT)
        with idle, client:
            client.sendall(request("x", "held"))
            serving.until((folder / "begun").exists, "did not begin")
            serving.process.send_signal(signal.SIGTERM)
            for left, count in ((90, 2), (89, 1), (88, 1)):  # --http-drain-secs=0: the idle one ends at once
                line = f"Timeout {left}: Found {count} HTTP service connections"
                serving.until(lambda line=line: line in serving.log_text(), f"did not say {line}")  # type: ignore[misc]  # a bound default
            assert idle.recv(1) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", serving.http_port), LIMIT)
            (folder / "go").touch()
            assert read_to_end(client).startswith(b"HTTP/1.1 200 OK\r\n")
        assert serving.wait() == 0


def exchanged(client: socket.socket, asked: bytes) -> tuple[int, bool, bytes]:
    """Status, whether the answer ends the connection, and body."""
    client.sendall(asked)
    answer = http.client.HTTPResponse(client)
    answer.begin()
    return answer.status, answer.will_close, answer.read()


@pytest.mark.rows("H7", "H21", "L9", "C61")
def test_stopping_server_serves_kept_connections(tmp_path: Path) -> None:
    """They get what they ask for, and close afterwards; those that ask for nothing close after the drain time."""
    write_model(tmp_path / "models", "good", "INT32")
    flags = ("--http-drain-secs=3", "--exit-timeout-secs=60")
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    with Serving(tmp_path / "models", tmp_path / "server.log", *flags) as serving, contextlib.ExitStack() as stack:
        serving.wait_until_live()
        kept, asking, probing = (
            stack.enter_context(socket.create_connection(("127.0.0.1", serving.http_port), LIMIT)) for _ in range(3)
        )
        for client in (kept, asking, probing):
            assert exchanged(client, live) == (200, False, b"")
        serving.process.send_signal(signal.SIGTERM)
        line = "Timeout 60: Found 3 HTTP service connections"
        serving.until(lambda: line in serving.log_text(), "did not begin to stop")
        status, closes, body = exchanged(asking, request("q", "good"))
        assert (status, closes, json.loads(body)["id"]) == (200, True, "q")
        assert exchanged(probing, live) == (503, True, b'{"error":"Server exiting"}')
        assert kept.recv(1) == b""
        assert serving.wait() == 0
        log = serving.log_text()
    told = [log.index(line) for line in _COUNTDOWN]
    assert told == sorted(told)
    assert int(re.findall(r"Timeout (\d+): Found 1 live models", log)[0]) <= 58, "the countdown began again"


_COUNTDOWN = (
    "Found 3 HTTP service connections",
    "Waiting for in-flight requests to complete.",
    "Found 0 model versions that have in-flight inferences",
    "All models are stopped, unloading models",
    "Found 1 live models and 0 in-flight non-inference requests",
    "Found 0 live models and 0 in-flight non-inference requests",
)
