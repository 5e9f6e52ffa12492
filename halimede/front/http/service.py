"""The HTTP front end: the routes, and the path of an inference from its request to its answer.

Has an engine port and no socket. The transport calls it with whole requests. Event-loop thread only; large JSON is
parsed and written on another thread (see `Offload`).
"""

import logging
import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial

from halimede.engine_port import EnginePort, ModelTransaction
from halimede.errors import DecoupledModel, Error, Internal, Unavailable, Unsupported
from halimede.front.access import OPEN, Access, Category, forward_headers
from halimede.front.cancelling import cancel
from halimede.front.http.admin import MODEL, HttpAdmin
from halimede.front.http.compression import answering, error_fields, inflated_at_once
from halimede.front.http.generate import HttpGenerate
from halimede.front.http.handling import (
    JSON,
    LARGE_BYTES,
    OFFLOAD_BYTES,
    POST,
    UNKNOWN_SIZE,
    Answerable,
    HttpExchange,
    Route,
    RouteHandler,
    ask,
    guarded,
    hold_inputs,
    log_fields,
    not_found,
    refuse,
    refuse_method,
    run_offloaded,
    status_of,
)
from halimede.front.http.load_report import LOAD_FORMAT, LoadReportingExchange
from halimede.front.http.made_bytes import make_offloaded
from halimede.front.http.pages import HttpPages
from halimede.front.http.shared_memory import HttpSharedMemory
from halimede.front.metrics import MetricsScrapes
from halimede.front.offload import Offload
from halimede.front.tracing import traced, undecoded
from halimede.requests import Answer, InferRequest, InferResponse, Reply, Resume
from halimede.tensors import STRINGS_PER_TURN, Buffer
from halimede.traces import UNTRACED, Sampler
from halimede.transport.buffered_bytes import FULL
from halimede.wire.http import infer as wire
from halimede.wire.http.compression import decompress, inflate

log = logging.getLogger(__name__)

MAX_KNOWN_TARGETS = 4096
"""Request targets whose route is remembered."""
MAX_KNOWN_TARGET_BYTES = 512
"""Length of a target whose route is remembered."""

MAX_TRIED_BYTES = 1 << 18
"""A compressed body of at most this size is decompressed up to `LARGE_BYTES`, to learn whether it is small."""
LEAST_MANY_STRINGS_BYTES = 4 * STRINGS_PER_TURN
"""A smaller body has no strings whose lengths take long to check. Each has four bytes at least."""

_Decoded = tuple[InferRequest, wire.ResponseForm]

