"""The metrics port between a fake engine and a fake connection."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from halimede.engine_port import Histogram, MetricFamily, Metrics, Query
from halimede.errors import Error, Unavailable
from halimede.front.access import Access
from halimede.front.http.service import HttpService
from halimede.front.metrics import MAX_WRITTEN_ON_LOOP, MetricsScrapes, MetricsService
from halimede.front.offload import at_once
from halimede.tensors import Buffer
from tests.front.fakes import FakePort
from tests.front.http_fakes import FakeExchange, HeldOffload, no_timer

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
    MetricsService(MetricsScrapes(port, no_timer, at_once)).handle(exchange)
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
    MetricsService(MetricsScrapes(port_with_metrics(), no_timer, at_once)).handle(exchange)
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


class Timers:
    """Calls what is due when the clock is moved."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._due.append((self._clock.now + seconds, callback))

    def move(self, seconds: float) -> None:
        self._clock.now += seconds
        due = [each for each in self._due if each[0] <= self._clock.now]
        self._due = [each for each in self._due if each not in due]
        for _, callback in due:
            callback()


def test_many_scrapes_take_a_tenth_of_the_time_and_are_all_answered() -> None:
    clock = Clock()
    port, timers = SlowPort(clock), Timers(clock)
    front = MetricsService(MetricsScrapes(port, timers.call_later, at_once, clock))
    began = clock.now
    exchanges = [FakeExchange("GET", "/metrics") for _ in range(1000)]
    for exchange in exchanges:  # a hundred a second
        front.handle(exchange)
        timers.move(0.01)
    spent = 0.02 * port.times
    assert 0.09 < spent / (clock.now - began) < 0.12
    timers.move(0.2)
    assert all(exchange.answer == (200, TYPE, EXPOSED) for exchange in exchanges)


def test_scrapes_within_the_budget_are_answered_at_once() -> None:
    clock = Clock()
    port, timers = SlowPort(clock), Timers(clock)
    front = MetricsService(MetricsScrapes(port, timers.call_later, at_once, clock))
    for number in range(20):
        exchange = FakeExchange("GET", "/metrics")
        front.handle(exchange)
        assert (exchange.answer, port.times) == ((200, TYPE, EXPOSED), number + 1)
        timers.move(0.2)


def test_scrapes_beyond_the_budget_see_what_happened_before_them() -> None:
    clock = Clock()
    port, timers = SlowPort(clock), Timers(clock)
    front = MetricsService(MetricsScrapes(port, timers.call_later, at_once, clock))
    for _ in range(6):  # a burst
        front.handle(FakeExchange("GET", "/metrics"))
    port.answers[Metrics()] = [MetricFamily("nv_count", "Number of things", "counter", (({"model": "m"}, 4.0),))]
    texts = [FakeExchange("GET", "/metrics") for _ in range(2)]
    opened = FakeExchange("GET", "/metrics", accept="application/openmetrics-text")
    for exchange in (*texts, opened):
        front.handle(exchange)
    assert [exchange.answers for exchange in (*texts, opened)] == [[], [], []]
    timers.move(0.2)
    assert port.times == 7
    assert [exchange.answer[1:] for exchange in texts] == [(TYPE, EXPOSED.replace(b" 3", b" 4"))] * 2
    assert opened.answer[1] == OPEN_TYPE


def test_waiting_scrapes_of_a_server_that_ends_are_answered() -> None:
    clock = Clock()
    port, timers = SlowPort(clock), Timers(clock)
    front = MetricsService(MetricsScrapes(port, timers.call_later, at_once, clock))
    for _ in range(6):
        front.handle(FakeExchange("GET", "/metrics"))
    port.answers[Metrics()] = Unavailable("Server exiting")
    exchange = FakeExchange("GET", "/metrics")
    front.handle(exchange)
    timers.move(0.2)
    assert exchange.answer == (500, TYPE, b"Server exiting")


