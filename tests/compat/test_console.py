"""The console of a started server, asked as a browser asks: what it answers, what it refuses, what it streams."""

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.serving import Serving, write_model
from tests.ports import free_ports

SECONDS = 30.0


class Console:
    """A server with a console in explicit mode."""

    def __init__(self, folder: Path, *flags: str) -> None:
        (self.port,) = free_ports(1)
        repository = folder / "models"
        write_model(repository, "one", "INT32", max_batch_size=4)
        write_model(repository, "two", "INT32")
        write_model(repository, "wrong", "INT32", backend="nonsense")
        self.server = Serving(
            repository,
            folder / "log",
            f"--console-port={self.port}",
            "--model-control-mode=explicit",
            "--load-model=one",
            "--load-model=wrong",
            "--exit-on-error=false",
            "--http-restricted-api=inference,model-repository:key=value",
            *flags,
        ).wait_until_live()
        self.server.until_logged("Console, for a browser")
        self.server.until_logged(f":{self.port}/")
        found = re.search(r"#token=([\w-]+)", self.server.log_text())
        self.token = found[1] if found is not None else ""

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, None if body is None else json.dumps(body), named)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        return answer.status, json.loads(content) if is_json and content else content, answer.headers

    def change(self, path: str, body: Any = None) -> tuple[int, Any]:
        status, answer, _ = self.ask("POST", path, body or {}, authorization=f"Bearer {self.token}")
        return status, answer

    def events(self) -> Iterator[dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        connection.request("GET", "/api/events")
        answer = connection.getresponse()
        try:
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        finally:
            connection.close()


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    made = Console(tmp_path_factory.mktemp("console"))
    with made.server:
        yield made


def infer(value: int) -> dict[str, Any]:
    return {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [value]}]}


def test_page_and_its_files_are_served(console: Console) -> None:
    status, page, headers = console.ask("GET", "/")
    assert (status, b"/js/main.js" in page) == (200, True)
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert console.ask("GET", "/js/main.js")[2]["Content-Type"].startswith("text/javascript")
    assert console.ask("GET", "/js/missing.js")[0] == 404


def test_calls_of_the_protocol_pass_and_need_no_key_but_the_token(console: Console) -> None:
    assert console.ask("GET", "/api/v2/models/one")[1]["name"] == "one"
    status, answer = console.change("/api/v2/models/one/infer", infer(7))
    assert (status, answer["outputs"][0]["data"]) == (200, [7])
    status, answer, _ = console.ask("POST", "/api/v2/models/one/infer", infer(7))
    assert status == 403
    assert "token" in answer["error"]


def test_model_is_loaded_edited_and_unloaded(console: Console) -> None:
    assert console.change("/api/v2/repository/models/two/load")[0] == 200
    assert console.ask("GET", "/api/v2/models/two/ready")[0] == 200
    config = console.ask("GET", "/api/v2/models/one/config")[1]
    edited = {"parameters": {"config": json.dumps({**config, "max_batch_size": 8})}}
    assert console.change("/api/v2/repository/models/one/load", edited)[0] == 200
    assert console.ask("GET", "/api/v2/models/one/config")[1]["max_batch_size"] == 8
    assert console.change("/api/v2/repository/models/two/unload")[0] == 200
    assert console.ask("GET", "/api/v2/models/two/ready")[0] == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v2/models/one/infer"),
        ("POST", "/api/v2/repository/models/one/unload"),
        ("POST", "/api/v2/logging"),
        ("POST", "/api/tracing"),
        ("POST", "/api/check/one"),
        ("GET", "/api/events"),
        ("GET", "/api/v2/models/one/config"),
    ],
)
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example"},
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_attack_gets_nothing(console: Console, method: str, path: str, headers: dict[str, str]) -> None:
    status, answer, sent = console.ask(method, path, {} if method == "POST" else None, **headers)
    assert status == 403
    assert set(answer) == {"error"}
    assert "Access-Control-Allow-Origin" not in sent


def test_preflight_of_another_site_is_refused(console: Console) -> None:
    status, _, headers = console.ask(
        "OPTIONS", "/api/v2/models/one/infer", Origin="http://evil.example", Access_Control_Request_Method="POST"
    )
    assert status == 403
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_stream_tells_of_models_machine_requests_and_the_log(console: Console) -> None:
    events = console.events()
    hello, first = next(events), next(events)
    assert hello["hello"]["control"] == "explicit"
    assert {"logs", "traces", "check"} == set(hello["hello"]["features"])
    assert hello["hello"]["http"].endswith(str(console.server.http_port))
    rows = {row["name"]: row for row in first["models"]}
    assert rows["one"]["state"] == "READY"
    assert "nonsense" in rows["wrong"]["reason"]
    assert first["machine"]["memoryTotal"] > 0
    assert any("Started Console" in line["text"] for line in first["logs"])
    assert console.token not in json.dumps(first["logs"])
    before = rows["one"]["success"]
    console.change("/api/v2/models/one/infer", infer(1))
    for event in events:
        if changed := [row for row in event["models"] if row["name"] == "one"]:
            assert changed[0]["success"] == before + 1
            break


def test_traces_are_recorded_while_they_are_on(console: Console) -> None:
    assert console.change("/api/tracing", {"on": True}) == (200, {"on": True})
    try:
        console.change("/api/v2/models/one/infer", infer(1))
        for event in console.events():
            if found := event.get("traces"):
                assert found[-1]["model"] == "one"
                assert event["tracing"] is True
                break
    finally:
        assert console.change("/api/tracing", {"on": False}) == (200, {"on": False})
    assert console.change("/api/tracing", {"no": 1})[0] == 400


def test_check_says_what_is_wrong_with_a_model(console: Console) -> None:
    status, found = console.change("/api/check/wrong")
    assert (status, found["verdict"]["state"]) == (200, "cannot-serve")
    assert console.change("/api/check/nothing") == (200, None)


def test_open_page_does_not_delay_the_end(tmp_path: Path) -> None:
    made = Console(tmp_path)
    with made.server:
        events = made.events()
        next(events)
        assert made.server.stop() == 0


def test_server_with_keys_lets_each_key_do_what_its_roles_allow(tmp_path: Path) -> None:
    keys = {}
    for name, roles in (("anonymous", ["health"]), ("app", ["infer"]), ("reader", ["read"]), ("ops", ["control"])):
        words = [f"--role={role}" for role in roles]
        command = [sys.executable, "-m", "halimede", "auth", "add", name, *words, f"--file={tmp_path / 'auth.toml'}"]
        keys[name] = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    made = Console(tmp_path, f"--auth={tmp_path / 'auth.toml'}")

    def status(key: str, method: str, path: str, body: Any = None) -> int:
        return made.ask(method, path, body, **({"Authorization": f"Bearer {keys[key]}"} if key else {}))[0]

    with made.server:
        assert [status(key, "GET", "/api/events/") for key in ("", "app")] == [403, 403]
        assert status("app", "POST", "/api/v2/models/one/infer", infer(7)) == 200
        assert status("reader", "POST", "/api/v2/models/one/infer", infer(7)) == 403
        assert status("reader", "GET", "/api/v2/models/one/config") == 200
        assert status("", "GET", "/api/v2/models/one/config") == 401
        load = "/api/v2/repository/models/one/load"
        assert [status(key, "POST", load, {}) for key in ("app", "reader", "ops")] == [403, 403, 200]
        assert [status(key, "POST", "/api/tracing", {"on": False}) for key in ("reader", "ops")] == [403, 200]
        assert [status(key, "POST", "/api/token", {}) for key in ("", "reader")] == [403, 200]
