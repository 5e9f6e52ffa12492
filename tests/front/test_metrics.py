"""The metrics port between a fake engine and a fake connection."""

import pytest

from halimede.errors import Unavailable
from halimede.front.metrics import MetricsFront
from halimede.service.port import MetricFamily, Metrics
from tests.front.fakes import FakePort
from tests.front.http_fakes import FakeExchange

TYPE = b"Content-Type: text/plain; charset=utf-8\r\n"
FAMILIES = [MetricFamily("nv_count", "Number of things", "counter", (({"model": "m"}, 3.0),))]
EXPOSED = b'# HELP nv_count Number of things\n# TYPE nv_count counter\nnv_count{model="m"} 3\n'


def port_with_metrics() -> FakePort:
    port = FakePort()
    port.answers[Metrics()] = FAMILIES
    return port


def asked(port: FakePort, method: str, target: str) -> FakeExchange:
    exchange = FakeExchange(method, target)
    MetricsFront(port).handle(exchange)
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
