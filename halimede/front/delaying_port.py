"""An engine port that delays its answers, so that operators can test how their gRPC clients wait (G40).

Used if the environment variable `TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC` is set. Event-loop thread only.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from halimede.engine_port import EnginePort, ModelTransaction, Query
from halimede.errors import Error
from halimede.requests import InferRequest, Reply
from halimede.transport.event_loop import CallLater

A = TypeVar("A")


class DelayingPort:
    """Delays each answer to a question by `seconds`. Inferences are not delayed, nor are questions that belong
    to them."""

    def __init__(self, port: EnginePort, seconds: float, call_later: CallLater) -> None:
        self._port = port
        self._seconds = seconds
        self._call_later = call_later

    def infer(self, request: InferRequest, reply: Reply) -> int:
        return self._port.infer(request, reply)

    def cancel(self, key: int) -> None:
        self._port.cancel(key)

    def ask(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        def answered(answer: A | Error) -> None:
            self._call_later(self._seconds, partial(done, answer))

        # Inference itself asks this question, and inferences are not delayed.
        self._port.ask(query, done if type(query) is ModelTransaction else answered)
