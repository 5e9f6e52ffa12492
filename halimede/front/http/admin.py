"""The HTTP routes other than inference. Each is one row: request to question, answer to body.

Holds an engine port and no state. Event-loop thread only; large bodies are read and written on another
thread.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from halimede.engine_port import (
    EnginePort,
    LogSettings,
    ModelConfiguration,
    ModelMetadata,
    ModelReady,
    ModelStatistics,
    Query,
    ServerLive,
    ServerMetadata,
    ServerReady,
    TraceSettings,
)
from halimede.errors import Error, Internal
from halimede.front.access import Access, Category
from halimede.front.http.handling import (
    GET,
    JSON,
    MAX_WRITTEN_ON_LOOP,
    PLAIN,
    POST,
    HttpExchange,
    Route,
    RouteHandler,
    ask,
    refuse,
    run_offloaded,
    with_body_read,
)
from halimede.front.http.openapi import describe
from halimede.front.offload import Offload, is_longer
from halimede.identities.roles import Right
from halimede.wire.http import admin as bodies
from halimede.wire.http import metadata as wire
from halimede.wire.http.infer import parse_version

log = logging.getLogger(__name__)

A = TypeVar("A")

MODEL = r"/v2/models/([^/]+)(?:/versions/([0-9]+))?"
_REPOSITORY = r"/v2/repository(?:/([^/]+))?"

Read = Callable[[HttpExchange, str, str], Query[A]]
"""Returns the question that a request asks, given the two names in its path. Raises Error. Any thread."""
Written = tuple[int, bytes, bytes]
"""Status, header fields and body."""


class HttpAdmin:
    """The rows of the route table. `max_input_size` is the limit of JSON (H17). `access` says what is restricted,
    which the description of the API tells."""

    def __init__(self, port: EnginePort, offload: Offload, max_input_size: int, access: Access) -> None:
        self._access = access
        self._port = port
        self._offload = offload
        self._limit = max_input_size

    def routes(self) -> tuple[Route, ...]:
        """Returns the rows in the order in which they are tried (H1)."""
        return (*self._of_models(), *self._of_server(), *self._of_repositories(), *self._of_settings())

    def _of_models(self) -> Iterator[Route]:
        """Yields the rows of models. A model named `stats` cannot be reached by the first one (H2)."""
        statistics = self._model(ModelStatistics, wire.encode_statistics)
        config = self._model(ModelConfiguration, lambda info: info.json.encode())
        ready = self._asking(_of_model(ModelReady), _model_ready, PLAIN)
        yield Route(r"/v2/models/stats()()", GET, Category.STATISTICS, statistics)
        yield Route(MODEL + "/ready", GET, Category.HEALTH, ready, PLAIN)
        yield Route(MODEL + "/config", GET, Category.MODEL_CONFIG, config)
        yield Route(MODEL + "/stats", GET, Category.STATISTICS, statistics)
        yield Route(MODEL, GET, Category.METADATA, self._model(ModelMetadata, wire.encode_model_metadata))

    def _of_server(self) -> Iterator[Route]:
        access = self._access
        metadata = self._asking(lambda *_: ServerMetadata(), _json(wire.encode_server_metadata))
        openapi = self._asking(
            lambda *_: ServerMetadata(),
            _json(lambda info: describe(info.name, info.version, access.keys, access.caller is not None)),
        )
        yield Route(r"/v2()()", GET, Category.METADATA, metadata)
        yield Route(r"/v2/openapi\.json()()", GET, Category.METADATA, openapi)
        yield Route(r"/v2/health/live()()", GET, Category.HEALTH, self._health(ServerLive()), PLAIN)
        yield Route(r"/v2/health/ready()()", GET, Category.HEALTH, self._health(ServerReady()), PLAIN)

    def _of_repositories(self) -> Iterator[Route]:
        limit = self._limit
        index = self._asking(lambda e, *_: bodies.read_index(e.body, limit), _json(bodies.write_index))
        load = self._asking(lambda e, repo, name: bodies.read_load(repo, name, e.body, limit, e.peer), _done)
        unload = self._asking(lambda e, repo, name: bodies.read_unload(repo, name, e.body, limit), _done)
        yield Route(_REPOSITORY + "/index()", POST, Category.MODEL_REPOSITORY, index, right=Right.STATE)
        for word, handle in (("load", load), ("unload", unload)):
            path = f"{_REPOSITORY}/models/([^/]+)/{word}"
            yield Route(path, POST, Category.MODEL_REPOSITORY, handle, right=Right.CONTROL)

    def _of_settings(self) -> Iterator[Route]:
        traced = self._asking(self._trace_settings, _json(bodies.write_trace_settings))
        logged = self._asking(self._log_settings, _json(bodies.write_log_settings))
        yield Route(r"/v2(?:/models/([^/]+))?()/trace/setting", GET | POST, Category.TRACE, traced)
        yield Route(r"/v2/logging()()", GET | POST, Category.LOGGING, logged)

    def _trace_settings(self, exchange: HttpExchange, model: str, nothing: str) -> TraceSettings:
        # GET asks for the settings, POST changes them and answers with all of them.
        if exchange.method == b"GET":
            return TraceSettings(model)
        return bodies.read_trace_settings(model, exchange.body, self._limit)

    def _log_settings(self, exchange: HttpExchange, *nothing: str) -> LogSettings:
        return LogSettings() if exchange.method == b"GET" else bodies.read_log_settings(exchange.body, self._limit)

    # How a row is answered.

    def _asking(self, read: Read[A], write: Callable[[A], Written], fields: bytes = JSON) -> RouteHandler:
        """Returns a handler that asks what `read` makes of the request, and answers what `write` makes of the answer.
        `fields` are the header fields of an error."""

        def asked(exchange: HttpExchange, query: Query[A] | Error) -> None:
            # The body was malformed, or an argument is wrong.
            if isinstance(query, Error):
                refuse(exchange, query, fields)
            else:
                ask(self._port, exchange, query, lambda answer: answered(exchange, answer), fields)

        def answered(exchange: HttpExchange, answer: A) -> None:
            # Statistics of a thousand models take 30 ms to write.
            if is_longer(answer, MAX_WRITTEN_ON_LOOP):
                run_offloaded(self._offload, exchange, partial(write, answer), partial(wrote, exchange))
                return
            try:
                written = write(answer)
            except Exception:
                # An answer may come later, when the connection does not catch errors of its handler any more.
                log.exception("failed to encode the answer to %s", exchange.target)
                refuse(exchange, Internal("the server failed to write the answer"), fields)
            else:
                _respond(exchange, written)

        def wrote(exchange: HttpExchange, written: Written | Error) -> None:
            if isinstance(written, Error):
                refuse(exchange, written, fields)
            else:
                _respond(exchange, written)

        def handle(exchange: HttpExchange, first: str, second: str) -> None:
            with_body_read(self._offload, exchange, partial(read, exchange, first, second), partial(asked, exchange))

        return handle

    def _model(self, query: Callable[[str, int], Query[A]], encode: Callable[[A], bytes]) -> RouteHandler:
        return self._asking(_of_model(query), _json(encode))

    def _health(self, query: Query[bool]) -> RouteHandler:
        return self._asking(lambda *_: query, lambda fine: (200 if fine else 400, PLAIN, b""), PLAIN)


def _of_model(query: Callable[[str, int], Query[A]]) -> Read[A]:
    return lambda exchange, model, version: query(model, parse_version(version))


def _json(encode: Callable[[A], bytes]) -> Callable[[A], Written]:
    return lambda answer: (200, JSON, encode(answer))


def _done(answer: None) -> Written:
    return 200, JSON, b""


def _model_ready(ready: bool) -> Written:
    return (200, PLAIN, b"") if ready else (400, PLAIN, b'{"error":"Model version not ready"}')


def _respond(exchange: HttpExchange, written: Written) -> None:
    status, fields, body = written
    exchange.respond(status, fields, (body,) if body else ())
