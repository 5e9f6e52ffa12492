"""`halimede perf` with services other than Triton's, played by the test: OpenAI's API and TorchServe."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

LIMIT = 60.0
OPENAI = ["--service-kind", "openai", "--endpoint", "v1/chat/completions", "--async"]


class Handler(BaseHTTPRequestHandler):
    """Keeps what it got, with its time, and answers as the service does: with events if the body asks for them."""

    protocol_version = "HTTP/1.1"
    server: "Service"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((time.monotonic(), self.path, body))
        if self.path.startswith("/predictions"):
            self._send("application/json", b"{}")
            return
        text = f"answer {len(self.server.got)}"
        if json.loads(body).get("stream"):
            events = [{"choices": [{"delta": {"role": "assistant", "content": part}}]} for part in text.split()]
            lines = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)
            self._send("text/event-stream", lines + b"data: [DONE]\n\n")
        else:
            message = {"role": "assistant", "content": text}
            self._send("application/json", json.dumps({"choices": [{"message": message}]}).encode())

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

    def log_message(self, format: str, *args: object) -> None:
        pass


class Service(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[float, str, bytes]] = []

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server_port}"


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(LIMIT)


def perf(service: Service, data: list[dict[str, Any]], folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    (folder / "data.json").write_text(json.dumps({"data": data}))
    command = [sys.executable, "-m", "halimede", "perf", "-m", "gpt", "-u", service.url]
    more = ["--input-data", str(folder / "data.json"), *words]
    return subprocess.run([*command, *more], capture_output=True, text=True, timeout=LIMIT, check=False)


def payload(text: str, **more: Any) -> dict[str, Any]:
    return {"payload": [{"model": "gpt", "messages": [{"role": "user", "content": text}], **more}]}


@pytest.mark.rows("X30")
def test_openai_gets_its_bodies_and_events_are_responses(service: Service, tmp_path: Path) -> None:
    export = tmp_path / "export.json"
    words = [*OPENAI, "--streaming", "--request-count", "4", "--profile-export-file", str(export)]
    done = perf(service, [payload("a", stream=True), payload("b", stream=True)], tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "  Service Kind: OPENAI\n" in done.stdout
    assert "    Request count: 4\n" in done.stdout
    assert "  Server: " not in done.stdout
    assert [path for _, path, _ in service.got] == ["/v1/chat/completions"] * 4
    assert [json.loads(body)["messages"][0]["content"] for _, _, body in service.got] == ["a", "b", "a", "b"]
    document = json.loads(export.read_text())
    assert (document["service_kind"], document["endpoint"]) == ("openai", "v1/chat/completions")
    for request in document["experiments"][0]["requests"]:
        assert len(request["response_timestamps"]) == len(request["response_outputs"]) == 2
        assert json.loads(request["request_inputs"]["payload"])["stream"] is True


@pytest.mark.rows("X3")
def test_fixed_schedule_sends_each_request_at_its_time(service: Service, tmp_path: Path) -> None:
    times = [0, 100, 700, 400]
    data = [{**payload(str(each)), "timestamp": [each]} for each in times]
    done = perf(service, data, tmp_path, *OPENAI, "--fixed-schedule")
    assert done.returncode == 0, done.stderr
    sent = [int(json.loads(body)["messages"][0]["content"]) for _, _, body in service.got]
    assert sent == sorted(times)
    gaps = [(at - service.got[0][0]) * 1000 for at, _, _ in service.got]
    assert gaps == pytest.approx(sorted(times), abs=60)
    refused = perf(service, data, tmp_path, *OPENAI, "--fixed-schedule", "--request-count", "2")
    assert refused.returncode == 99


@pytest.mark.rows("X30")
def test_turns_of_a_session_have_its_history_and_its_pauses(service: Service, tmp_path: Path) -> None:
    first, second = ({**payload(text), "session_id": "s"} for text in ("one", "two"))
    first["delay"] = [300]
    export = tmp_path / "export.json"
    words = [*OPENAI, "--session-concurrency", "2", "--profile-export-file", str(export)]
    done = perf(service, [first, second, {**payload("other"), "session_id": "t"}], tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "Throughput" not in done.stdout
    bodies = [(at, [each["content"] for each in json.loads(body)["messages"]]) for at, _, body in service.got]
    (begun, one) = next(each for each in bodies if each[1][0] == "one")
    (went_on, two) = next(each for each in bodies if len(each[1]) == 3)
    assert one == ["one"]
    assert (two[0], two[2]) == ("one", "two")
    assert two[1].startswith("answer ")
    assert went_on - begun >= 0.3
    assert len(json.loads(export.read_text())["experiments"][0]["requests"]) == 3


def test_torchserve_gets_the_files(service: Service, tmp_path: Path) -> None:
    (tmp_path / "kitten.jpg").write_bytes(b"picture")
    data = [{"TORCHSERVE_INPUT": [str(tmp_path / "kitten.jpg")]}]
    done = perf(service, data, tmp_path, "--service-kind", "torchserve", "--request-count", "3")
    assert done.returncode == 0, done.stderr
    assert [(path, body) for _, path, body in service.got] == [("/predictions/gpt", b"picture")] * 3


@pytest.mark.parametrize(
    ("entry", "text"),
    [({"payload": []}, "missing tensor payload"), ({"prompt": ["a"]}, "missing tensor payload")],
)
def test_data_without_bodies_are_refused(service: Service, tmp_path: Path, entry: dict[str, Any], text: str) -> None:
    done = perf(service, [entry], tmp_path, *OPENAI)
    assert done.returncode == 99
    assert text in done.stderr
