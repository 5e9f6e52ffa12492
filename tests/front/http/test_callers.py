"""HTTP with `--auth`: who gets which answer."""

import json

import pytest

from halimede.engine_port import (
    LogSettings,
    Metrics,
    RepositoryIndex,
    ServerInfo,
    ServerLive,
    ServerMetadata,
    ServerReady,
)
from halimede.errors import NotFound
from halimede.front.access import Access
from halimede.front.caller_port import CallerPort
from halimede.front.http.callers import HttpOfCallers
from halimede.front.http.service import HttpService
from halimede.front.metrics import MetricsOfCaller, MetricsScrapes, MetricsService
from halimede.front.offload import at_once
from halimede.identities.guard import Caller, Guard
from halimede.identities.keys import new_key
from halimede.identities.values import Identity
from tests.front.fakes import FakePort
from tests.front.http_fakes import MAX_INPUT_SIZE, FakeExchange, HeldOffload, no_timer

INFER, INFER_STORED = new_key()
READ, READ_STORED = new_key()
CONTROL, CONTROL_STORED = new_key()
HEALTH = Identity("anonymous", ("health",))
IDENTITIES = {
    "app": Identity("app", ("infer",), (INFER_STORED,), rate=1, burst=50),
    "grafana": Identity("grafana", ("read",), (READ_STORED,)),
    "ops": Identity("ops", ("control",), (CONTROL_STORED,)),
    "anonymous": HEALTH,
}
LARGE = b"[" + b"0," * 100_000


class Rig:
    """The HTTP port of a server with these identities."""

    def __init__(self, keys: dict[str, tuple[str, str]] | None = None) -> None:
        self.port = FakePort()
        self.port.answers = {
            ServerLive(): True,
            ServerReady(): True,
            ServerMetadata(): ServerInfo("s", "1", ()),
            RepositoryIndex(): [],
            Metrics(): [],
        }
        self.offload = HeldOffload()
        self.guard = Guard(IDENTITIES, clock=lambda: 0.0)
        scrapes = MetricsScrapes(self.port, no_timer, at_once)

        def make(caller: Caller) -> HttpService:
            access = Access(keys or {}, caller=caller)
            return HttpService(CallerPort(self.port, caller), self.offload, MAX_INPUT_SIZE, access, scrapes=scrapes)

        self.handle = HttpOfCallers(self.guard, make).handle
        self.metrics = HttpOfCallers(self.guard, lambda caller: MetricsOfCaller(MetricsService(scrapes), caller)).handle

    def ask(self, method: str, target: str, key: str = "", body: bytes = b"", **headers: str) -> FakeExchange:
        if key:
            headers["authorization"] = f"Bearer {key}"
        exchange = FakeExchange(method, target, body, **headers)
        self.handle(exchange)
        return exchange


def error_of(exchange: FakeExchange) -> str:
    return str(json.loads(exchange.body_sent)["error"])


@pytest.mark.parametrize("target", ["/v2/models/m/infer", "/v2", "/nope"])
def test_key_that_is_unknown(target: str) -> None:
    exchange = Rig().ask("POST", target, "halimede_00000000_x")
    assert exchange.status == 401
    assert error_of(exchange) == "the key is unknown, was removed, or has expired"
    assert b'WWW-Authenticate: Bearer realm="halimede"\r\n' in exchange.answer[1]