def test_scrapes_that_arrive_during_an_answer_are_answered_together_after_it() -> None:
    clock = Clock()
    port, timers = SlowPort(clock), Timers(clock)
    front = MetricsService(MetricsScrapes(port, timers.call_later, at_once, clock))
    exchanges = [FakeExchange("GET", "/metrics") for _ in range(4)]
    port.hold = True
    for exchange in exchanges:
        front.handle(exchange)
    assert port.times == 1
    port.hold = False
    port.answer_held()
    assert (port.times, [exchange.answer for exchange in exchanges]) == (2, [(200, TYPE, EXPOSED)] * 4)


class SlowExchange(FakeExchange):
    """An exchange whose answer takes 0.4 ms of the loop, as a text of a megabyte does."""

    clock: Clock

    def respond(self, status: int, fields: bytes, body: Sequence[Buffer]) -> None:
        self.clock.now += 0.0004
        super().respond(status, fields, body)


def test_text_is_sent_to_those_that_wait_in_several_turns() -> None:
    clock = Clock()
    port, timers = port_with_metrics(), Timers(clock)
    port.hold = True
    front = MetricsService(MetricsScrapes(port, timers.call_later, at_once, clock))
    exchanges = [SlowExchange("GET", "/metrics") for _ in range(8)]
    for exchange in exchanges:
        exchange.clock = clock
        front.handle(exchange)
    port.answer_held()
    port.answer_held()
    for count in (4, 7, 8):
        assert sum(bool(exchange.answers) for exchange in exchanges) == count
        timers.move(0.0)


@pytest.mark.parametrize("number", [MAX_WRITTEN_ON_LOOP, MAX_WRITTEN_ON_LOOP + 1])
def test_long_metrics_are_written_on_another_thread(number: int) -> None:
    port, offload = FakePort(), HeldOffload()
    series = tuple(({"model": str(i)}, float(i)) for i in range(number))
    port.answers[Metrics()] = [MetricFamily("nv_count", "", "counter", series)]
    exchange = FakeExchange("GET", "/metrics")
    MetricsService(MetricsScrapes(port, no_timer, offload)).handle(exchange)
    assert bool(exchange.answers) == (number == MAX_WRITTEN_ON_LOOP)
    if offload:
        offload.run()
    status, _, body = exchange.answer
    assert (status, body.count(b"\n")) == (200, number + 1)


def test_buckets_of_histograms_count_as_lines() -> None:
    port, offload = FakePort(), HeldOffload()
    bounds = tuple(map(float, range(MAX_WRITTEN_ON_LOOP)))
    series = (({"model": "m"}, Histogram(bounds, (0,) * len(bounds), 0.0)),)
    port.answers[Metrics()] = [MetricFamily("mine", "", "histogram", series)]
    exchange = FakeExchange("GET", "/metrics")
    MetricsService(MetricsScrapes(port, no_timer, offload)).handle(exchange)
    assert not exchange.answers
    offload.run()
    assert exchange.answer[0] == 200


def test_metrics_on_the_http_port_are_there_by_choice() -> None:
    port = port_with_metrics()
    for scrapes, status in ((MetricsScrapes(port, no_timer, at_once), 200), (None, 404)):
        exchange = FakeExchange("GET", "/metrics")
        HttpService(port, HeldOffload(), 1 << 20, scrapes=scrapes).handle(exchange)
        assert exchange.answer[0] == status
    exchange = FakeExchange("POST", "/metrics")
    HttpService(port, HeldOffload(), 1 << 20, scrapes=MetricsScrapes(port, no_timer, at_once)).handle(exchange)
    assert exchange.answer[0] == 405


def test_metrics_on_the_http_port_are_restricted_like_statistics() -> None:
    port = port_with_metrics()
    front = HttpService(
        port,
        HeldOffload(),
        1 << 20,
        Access({"statistics": ("key", "x")}),
        scrapes=MetricsScrapes(port, no_timer, at_once),
    )
    for headers, status in (({}, 403), ({"key": "x"}, 200)):
        exchange = FakeExchange("GET", "/metrics", b"", **headers)
        front.handle(exchange)
        assert exchange.answer[0] == status
