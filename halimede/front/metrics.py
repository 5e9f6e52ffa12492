"""The metrics port: `GET /metrics`, and nothing else. Event-loop thread only."""

from halimede.errors import Error
from halimede.front.http_handling import Exchange
from halimede.service.port import EnginePort, MetricFamily, Metrics
from halimede.wire.prometheus import encode_metrics

TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"


class MetricsFront:
    """`handle` is the handler of the transport's listener. Other paths are empty, other methods refused, as in the
    contract's section 8."""

    def __init__(self, port: EnginePort) -> None:
        self._port = port

    def handle(self, exchange: Exchange) -> None:
        if exchange.method != b"GET":
            exchange.respond(405, TEXT, ())
        elif exchange.target.partition(b"?")[0] != b"/metrics":
            exchange.respond(200, TEXT, ())
        else:
            self._port.ask(Metrics(), lambda answer: self._answer(exchange, answer))

    @staticmethod
    def _answer(exchange: Exchange, answer: list[MetricFamily] | Error) -> None:
        if isinstance(answer, Error):
            exchange.respond(500, TEXT, (answer.message.encode(),))
        else:
            exchange.respond(200, TEXT, (encode_metrics(answer),))
