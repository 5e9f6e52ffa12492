"""The programs of docs/binding-functions.md, as they stand there."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede import Server
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "binding-functions.md"
SECONDS = 60


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs."""
    folder = tmp_path_factory.mktemp("page")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for code in blocks:
        name = re.match(r"# (\w+\.py)\n", code)
        assert name is not None, f"a program without a name: {code}"
        (folder / name[1]).write_text(code)
    return folder


def start(programs: Path, *arguments: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{programs}"}
    command = [sys.executable, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=programs)


def run(programs: Path, *arguments: str) -> str:
    with start(programs, *arguments) as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    return out


def test_first_program_serves(programs: Path) -> None:
    http_port, grpc_port, metrics_port = free_ports(3)
    text = (programs / "app.py").read_text()
    ports = f"http_port={http_port}, grpc_port={grpc_port}, metrics_port={metrics_port}"
    assert "Server() as" in text
    (programs / "app_here.py").write_text(
        text.replace("Server() as", f"Server({ports}, http_address='127.0.0.1', grpc_address='127.0.0.1') as")
    )
    with start(programs, "app_here.py") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "Started HTTPService" in line:
                break
        answer = post(f"127.0.0.1:{http_port}", "/v2/models/double/infer", _of_the_page())
        assert answer["outputs"][0]["data"] == [2, 4, 6]
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


def _of_the_page() -> Any:
    body = re.search(r"double/infer -d '(.*?)'\n```", PAGE.read_text(), re.DOTALL)
    assert body is not None
    return json.loads(body[1])


def post(url: str, path: str, body: Any) -> Any:
    request = urllib.request.Request(f"http://{url}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.load(answer)


def test_program_of_the_notebook_prints_its_answer(programs: Path) -> None:
    assert run(programs, "notebook.py") == "[1.0, 2.0]\n"


def test_configured_server_has_the_fields(programs: Path) -> None:
    code = (
        "import json, urllib.request; from configured import server; server.start()\n"
        "url = f'http://{server.http_url}/v2/models/norm/config'\n"
        "print(urllib.request.urlopen(url, timeout=60).read().decode()); server.stop()"
    )
    config = json.loads(run(programs, "-c", code))
    assert config["dynamic_batching"]["preferred_batch_size"] == [32, 64]
    assert config["response_cache"] == {"enable": True}
    assert config["parameters"]["OWNER"]["string_value"] == "me"


@pytest.fixture(scope="module")
def server(programs: Path) -> Iterator[Server]:
    found: dict[str, Any] = {}
    exec((programs / "functions.py").read_text(), found)
    local: dict[str, Any] = {
        "http_address": "127.0.0.1",
        "http_port": 0,
        "grpc_address": "127.0.0.1",
        "grpc_port": 0,
        "metrics_port": 0,
        "http_drain_secs": 0,
    }
    with Server(**local) as server:
        found["bind_all"](server)
        server.start()
        yield server


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    [
        ("scale", {"x": [1, 2]}, [1, 2]),
        ("scale", {"x": [1, 2], "factor": [3]}, [3, 6]),
        ("parse", {"text": ["2.5"]}, [2.5]),
        ("fetch", {"x": [4]}, [4]),
        ("mean", {"x": [1, 3]}, [2]),
        ("described", {"x": [1, 2, 3]}, ["7: 3 numbers, user ann"]),
    ],
)
def test_functions_of_the_page(server: Server, model: str, inputs: Mapping[str, Any], expected: Any) -> None:
    assert infer(server, model, inputs) == expected


def infer(server: Server, model: str, inputs: Mapping[str, Any]) -> Any:
    tensors = [
        {"name": name, "shape": [len(data)], "datatype": "BYTES" if name == "text" else "FP32", "data": data}
        for name, data in inputs.items()
    ]
    body = {"id": "7", "inputs": tensors, "parameters": {"user": "ann"}}
    return post(server.http_url, f"/v2/models/{model}/infer", body)["outputs"][0]["data"]


def test_invalid_text_is_status_400(server: Server) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        infer(server, "parse", {"text": ["four"]})
    assert (caught.value.code, json.loads(caught.value.read())["error"]) == (400, "'four' is not a number")


def test_stream_of_the_page(server: Server) -> None:
    connection = http.client.HTTPConnection(server.http_url, timeout=SECONDS)
    connection.request("POST", "/v2/models/count_down/generate_stream", json.dumps({"x": [3]}))
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    numbers = [json.loads(line.removeprefix("data: "))["y"] for line in lines if line]
    assert np.array(numbers).ravel().tolist() == [3, 2, 1]


def test_client_of_the_page_reads_both_streams(programs: Path, server: Server) -> None:
    told = run(programs, "client.py", server.http_url, server.grpc_url)
    assert told.splitlines() == ["http 3.0 2.0 1.0", "grpc 3.0 2.0 1.0"]