HEADER_LENGTH = b"inference-header-content-length"
_TEXT = ("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """What a path means: the handler, the methods that it takes, and the names in the path."""

    handle: RouteHandler
    methods: Container[bytes]
    fields: bytes
    model: str = ""
    version: str = ""


class HttpService:
    """The handlers of one server over one engine port. `handle` is the handler of the transport's listener.

    `max_input_size` is the limit of JSON and of raw input (H17). `access` says what is restricted and what is
    forwarded. `client_memory`: clients may register shared memory (H90). `metrics_at` returns the address of the port
    for metrics, empty if there is none; `scrapes` answers them here as well.
    """

    def __init__(
        self,
        port: EnginePort,
        offload: Offload,
        max_input_size: int,
        access: Access = OPEN,
        client_memory: bool = True,
        traces: Sampler = UNTRACED,
        tells_load: bool = True,
        scrapes: MetricsScrapes | None = None,
        metrics_at: Callable[[], str] = str,
    ) -> None:
        self._port = port
        self._offload = offload
        self._max_input_size = max_input_size
        self._access = access
        self._traces = traces
        self._tells_load = tells_load
        # Decided once, so that a server that forwards no headers does not look at them.
        self._begin = self._start if access.forward is None else self._start_with_headers
        self._targets: dict[bytes, RouteTarget] = {}
        routes = (
            Route(MODEL + "/infer", POST, Category.INFERENCE, self._infer),
            *HttpAdmin(port, offload, max_input_size, access).routes(),
            *HttpGenerate(port, offload, max_input_size, traces, tells_load).routes(),
            *HttpSharedMemory(port, offload, max_input_size, client_memory).routes(),
        )
        if scrapes is not None:
            routes = (*routes, scrapes.route())
        self.routes = routes
        pages = HttpPages(port, access, metrics_at if scrapes is None else lambda: "/metrics").routes()
        # The pages come last, so that they cost no other path anything.
        table = (*(guarded(route, access) for route in routes), *pages)
        self._routes = [(route.pattern.encode(), route) for route in table]

    def handle(self, exchange: HttpExchange) -> None:
        target = self._targets.get(exchange.target) or self._resolve(exchange.target)
        if target is None:
            not_found(exchange)
        elif exchange.method not in target.methods:
            refuse_method(exchange, target.fields)
        else:
            target.handle(exchange, target.model, target.version)

    def _resolve(self, target: bytes) -> RouteTarget | None:
        """Finds the route of a target, and remembers it, because clients ask for the same few again and again."""
        path = _path_of(target)
        for pattern, route in self._routes:
            # `re` compiles a pattern when it is first used. Compiling two dozen would delay the start.
            found = re.fullmatch(pattern, path)
            if found:
                model, version = (group.decode(*_TEXT) if group else "" for group in found.groups())
                known = RouteTarget(route.handle, route.methods, route.fields, model, version)
                # A client can send any number of targets, with queries of any length.
                if len(target) <= MAX_KNOWN_TARGET_BYTES:
                    if len(self._targets) >= MAX_KNOWN_TARGETS:
                        self._targets.clear()
                    self._targets[target] = known
                return known
        return None

    # Inference.

    def _infer(self, exchange: HttpExchange, model: str, version: str) -> None:
        """Handles an inference. Triton checks the version, the model, the headers and the body in this order (H30).

        Decoding comes first here, because it nearly always succeeds. If it fails, the engine is asked about the model,
        and an error there has precedence.
        """
        try:
            number = wire.parse_version(version)
        except Error as error:
            refuse(exchange, error)
            return
        coding = exchange.headers.get(b"content-encoding")
        if coding is None:
            self._decode(exchange, model, number, memoryview(exchange.body))
        else:
            self._decode_compressed(exchange, model, number, coding)

    def _decode_compressed(self, exchange: HttpExchange, model: str, number: int, coding: bytes) -> None:
        compressed, exchange.body = exchange.body, b""
        try:
            body = inflated_at_once(coding, compressed, self._max_input_size)
        except Error as error:
            self._decoded(exchange, model, number, error)
            return
        if body is not None:
            self._decode(exchange, model, number, memoryview(body))
            return

        length = exchange.headers.get(HEADER_LENGTH)
        read = partial(_read_inflated, model, number, length, self._max_input_size)
        work = partial(_inflate_and_read, exchange, compressed, self._max_input_size, read)
        done = partial(self._decoded, exchange, model, number)
        # Most are small, and need not wait for those that are large.
        if len(compressed) <= MAX_TRIED_BYTES:
            limit = min(LARGE_BYTES, self._max_input_size)
            tried = partial(self._tried, exchange, work, done)
            run_offloaded(self._offload, exchange, partial(_try_small, compressed, limit, read), tried)
        else:
            run_offloaded(self._offload, exchange, work, done, size=UNKNOWN_SIZE)

    def _tried(
        self,
        exchange: HttpExchange,
        work: Callable[[], _Decoded],
        done: Callable[[_Decoded | Error], None],
        decoded: _Decoded | Error | None,
    ) -> None:
        if decoded is None:
            run_offloaded(self._offload, exchange, work, done, size=UNKNOWN_SIZE)
        else:
            done(decoded)

    def _decode(self, exchange: HttpExchange, model: str, number: int, body: memoryview) -> None:
        try:
            length = wire.parse_header_length(exchange.headers.get(HEADER_LENGTH), len(body))
            # Only the JSON counts. Binary tensors are not parsed, whatever their size.
            if (len(body) if length is None else length) > OFFLOAD_BYTES:
                self._decode_elsewhere(exchange, model, number, body, length)
                return
            request, form = wire.decode_infer(model, number, body, length, self._max_input_size)
        except Error as error:
            self._decoded(exchange, model, number, error)
            return
        # Binary strings may be many in a body whose JSON is short.
        if len(body) > LEAST_MANY_STRINGS_BYTES and wire.has_many_strings_in(request):
            self._check_elsewhere(exchange, model, number, request, form)
            return
        self._begin(exchange, request, form)

    def _check_elsewhere(
        self, exchange: HttpExchange, model: str, number: int, request: InferRequest, form: wire.ResponseForm
    ) -> None:
        work, done = partial(_check_strings, request, form), partial(self._decoded, exchange, model, number)
        run_offloaded(self._offload, exchange, work, done, size=len(exchange.body))

    def _decode_elsewhere(
        self, exchange: HttpExchange, model: str, number: int, body: memoryview, length: int | None
    ) -> None:
        # This is a method of its own because variables that a lambda captures would slow the common path.
        run_offloaded(
            self._offload,
            exchange,
            lambda: wire.decode_large(model, number, body, length, self._max_input_size),
            lambda decoded: self._decoded(exchange, model, number, decoded),
            size=len(body) if length is None else length,
        )

    def _decoded(
        self,
        exchange: HttpExchange,
        model: str,
        number: int,
        decoded: tuple[InferRequest, wire.ResponseForm] | Error,
    ) -> None:
        if exchange.gone:
            # The client has gone while its JSON was parsed on another thread.
            return
        if not isinstance(decoded, Error):
            hold_inputs(exchange, decoded[0])
            self._begin(exchange, *decoded)
            return
        ask(self._port, exchange, ModelTransaction(model, number), partial(self._refuse, exchange, model, decoded))

    def _refuse(self, exchange: HttpExchange, model: str, error: Error, decoupled: bool) -> None:
        """Refuses what could not be decoded. Triton tells that the model is decoupled before it reads the request."""
        if decoupled:
            refuse(exchange, _DECOUPLED)
            return
        if self._traces.on:
            undecoded(self._traces, exchange, model)
        refuse(exchange, error, error_fields(error))

    def _start_with_headers(self, exchange: HttpExchange, request: InferRequest, form: wire.ResponseForm) -> None:
        """Starts an inference with the matching headers as parameters (H25)."""
        assert self._access.forward is not None
        sent = ((name.decode(*_TEXT), value.decode(*_TEXT)) for name, value in exchange.headers.sent)
        try:
            forward_headers(self._access.forward, sent, request)
        except Error as error:
            self._decoded(exchange, request.model_name, request.version, error)
            return
        self._start(exchange, request, form)

    def _start(self, exchange: HttpExchange, request: InferRequest, form: wire.ResponseForm) -> None:
        accepts = exchange.headers.get(b"accept-encoding")
        answered: Answerable = exchange
        # Compression wraps this exchange, so the header is added after compression.
        if self._tells_load and (load := exchange.headers.get(LOAD_FORMAT)) is not None:
            answered = LoadReportingExchange(exchange, load, self._port, request.model_name)
        if accepts is not None:
            answered = answering(answered, accepts, self._offload)
        reply = InferReply(answered, form, self._offload)
        slot: Reply = reply
        if self._traces.on and not self._traces.passes(request):
            slot = traced(self._traces, exchange, request, reply)
        key = self._port.infer(request, slot)
        # The engine may have answered already.
        if not reply.over:
            exchange.on_gone = partial(cancel, self._port, key, "HTTP", request.model_name, request.id)


def _read_inflated(model: str, number: int, length: bytes | None, limit: int, body: bytes) -> _Decoded:
    """Decodes a decompressed body. Any thread."""
    view = memoryview(body)
    return wire.decode_large(model, number, view, wire.parse_header_length(length, len(view)), limit)


def _try_small(compressed: Buffer, limit: int, read: Callable[[bytes], _Decoded]) -> _Decoded | None:
    """Decompresses and decodes a body, or returns None if it has more than `limit` bytes. Any thread."""
    small = inflate(compressed, limit)
    return None if small is None else read(small)


def _inflate_and_read(
    exchange: HttpExchange, compressed: Buffer, limit: int, read: Callable[[bytes], _Decoded]
) -> _Decoded:
    """Any thread. Decompression and decoding are one piece of work, so that there are at most as many decompressed
    bodies as threads."""
    # Bodies that were decompressed while this one waited for a thread have perhaps filled the memory.
    if exchange.memory_is_short:
        raise Unavailable(FULL)
    return read(decompress(compressed, limit))


def _check_strings(request: InferRequest, form: wire.ResponseForm) -> _Decoded:
    """Any thread."""
    wire.check_strings(request)
    return request, form


_DECOUPLED = Unsupported("HTTP end point doesn't support models with decoupled transaction policy")


class InferReply:
    """The reply slot of one `/infer` request. Its one response becomes the answer of the exchange."""

    __slots__ = ("_exchange", "_form", "_offload", "over")

    def __init__(self, exchange: Answerable, form: wire.ResponseForm, offload: Offload) -> None:
        self._exchange = exchange
        self._form = form
        self._offload = offload
        self.over = False

    def send(self, answer: Answer, final: bool) -> bool:
        if self.over:
            return True
        self.over = True
        # The model ended without a response.
        if answer is None:
            answer = Internal("expected a single response, got 0")
        if isinstance(answer, DecoupledModel):
            answer = _DECOUPLED
        if isinstance(answer, Error):
            self._exchange.respond(status_of(answer), JSON, (wire.encode_error(answer),))
        # Writing much JSON would hold the loop.
        elif not self._form.only_binary and (size := wire.json_bytes(answer, self._form)) > OFFLOAD_BYTES:
            self._encode_elsewhere(answer, size)
        else:
            try:
                body, head_length = wire.encode_infer(answer, self._form)
            except Error as error:
                self._encoded(error)
            except Exception:
                # Whatever a model has answered, its client gets an answer.
                log.exception("model '%s': failed to encode a response", answer.model_name, extra=log_fields(answer))
                self._encoded(Internal("the server failed to write the response"))
            else:
                self._respond(body, head_length)
        return True

    def _encode_elsewhere(self, answer: InferResponse, size: int) -> None:
        form = self._form
        make_offloaded(
            self._offload,
            self._exchange,
            lambda made: wire.encode_infer(answer, form, made),
            self._encoded,
            size=size,
            expected=wire.text_bytes(answer, form),
        )

    def on_writable(self, resume: Resume) -> None:
        """Never called: `send` takes the only answer, and always says that it is writable."""
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


def _path_of(target: bytes) -> bytes:
    """Returns the path of a request target: without the query, and without scheme and host if a client sends them."""
    path = target.partition(b"?")[0]
    # The absolute form of a target, which clients of a proxy send (RFC 9112, section 3.2.2).
    if path.startswith(b"http://"):
        path = b"/" + path[7:].partition(b"/")[2]
    return path
