"""The example that serves functions: in this process, and as a program."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bind
import pytest

from halimede import Server
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
LOCAL = ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--http-drain-secs=0")
SECONDS = 60


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with bind.server_of(*LOCAL, "--http-port=0", "--grpc-port=0", "--metrics-port=0") as server:
        server.start()
        yield server


def post(url: str, body: Any) -> str:
    request = urllib.request.Request(f"http://{url}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return str(answer.read().decode())


def tensor(name: str, datatype: str, data: list[Any], shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def data_of(answer: str) -> Any:
    [output] = json.loads(answer)["outputs"]
    return output["data"]


def test_distance_of_rows(server: Server) -> None:
    inputs = [tensor("a", "FP32", [0, 0, 1, 1], [2, 2]), tensor("b", "FP32", [3, 4, 1, 2], [2, 2])]
    assert data_of(post(f"{server.http_url}/v2/models/distance/infer", {"inputs": inputs})) == [5, 1]


def test_spelling_is_a_stream(server: Server) -> None:
    lines = post(f"{server.http_url}/v2/models/spell/generate_stream", {"text": "äb"}).splitlines()
    assert [json.loads(line.removeprefix("data: "))["letter"] for line in lines if line] == ["ä", "b"]


def test_votes_are_kept_and_weighed(server: Server) -> None:
    def vote(choice: str, **parameters: int) -> Any:
        body = {"inputs": [tensor("choice", "BYTES", [choice], [1])], "parameters": parameters}
        return data_of(post(f"{server.http_url}/v2/models/votes/infer", body))

    assert [vote("tea"), vote("tea", weight=5), vote("coffee")] == [[1], [6], [1]]
    with pytest.raises(urllib.error.HTTPError) as caught:
        vote("")
    assert "ValueError: an empty choice does not count" in caught.value.read().decode()


def test_program_serves_until_a_signal() -> None:
    http, grpc, metrics = free_ports(3)
    flags = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}", *LOCAL]
    command = [sys.executable, str(ROOT / "examples" / "bind.py"), *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "Started Metrics Service" in line:  # the last port to open
                break
        assert process.poll() is None, "".join(lines)
        inputs = [tensor("a", "FP32", [0], [1, 1]), tensor("b", "FP32", [7], [1, 1])]
        assert data_of(post(f"127.0.0.1:{http}/v2/models/distance/infer", {"inputs": inputs})) == [7]
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0, process.stderr.read()


def test_wrong_flag_is_one_line_and_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert bind.main(["--http-prot=1"]) == 1
    said = capsys.readouterr().err
    assert said == "bind: unrecognized option '--http-prot=1'. Did you mean '--http-port'?\n"
