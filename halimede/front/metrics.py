"""The metrics: `GET /metrics` on their own port and, if the operator chooses, on the HTTP port. Event-loop
thread only."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from time import monotonic

from halimede.engine_port import EnginePort, Histogram, MetricFamily, Metrics
from halimede.errors import Error
from halimede.front.access import Category
from halimede.front.http.handling import GET, HttpExchange, Route, RouteHandler, refuse
from halimede.front.offload import Offload
from halimede.identities.guard import Caller
from halimede.identities.roles import Right
from halimede.wire.prometheus import OPENMETRICS, TEXT, encode_metrics, encode_openmetrics, wants_openmetrics

TEXT_FIELDS = b"Content-Type: %b\r\n" % TEXT
"""Header fields of Prometheus' text format."""
OPENMETRICS_FIELDS = b"Content-Type: %b\r\n" % OPENMETRICS
"""Header fields of OpenMetrics."""

MAX_SHARE = 0.1
"""Largest share of the time in which scrapes are being answered."""
BURST_SECONDS = 0.1
"""Seconds that answers may take at once, after a quiet time."""
MAX_WRITTEN_ON_LOOP = 2000
"""Lines that the event loop writes, which takes 2 ms."""
SLICE_SECONDS = 0.001
"""Time in a turn of the loop for sending a text to those that wait for it. The kernel copies what it takes of a long
one, which takes 0.1 ms for each client."""


class MetricsScrapes:
    """Answers requests for the metrics, with the values of a moment after they arrived.

    If scrapes exceed their share of the time, further ones wait until the excess is made up for, and are then answered
    together. So do those that arrive while others are being answered.
    """

    def __init__(
        self,
        port: EnginePort,
        call_later: Callable[[float, Callable[[], None]], object],
        offload: Offload,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._port = port
        self._call_later = call_later
        self._offload = offload
        self._clock = clock
        self._left = BURST_SECONDS
        self._looked_at = clock()
        self._answering = False
        self._waiting: list[HttpExchange] = []

    def answer(self, exchange: HttpExchange) -> None:
        # The last text would be less work, but a client that scrapes after its inference misses it there.
        self._waiting.append(exchange)
        if len(self._waiting) == 1 and not self._answering:
            self._answer_in_time()

    def _answer_in_time(self) -> None:
        """Answers those that wait, now or as soon as the share allows."""
        # A token bucket whose tokens are seconds.
        now = self._clock()
        self._left = min(BURST_SECONDS, self._left + MAX_SHARE * (now - self._looked_at))
        self._looked_at = now
        if self._left <= 0:
            self._call_later(-self._left / MAX_SHARE, self._answer_waiting)
        else:
            self._answer_waiting()

    def _answer_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._answering = True
        began = self._clock()
        self._port.ask(Metrics(), lambda answer: self._write(waiting, began, answer))

    def _write(self, exchanges: Sequence[HttpExchange], began: float, answer: list[MetricFamily] | Error) -> None:
        # Neither the answer nor the text of thousands of models is made in one turn of the loop.
        respond = partial(self._respond, exchanges, began)
        if isinstance(answer, Error):
            respond(answer)
            return
        formats = {wants_openmetrics(exchange.headers.get(b"accept")) for exchange in exchanges}
        write = partial(_texts, answer, formats)
        if _is_long(answer):
            self._offload(write, respond)
        else:
            respond(write())

    def _respond(self, exchanges: Sequence[HttpExchange], began: float, texts: Mapping[bool, bytes] | Error) -> None:
        self._left -= self._clock() - began
        self._send(deque(exchanges), texts)

    def _send(self, exchanges: deque[HttpExchange], texts: Mapping[bool, bytes] | Error) -> None:
        end = self._clock() + SLICE_SECONDS
        while exchanges:
            exchange = exchanges.popleft()
            if isinstance(texts, Error):
                exchange.respond(500, TEXT_FIELDS, (texts.message.encode(),))
            else:
                is_open = wants_openmetrics(exchange.headers.get(b"accept"))
                exchange.respond(200, OPENMETRICS_FIELDS if is_open else TEXT_FIELDS, (texts[is_open],))
            if exchanges and self._clock() >= end:
                self._call_later(0.0, partial(self._send, exchanges, texts))
                return
        self._answering = False
        # An answered client may have asked again meanwhile.
        if self._waiting:
            self._answer_in_time()

    def route(self) -> Route:
        """Returns the route for the HTTP port. It belongs to the category of statistics."""
        handle: RouteHandler = lambda exchange, _, __: self.answer(exchange)  # noqa: E731
        return Route("/metrics()()", GET, Category.STATISTICS, handle, right=Right.METRICS)


def _is_long(families: Iterable[MetricFamily]) -> bool:
    """Whether writing the families takes long."""
    lines = 0
    for family in families:
        lines += len(family.series)
        # Not all histograms are looked at if there are tens of thousands.
        if family.kind == "histogram" and lines <= MAX_WRITTEN_ON_LOOP:
            lines += sum(len(value.bounds) for _, value in family.series if isinstance(value, Histogram))
        if lines > MAX_WRITTEN_ON_LOOP:
            return True
    return False


def _texts(families: Sequence[MetricFamily], formats: Set[bool]) -> Mapping[bool, bytes]:
    """The text in OpenMetrics' format (True), in Prometheus' (False) or both. Any thread."""
    return {is_open: (encode_openmetrics if is_open else encode_metrics)(families) for is_open in formats}


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
