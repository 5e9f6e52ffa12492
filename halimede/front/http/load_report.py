"""The header `endpoint-load-metrics` of an inference, if its client asks how loaded the model is (H138).

Event-loop thread only.
"""

from collections.abc import Sequence
from typing import Final

from halimede.engine_port import EnginePort, MetricFamily, Metrics
from halimede.errors import Error
from halimede.front.http.handling import AnswerStream, ExchangeWrapper, Streamable
from halimede.tensors import Buffer
from halimede.wire.http.load_report import FAMILY, load_report

LOAD_FORMAT: Final = b"endpoint-load-metrics-format"
"""The header by which a client asks."""


class LoadReportingExchange(ExchangeWrapper[Streamable]):
    """Adds the load of the model to an answer, unless it is an error, in the form that the client asked for."""

    __slots__ = ("_form", "_model", "_port")

    def __init__(self, exchange: Streamable, form: bytes, port: EnginePort, model: str) -> None:
        super().__init__(exchange)
        self._form = form
        self._port = port
        self._model = model

    def succeed(self, fields: bytes, body: Sequence[Buffer]) -> None:
        def answered(families: list[MetricFamily] | Error) -> None:
            self._exchange.respond(200, fields + self._line(families), body)

        self._port.ask(Metrics(FAMILY), answered)

    def begin(self, status: int, fields: bytes) -> AnswerStream:
        """Begins an answer in parts. If the engine does not answer at once, the header is left out, because the first
        part must not wait."""
        lines: list[bytes] = []
        # Errors have no report.
        if status == 200:
            self._port.ask(Metrics(FAMILY), lambda families: lines.append(self._line(families)))
        return self._exchange.begin(status, fields + b"".join(lines))

    def _line(self, families: list[MetricFamily] | Error) -> bytes:
        report = None if isinstance(families, Error) else load_report(self._form, families, self._model)
        return b"" if report is None else b"endpoint-load-metrics: %b\r\n" % report