def test_anonymous_is_asked_for_a_key_where_one_would_help() -> None:
    rig = Rig()
    assert rig.ask("GET", "/v2/health/live").status == 200
    exchange = rig.ask("POST", "/v2/models/m/infer", body=LARGE)
    assert (exchange.status, error_of(exchange)) == (
        401,
        "a key is required: send the header 'authorization: Bearer KEY'",
    )
    assert b"WWW-Authenticate: Basic" in exchange.answer[1]


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("GET", "/v2/health/ready", {INFER, READ, CONTROL}),
        ("GET", "/v2", {INFER, READ, CONTROL}),
        ("GET", "/docs", {INFER, READ, CONTROL}),
        ("GET", "/v2/models/stats", {READ, CONTROL}),
        ("POST", "/v2/repository/index", {READ, CONTROL}),
        ("POST", "/v2/repository/models/m/load", {CONTROL}),
        ("POST", "/v2/repository/models/m/unload", {CONTROL}),
        ("GET", "/v2/logging", {READ, CONTROL}),
        ("POST", "/v2/logging", {CONTROL}),
        ("GET", "/v2/trace/setting", {READ, CONTROL}),
        ("POST", "/v2/models/m/trace/setting", {CONTROL}),
        ("GET", "/v2/systemsharedmemory/status", {READ, CONTROL}),
        ("POST", "/v2/systemsharedmemory/region/r/register", {CONTROL}),
        ("POST", "/v2/cudasharedmemory/unregister", {CONTROL}),
        ("GET", "/metrics", {READ, CONTROL}),
    ],
)
def test_roles_decide(method: str, target: str, allowed: set[str]) -> None:
    body = b'{"log_info":false,"trace_rate":"1","key":"/k","offset":0,"byte_size":8}' if method == "POST" else b""
    for key in (INFER, READ, CONTROL):
        rig = Rig()
        rig.port.hold = True
        exchange = rig.ask(method, target, key, body)
        statuses = [answer[0] for answer in exchange.answers]
        # The engine was asked, or it answered.
        assert (statuses in ([], [200])) if key in allowed else statuses == [403], (key, exchange.answers)


def test_inference_needs_its_role() -> None:
    rig = Rig()
    body = b'{"inputs":[{"name":"i","datatype":"INT32","shape":[1],"data":[1]}]}'
    rig.ask("POST", "/v2/models/m/infer", INFER, body)
    assert len(rig.port.inferences) == 1
    for key in (READ, CONTROL):
        exchange = rig.ask("POST", "/v2/models/m/infer", key, LARGE)
        assert exchange.status == 403
        assert error_of(exchange).endswith("may not send inferences; the role 'infer' allows it")
    # Nobody has parsed the bodies.
    assert len(rig.offload) == 0
    assert len(rig.port.inferences) == 1


def test_settings_that_are_read_need_no_control() -> None:
    rig = Rig()
    rig.port.answers[LogSettings()] = NotFound("x")
    assert rig.ask("POST", "/v2/logging", READ, b"{}").status == 404


def test_too_many_requests() -> None:
    rig = Rig()
    for _ in range(50):
        assert rig.ask("GET", "/v2/health/live", INFER).status == 200
    exchange = rig.ask("GET", "/v2/health/live", INFER)
    assert (exchange.status, error_of(exchange)) == (429, "'app' may send 1 requests per second")
    assert b"Retry-After: 1\r\n" in exchange.answer[1]
    assert rig.ask("GET", "/v2/health/live", READ).status == 200


def test_restricted_api_still_wants_its_own_header() -> None:
    rig = Rig({"statistics": ("secret", "s")})
    exchange = rig.ask("GET", "/v2/models/stats", READ)
    assert (exchange.status, error_of(exchange)) == (403, "This API is restricted, expecting header 'secret'")
    assert error_of(rig.ask("GET", "/v2/models/stats", INFER, secret="s")).startswith("'app' may not read")


def test_page_shows_what_its_reader_may_see() -> None:
    rig = Rig()
    assert b"restricted" in rig.ask("GET", "/", INFER, accept="text/html").body_sent
    assert b"restricted" not in rig.ask("GET", "/", READ, accept="text/html").body_sent
    assert rig.ask("GET", "/", accept="text/html").status == 401


def test_metrics_port() -> None:
    rig = Rig()

    def scrape(key: str = "") -> FakeExchange:
        exchange = (
            FakeExchange("GET", "/metrics", authorization=f"Bearer {key}") if key else FakeExchange("GET", "/metrics")
        )
        rig.metrics(exchange)
        return exchange

    assert scrape(READ).status == 200
    assert scrape(INFER).status == 403
    assert scrape().status == 401


def test_change_of_the_file_counts_for_the_next_request() -> None:
    rig = Rig()
    assert rig.ask("POST", "/v2/repository/index", READ).status == 200
    rig.guard.replace({**IDENTITIES, "grafana": Identity("grafana", ("metrics",), (READ_STORED,))})
    assert rig.ask("POST", "/v2/repository/index", READ).status == 403
    rig.guard.replace({})
    assert rig.ask("GET", "/v2/health/live", READ).status == 401
    assert rig.ask("GET", "/v2/health/live").status == 401
