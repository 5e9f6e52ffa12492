"""The metrics: `GET /metrics` on their own port and, if the operator chooses, on the HTTP port. Event-loop
thread only."""

from collections.abc import Callable, Sequence
from time import monotonic

from halimede.engine_port import EnginePort, MetricFamily, Metrics
from halimede.errors import Error
from halimede.front.access import Category
from halimede.front.http.handling import GET, HttpExchange, Route, RouteHandler, refuse
from halimede.identities.guard import Caller
from halimede.identities.roles import Right
from halimede.wire.prometheus import OPENMETRICS, TEXT, encode_metrics, encode_openmetrics, wants_openmetrics

TEXT_FIELDS = b"Content-Type: %b\r\n" % TEXT
"""Header fields of Prometheus' text format."""
OPENMETRICS_FIELDS = b"Content-Type: %b\r\n" % OPENMETRICS
"""Header fields of OpenMetrics."""

MAX_LOOP_SHARE = 0.1
"""Largest share of the loop's time for all scrapes together."""
BURST_SECONDS = 0.1
"""Seconds that scrapes may take at once, after a quiet time."""


class MetricsScrapes:
    """Answers requests for the metrics, with the values of a moment after they arrived.

    If scrapes exceed their share of the loop's time, further ones wait until the excess is made up for, and are then
    answered together.
    """

    def __init__(
        self,
        port: EnginePort,
        call_later: Callable[[float, Callable[[], None]], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._port = port
        self._call_later = call_later
        self._clock = clock
        self._left = BURST_SECONDS
        self._looked_at = clock()
        self._waiting: list[HttpExchange] = []

    def answer(self, exchange: HttpExchange) -> None:
        # A token bucket whose tokens are seconds of the loop.
        now = self._clock()
        self._left = min(BURST_SECONDS, self._left + MAX_LOOP_SHARE * (now - self._looked_at))
        self._looked_at = now
        # The last text would be less work, but a client that scrapes after its inference misses it there.
        if self._left <= 0 or self._waiting:
            if not self._waiting:
                self._call_later(-self._left / MAX_LOOP_SHARE, self._answer_waiting)
            self._waiting.append(exchange)
            return
        self._ask([exchange])

    def _answer_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._ask(waiting)

    def _ask(self, exchanges: Sequence[HttpExchange]) -> None:
        began = self._clock()
        self._port.ask(Metrics(), lambda answer: self._made(exchanges, answer))
        self._left -= self._clock() - began

    def _made(self, exchanges: Sequence[HttpExchange], answer: list[MetricFamily] | Error) -> None:
        texts: dict[bool, bytes] = {}
        for exchange in exchanges:
            if isinstance(answer, Error):
                exchange.respond(500, TEXT_FIELDS, (answer.message.encode(),))
                continue
            is_open = wants_openmetrics(exchange.headers.get(b"accept"))
            if is_open not in texts:
                texts[is_open] = (encode_openmetrics if is_open else encode_metrics)(answer)
            exchange.respond(200, OPENMETRICS_FIELDS if is_open else TEXT_FIELDS, (texts[is_open],))

    def route(self) -> Route:
        """Returns the route for the HTTP port. It belongs to the category of statistics."""
        handle: RouteHandler = lambda exchange, _, __: self.answer(exchange)  # noqa: E731
        return Route("/metrics()()", GET, Category.STATISTICS, handle, right=Right.METRICS)


class MetricsService:
    """The metrics port. `handle` is the handler of its listener. Another path gets an empty answer, another method
    status 405, as in Triton (contract, section 8)."""

    def __init__(self, scrapes: MetricsScrapes) -> None:
        self._scrapes = scrapes

    def handle(self, exchange: HttpExchange) -> None:
        if exchange.method != b"GET":
            exchange.respond(405, TEXT_FIELDS, ())
        elif exchange.target.partition(b"?")[0] != b"/metrics":
            exchange.respond(200, TEXT_FIELDS, ())
        else:
            self._scrapes.answer(exchange)


class MetricsOfCaller:
    """The metrics port for one caller (`--auth`)."""

    def __init__(self, service: MetricsService, caller: Caller) -> None:
        self._service = service
        self._refusal = caller.refusal((Right.METRICS,))

    def handle(self, exchange: HttpExchange) -> None:
        if self._refusal is not None:
            refuse(exchange, self._refusal)
        else:
            self._service.handle(exchange)
