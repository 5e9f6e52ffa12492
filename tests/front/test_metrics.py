"""The metrics port between a fake engine and a fake connection."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from halimede.engine_port import MetricFamily, Metrics, Query
from halimede.errors import Error, Unavailable
from halimede.front.access import Access
from halimede.front.http.service import HttpService
from halimede.front.metrics import MetricsScrapes, MetricsService
from tests.front.fakes import FakePort
from tests.front.http_fakes import FakeExchange, HeldOffload

A = TypeVar("A")


TYPE = b"Content-Type: text/plain; charset=utf-8\r\n"
FAMILIES = [MetricFamily("nv_count", "Number of things", "counter", (({"model": "m"}, 3.0),))]
EXPOSED = b'# HELP nv_count Number of things\n# TYPE nv_count counter\nnv_count{model="m"} 3\n'


def port_with_metrics() -> FakePort:
    port = FakePort()
    port.answers[Metrics()] = FAMILIES
    return port


def asked(port: FakePort, method: str, target: str) -> FakeExchange:
    exchange = FakeExchange(method, target)
    MetricsService(MetricsScrapes(port)).handle(exchange)
    return exchange


@pytest.mark.parametrize("target", ["/metrics", "/metrics?name=nv_count"])
def test_metrics_are_answered_as_text(target: str) -> None:
    assert asked(port_with_metrics(), "GET", target).answer == (200, TYPE, EXPOSED)


def test_metrics_are_answered_when_the_engine_says_them() -> None:
    port = port_with_metrics()
    port.hold = True
    exchange = asked(port, "GET", "/metrics")
    assert exchange.answers == []
    port.answer_held()
    assert exchange.answer == (200, TYPE, EXPOSED)


def test_metrics_that_cannot_be_had_are_an_error() -> None:
    port = FakePort()
    port.answers[Metrics()] = Unavailable("Server exiting")
    assert asked(port, "GET", "/metrics").answer == (500, TYPE, b"Server exiting")


@pytest.mark.parametrize("target", ["/", "/metrics/", "/metric", "/metricsx", "/v2/health/live", "/x?a=/metrics"])
def test_other_paths_are_empty(target: str) -> None:
    port = FakePort()
    port.hold = True
    assert asked(port, "GET", target).answer == (200, TYPE, b"")
    assert port.asked == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("target", ["/metrics", "/elsewhere"])
def test_other_methods_are_refused(method: str, target: str) -> None:
    port = FakePort()
    port.hold = True
    assert asked(port, method, target).answer == (405, TYPE, b"")
    assert port.asked == []


OPEN_TYPE = b"Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"


def test_openmetrics_are_answered_to_who_asks_for_them() -> None:
    exchange = FakeExchange("GET", "/metrics", accept="application/openmetrics-text;version=1.0.0,*/*;q=0.1")
    MetricsService(MetricsScrapes(port_with_metrics())).handle(exchange)
    assert exchange.answer == (200, OPEN_TYPE, EXPOSED.replace(b" counter\n", b" unknown\n") + b"# EOF\n")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class SlowPort(FakePort):
    """A port whose metrics take 20 ms of the loop each time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.times = 0
        self.answers[Metrics()] = FAMILIES

    def ask(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        self.clock.now += 0.02
        self.times += 1
        super().ask(query, done)


def test_many_scrapes_take_a_tenth_of_the_time_and_are_all_answered() -> None:
    clock = Clock()
    port = SlowPort(clock)
    front = MetricsService(MetricsScrapes(port, clock))
    began, scrapes = clock.now, 1000
    for _ in range(scrapes):  # a hundred a second
        exchange = FakeExchange("GET", "/metrics")
        front.handle(exchange)
        assert exchange.answer == (200, TYPE, EXPOSED)
        clock.now += 0.01
    spent = 0.02 * port.times
    assert 0.09 < spent / (clock.now - began) < 0.12


def test_scrapes_within_the_budget_are_each_fresh() -> None:
    clock = Clock()
    port = SlowPort(clock)
    front = MetricsService(MetricsScrapes(port, clock))
    for _ in range(20):
        front.handle(FakeExchange("GET", "/metrics"))
        clock.now += 0.2
    assert port.times == 20


def test_each_form_has_a_text_of_its_own() -> None:
    clock = Clock()
    front = MetricsService(MetricsScrapes(SlowPort(clock), clock))
    accept = {"accept": "application/openmetrics-text"}
    types = []
    for number in range(40):
        exchange = FakeExchange("GET", "/metrics", b"", **(accept if number % 2 else {}))
        front.handle(exchange)
        types.append(exchange.answer[1])
    assert types == [TYPE, OPEN_TYPE] * 20


def test_metrics_on_the_http_port_are_there_by_choice() -> None:
    port = port_with_metrics()
    for scrapes, status in ((MetricsScrapes(port), 200), (None, 404)):
        exchange = FakeExchange("GET", "/metrics")
        HttpService(port, HeldOffload(), 1 << 20, scrapes=scrapes).handle(exchange)
        assert exchange.answer[0] == status
    exchange = FakeExchange("POST", "/metrics")
    HttpService(port, HeldOffload(), 1 << 20, scrapes=MetricsScrapes(port)).handle(exchange)
    assert exchange.answer[0] == 405


def test_metrics_on_the_http_port_are_restricted_like_statistics() -> None:
    port = port_with_metrics()
    front = HttpService(
        port, HeldOffload(), 1 << 20, Access({"statistics": ("key", "x")}), scrapes=MetricsScrapes(port)
    )
    for headers, status in (({}, 403), ({"key": "x"}, 200)):
        exchange = FakeExchange("GET", "/metrics", b"", **headers)
        front.handle(exchange)
        assert exchange.answer[0] == status
