"""Routes that control the server: repository, trace and log settings (H110 to H124)."""

import json
from typing import Any

import pytest

from halimede.engine_port import (
    IndexEntry,
    LoadModel,
    LogInfo,
    LogSettings,
    ModelReady,
    Query,
    RepositoryIndex,
    TraceInfo,
    TraceSettings,
    UnloadModel,
)
from halimede.errors import Invalid, NotFound, Unavailable, Unsupported
from halimede.front.http.handling import JSON, OFFLOAD_BYTES, PLAIN
from tests.front.http_fakes import FakeExchange, Rig

LOG = LogInfo("", True, True, True, 0, "default")
TRACE = TraceInfo((), 1000, -1, 0, "", "triton")
DEPENDENTS = b'{"parameters":{"unload_dependents":true}}'


def answering(*answers: tuple[Query[Any], Any]) -> Rig:
    rig = Rig()
    rig.port.answers = dict(answers)
    return rig


def test_index() -> None:
    rig = answering((RepositoryIndex(), []), (RepositoryIndex(True), [IndexEntry("m", 1, "READY")]))
    assert rig.ask("POST", "/v2/repository/index").answer == (200, JSON, b"[]")
    written = b'[{"name":"m","version":"1","state":"READY"}]'
    assert rig.ask("POST", "/v2/repository/r/index", b'{"ready":true}').answer == (200, JSON, written)


def test_load_and_unload_are_answered_without_a_body() -> None:
    rig = answering((LoadModel("m", "{}"), None), (UnloadModel("m", True), None))
    load = rig.ask("POST", "/v2/repository/models/m/load", b'{"parameters":{"config":"{}"}}')
    assert load.answer == (200, JSON, b"")
    assert rig.ask("POST", "/v2/repository/models/m/unload", DEPENDENTS).answer == (200, JSON, b"")


def test_load_that_takes_a_while_is_answered_when_it_is_done() -> None:
    rig = answering((LoadModel("m"), Invalid("load failed")))
    rig.port.hold = True
    exchange = rig.ask("POST", "/v2/repository/models/m/load")
    assert exchange.answers == []
    rig.port.answer_held()
    assert exchange.answer == (400, JSON, b'{"error":"load failed"}')


def test_load_names_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeExchange, "peer", "192.0.2.1")
    rig = answering((LoadModel("m", client="192.0.2.1"), None))
    assert rig.ask("POST", "/v2/repository/models/m/load").answer == (200, JSON, b"")


def test_large_load_is_read_on_another_thread() -> None:
    rig = answering((LoadModel("m", "x" * OFFLOAD_BYTES), Unavailable("not now")))
    body = json.dumps({"parameters": {"config": "x" * OFFLOAD_BYTES}}).encode()
    exchange = rig.ask("POST", "/v2/repository/models/m/load", body)
    assert exchange.answers == []
    rig.offload.run()
    assert exchange.answer == (503, JSON, b'{"error":"not now"}')


def test_large_load_that_cannot_be_read_is_refused() -> None:
    rig = Rig()
    exchange = rig.ask("POST", "/v2/repository/models/m/load", b"[" * (OFFLOAD_BYTES + 1))
    rig.offload.run()
    assert exchange.status == 400


@pytest.mark.parametrize("path", ["index", "models/m/load", "models/m/unload", "r/index", "r/models/m/load"])
def test_repository_takes_post_only(path: str) -> None:
    assert Rig().ask("GET", f"/v2/repository/{path}").answer == (405, JSON, b'{"error":"Method Not Allowed"}')


@pytest.mark.parametrize("action", ["load", "unload"])
def test_repository_name_is_refused(action: str) -> None:
    text = b'{"error":"\'repository_name\' specification is not supported"}'
    assert Rig().ask("POST", f"/v2/repository/r/models/m/{action}").answer == (501, JSON, text)


@pytest.mark.parametrize("path", ["", "/models/m/load/x", "/models//load", "//index", "/index/", "/models/m/reload"])
def test_path_beside_those_of_the_repository_is_not_found(path: str) -> None:
    assert Rig().ask("POST", f"/v2/repository{path}").status == 404


def test_log_settings() -> None:
    rig = answering((LogSettings(), LOG), (LogSettings((("verbose", 2),)), LOG))
    shown = rig.ask("GET", "/v2/logging", b"not read")
    assert shown.answer[:2] == (200, JSON)
    assert json.loads(shown.body_sent)["log_verbose_level"] == 0
    assert rig.ask("POST", "/v2/logging", b'{"log_verbose_level":2}').answer == shown.answer


def test_trace_settings() -> None:
    rig = answering(
        (TraceSettings(), TRACE),
        (TraceSettings("m"), TRACE),
        (TraceSettings("m", (("rate", 2),)), Unsupported("no")),
        (TraceSettings("nope"), NotFound("no m")),
    )
    assert rig.ask("GET", "/v2/trace/setting").answer == rig.ask("GET", "/v2/models/m/trace/setting").answer
    assert rig.ask("POST", "/v2/models/m/trace/setting", b'{"trace_rate":"2"}').status == 501
    assert rig.ask("GET", "/v2/models/nope/trace/setting").answer == (404, JSON, b'{"error":"no m"}')


@pytest.mark.parametrize("path", ["/v2/logging", "/v2/trace/setting", "/v2/models/m/trace/setting"])
def test_settings_take_get_and_post_only(path: str) -> None:
    assert Rig().ask("PUT", path).status == 405


def test_health_of_an_unknown_model_has_no_content_type() -> None:
    """Errors of health routes have no content type of JSON (H15)."""
    rig = answering((ModelReady("m"), NotFound("no m")))
    assert rig.ask("GET", "/v2/models/m/ready").answer == (404, PLAIN, b'{"error":"no m"}')


def test_answer_that_cannot_be_written_is_answered_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    rig = answering((RepositoryIndex(), ["no entry"]))
    exchange = rig.ask("POST", "/v2/repository/index")
    assert exchange.answer == (500, JSON, b'{"error":"the server failed to write the answer"}')
    assert "AttributeError" in caplog.text
