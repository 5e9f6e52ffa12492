"""The HTTP front end: which path means what, which error is which status, and how an inference is answered.

Holds an engine port and no socket; the transport hands it whole requests as `Exchange`s. Event-loop thread only; large
JSON is decoded and encoded on another thread (see `Offload`).
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from halimede.errors import (
    AlreadyExists,
    Cancelled,
    DecoupledModel,
    Error,
    Internal,
    Invalid,
    NotFound,
    Unavailable,
    Unknown,
    Unsupported,
)
from halimede.requests import Answer, InferRequest, Resume
from halimede.service.port import (
    EnginePort,
    ModelConfiguration,
    ModelMetadata,
    ModelReady,
    ModelStatistics,
    ModelTransaction,
    Query,
    ServerLive,
    ServerMetadata,
    ServerReady,
)
from halimede.tensors import Buffer
from halimede.wire import http as wire

log = logging.getLogger(__name__)

JSON = b"Content-Type: application/json\r\n"
PLAIN = b""
OFFLOAD_BYTES = 1 << 20
"""JSON larger than this is not read or written on the event loop."""
KNOWN_TARGETS = 4096
KNOWN_TARGET_BYTES = 512

_STATUS: dict[type[Error], int] = {
    Internal: 500,
    NotFound: 404,
    Unavailable: 503,
    Unsupported: 501,
    Unknown: 400,
    Invalid: 400,
    AlreadyExists: 400,
    Cancelled: 400,
}
"""Kind to status (contract H6). A subclass has the status of the kind that it refines."""

A = TypeVar("A")


def status_of(error: Error) -> int:
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    return 500


class Exchange(Protocol):
    """What this front end needs of one HTTP request and its answer."""

    method: bytes
    target: bytes
    headers: Mapping[bytes, bytes]
    body: Buffer
    gone: bool
    on_gone: Callable[[], None]

    def respond(self, status: int, fields: bytes, body: Sequence[Buffer]) -> None: ...


class Offload(Protocol):
    """Runs `work` on another thread, then `done` with its result or the Error it raised, on the event loop."""

    def __call__(self, work: Callable[[], A], done: Callable[[A | Error], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class Target:
    """What a path means: the handler, the methods it takes, and the names within the path."""

    handle: Callable[[Exchange, str, str], None]
    methods: frozenset[bytes]
    fields: bytes
    model: str = ""
    version: str = ""


class HttpFront:
    """`handle` is the handler of the transport's listener. `max_input_size` is the most bytes that JSON and raw input
    may have (contract H17)."""

    def __init__(self, port: EnginePort, offload: Offload, max_input_size: int) -> None:
        self._port = port
        self._offload = offload
        self._max_input_size = max_input_size
        self._targets: dict[bytes, Target] = {}
        get, post = frozenset({b"GET"}), frozenset({b"POST"})
        both = get | post
        region = r"/v2/(?:system|cuda)sharedmemory(?:/region/([^/]+))?"
        model = r"/v2/models/([^/]+)(?:/versions/([0-9]+))?"
        # Pattern, methods, handler, and the fields of an answer without a body of its own (contract H1, H5, H15).
        self._routes = [
            (re.compile(pattern.encode()), methods, handle, fields)
            for pattern, methods, handle, fields in (
                (r"/v2/models/stats()()", get, self._statistics, JSON),
                (model + "/infer", post, self._infer, JSON),
                (model + "/ready", get, self._model_ready, PLAIN),
                (model + "/config", get, self._model_config, JSON),
                (model + "/stats", get, self._statistics, JSON),
                (model, get, self._model_metadata, JSON),
                (r"/v2()()", get, self._server_metadata, JSON),
                (r"/v2/health/live()()", get, self._live, PLAIN),
                (r"/v2/health/ready()()", get, self._ready, PLAIN),
                (model + "/(?:generate|generate_stream)", post, self._not_yet, JSON),
                (r"/v2(?:/models/([^/]+))?()/trace/setting", both, self._not_yet, JSON),
                (r"/v2/logging()()", both, self._not_yet, JSON),
                (r"/v2/repository(?:/[^/]+)?/(?:index|models/([^/]+)/(?:load|unload))()", post, self._not_yet, JSON),
                (region + "/status()", get, self._not_yet, JSON),
                (region + "/(?:register|unregister)()", post, self._not_yet, JSON),
            )
        ]

    def handle(self, exchange: Exchange) -> None:
        target = self._targets.get(exchange.target) or self._resolve(exchange.target)
        if target is None:
            exchange.respond(404, PLAIN, (b'{"error":"Not Found"}',))
        elif exchange.method not in target.methods:
            exchange.respond(405, target.fields, (b'{"error":"Method Not Allowed"}',))
        else:
            target.handle(exchange, target.model, target.version)

    def _resolve(self, target: bytes) -> Target | None:
        """Finds the route of a target, and remembers it: clients ask for the same few again and again."""
        path = _path_of(target)
        for pattern, methods, handle, fields in self._routes:
            found = pattern.fullmatch(path)
            if found:
                model, version = (group.decode("utf-8", "surrogateescape") if group else "" for group in found.groups())
                known = Target(handle, methods, fields, model, version)
                if len(target) <= KNOWN_TARGET_BYTES:
                    if len(self._targets) >= KNOWN_TARGETS:
                        self._targets.clear()
                    self._targets[target] = known
                return known
        return None

    # Answers.

    @staticmethod
    def _refuse(exchange: Exchange, error: Error, fields: bytes = JSON) -> None:
        exchange.respond(status_of(error), fields, (wire.encode_error(error),))

    def _ask(
        self, exchange: Exchange, query: Query[A], answer: Callable[[A], None], error_fields: bytes = JSON
    ) -> None:
        """Asks the engine; `answer` writes what comes back, an error is written here."""

        def done(result: A | Error) -> None:
            if isinstance(result, Error):
                self._refuse(exchange, result, error_fields)
            else:
                answer(result)

        self._port.ask(query, done)

    def _ask_model(
        self,
        exchange: Exchange,
        query: Callable[[str, int], Query[A]],
        model: str,
        version: str,
        answer: Callable[[A], None],
        error_fields: bytes = JSON,
    ) -> None:
        try:
            number = wire.parse_version(version)
        except Error as error:
            self._refuse(exchange, error, error_fields)
            return
        self._ask(exchange, query(model, number), answer, error_fields)

    def _not_yet(self, exchange: Exchange, model: str, version: str) -> None:
        """A route of the contract (H1) that this server does not serve yet, and says so."""
        path = _path_of(exchange.target).decode("utf-8", "replace")
        self._refuse(exchange, Unsupported(f"{path} is not supported yet"))

    # Health, metadata, statistics.

    def _live(self, exchange: Exchange, model: str, version: str) -> None:
        self._ask(exchange, ServerLive(), lambda live: exchange.respond(200 if live else 400, PLAIN, ()), PLAIN)

    def _ready(self, exchange: Exchange, model: str, version: str) -> None:
        self._ask(exchange, ServerReady(), lambda ready: exchange.respond(200 if ready else 400, PLAIN, ()), PLAIN)

    def _server_metadata(self, exchange: Exchange, model: str, version: str) -> None:
        def answer(facts: Any) -> None:
            exchange.respond(200, JSON, (wire.encode_server_metadata(facts),))

        self._ask(exchange, ServerMetadata(), answer)

    def _model_ready(self, exchange: Exchange, model: str, version: str) -> None:
        def answer(ready: bool) -> None:
            if ready:
                exchange.respond(200, PLAIN, ())
            else:
                exchange.respond(400, PLAIN, (b'{"error":"Model version not ready"}',))

        self._ask_model(exchange, ModelReady, model, version, answer, PLAIN)

    def _model_metadata(self, exchange: Exchange, model: str, version: str) -> None:
        def answer(facts: Any) -> None:
            exchange.respond(200, JSON, (wire.encode_model_metadata(facts),))

        self._ask_model(exchange, ModelMetadata, model, version, answer)

    def _model_config(self, exchange: Exchange, model: str, version: str) -> None:
        def answer(facts: Any) -> None:
            exchange.respond(200, JSON, (facts.json.encode(),))

        self._ask_model(exchange, ModelConfiguration, model, version, answer)

    def _statistics(self, exchange: Exchange, model: str, version: str) -> None:
        def answer(counts: Any) -> None:
            exchange.respond(200, JSON, (wire.encode_statistics(counts),))

        self._ask_model(exchange, ModelStatistics, model, version, answer)

    # Inference.

    def _infer(self, exchange: Exchange, model: str, version: str) -> None:
        """Contract H30: the version, whether the model exists and takes single requests, the headers, the body.

        Decoding goes first, since it nearly always succeeds; when it fails, the model is asked for, and an error there
        has precedence.
        """
        body, headers = memoryview(exchange.body), exchange.headers
        try:
            number = wire.parse_version(version)
        except Error as error:
            self._refuse(exchange, error)
            return
        try:
            _check_encoding(headers.get(b"content-encoding"))
            text = headers.get(b"inference-header-content-length")
            length = None if text is None else wire.parse_header_length(text.decode("latin-1"), len(body))
            if (len(body) if length is None else length) > OFFLOAD_BYTES:
                self._offload(
                    lambda: wire.decode_infer(model, number, body, length, self._max_input_size),
                    lambda decoded: self._decoded(exchange, model, number, decoded),
                )
                return
            request, form = wire.decode_infer(model, number, body, length, self._max_input_size)
        except Error as error:
            self._decoded(exchange, model, number, error)
            return
        self._start(exchange, request, form)

    def _decoded(
        self,
        exchange: Exchange,
        model: str,
        number: int,
        decoded: tuple[InferRequest, wire.ResponseForm] | Error,
    ) -> None:
        if exchange.gone:
            return  # while its JSON was read on another thread
        if not isinstance(decoded, Error):
            self._start(exchange, *decoded)
            return

        def answer(decoupled: bool) -> None:
            self._refuse(exchange, _DECOUPLED if decoupled else decoded)

        self._ask(exchange, ModelTransaction(model, number), answer)

    def _start(self, exchange: Exchange, request: InferRequest, form: wire.ResponseForm) -> None:
        reply = InferReply(exchange, form, self._offload)
        key = self._port.infer(request, reply)
        if not reply.over:
            exchange.on_gone = lambda: self._port.cancel(key)


_DECOUPLED = Unsupported("HTTP end point doesn't support models with decoupled transaction policy")


class InferReply:
    """The reply slot of one `/infer` request: its one response becomes the answer of the exchange."""

    __slots__ = ("_exchange", "_form", "_offload", "over")

    def __init__(self, exchange: Exchange, form: wire.ResponseForm, offload: Offload) -> None:
        self._exchange = exchange
        self._form = form
        self._offload = offload
        self.over = False

    def send(self, answer: Answer, final: bool) -> bool:
        if self.over:
            return True
        self.over = True
        if answer is None:
            answer = Internal("expected a single response, got 0")
        if isinstance(answer, DecoupledModel):
            answer = _DECOUPLED
        if isinstance(answer, Error):
            self._exchange.respond(status_of(answer), JSON, (wire.encode_error(answer),))
        elif wire.json_bytes(answer, self._form) > OFFLOAD_BYTES:
            response = answer
            self._offload(lambda: wire.encode_infer(response, self._form), self._encoded)
        else:
            try:
                body, head_length = wire.encode_infer(answer, self._form)
            except Error as error:
                self._encoded(error)
            except Exception:  # whatever a model has answered, its client gets an answer
                log.exception("writing a response of model '%s' broke", answer.model_name)
                self._encoded(Internal("the server failed to write the response"))
            else:
                self._respond(body, head_length)
        return True

    def on_writable(self, resume: Resume) -> None:
        """Never needed: `send` takes the only answer and always says that it is writable."""
        resume()

    def _encoded(self, encoded: tuple[list[Buffer], int | None] | Error) -> None:
        if isinstance(encoded, Error):
            self._exchange.respond(status_of(encoded), JSON, (wire.encode_error(encoded),))
        else:
            self._respond(*encoded)

    def _respond(self, body: list[Buffer], head_length: int | None) -> None:
        if head_length is None:
            self._exchange.respond(200, JSON, body)
        else:
            fields = b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n" % head_length
            self._exchange.respond(200, fields, body)


def _check_encoding(encoding: bytes | None) -> None:
    if encoding is not None and encoding.lower() != b"identity":
        raise Unsupported("Unsupported compression type")


def _path_of(target: bytes) -> bytes:
    """The path of a request target: without the query, and without scheme and host where a client sends them."""
    path = target.partition(b"?")[0]
    if path.startswith(b"http://"):
        path = b"/" + path[7:].partition(b"/")[2]
    return path
