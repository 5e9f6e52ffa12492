"""The HTTP routes of the generate extension: one JSON object in, and one out or a stream of events (H130 to H137).

Holds an engine port, and state for each answer in progress. Event-loop thread only; large JSON is parsed and written on
another thread.
"""

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial

from halimede.engine_port import EnginePort, ModelInfo, ModelMetadata
from halimede.errors import Error, Internal, Invalid
from halimede.front.access import Category
from halimede.front.cancelling import cancel
from halimede.front.http.admin import MODEL
from halimede.front.http.handling import (
    JSON,
    OFFLOAD_BYTES,
    POST,
    AnswerStream,
    HttpExchange,
    Route,
    Streamable,
    ask,
    hold_inputs,
    log_fields,
    refuse,
    run_offloaded,
    status_of,
)
from halimede.front.http.load_report import LOAD_FORMAT, LoadReportingExchange
from halimede.front.http.made_bytes import make_offloaded
from halimede.front.offload import Offload
from halimede.front.tracing import traced, undecoded
from halimede.requests import Answer, InferRequest, InferResponse, Reply, Resume
from halimede.traces import UNTRACED, Sampler
from halimede.wire.http.generate import NOT_ONE, data_bytes, decode_generate, encode_generate, event, text_bytes
from halimede.wire.http.infer import encode_error, parse_version
from halimede.wire.http.json_data import uncounted

log = logging.getLogger(__name__)

EVENTS = b"Content-Type: text/event-stream; charset=utf-8\r\n"
IDENTITY = b"identity"

_Encoded = tuple[int, bytes]
"""The status of an answer that begins with this response, and the response as JSON."""


class HttpGenerate:
    """The rows of the route table. `max_input_size` is the limit of JSON (H17)."""

    def __init__(
        self,
        port: EnginePort,
        offload: Offload,
        max_input_size: int,
        traces: Sampler = UNTRACED,
        tells_load: bool = True,
    ) -> None:
        self._port = port
        self._offload = offload
        self._limit = max_input_size
        self._tells_load = tells_load
        self._traces = traces

    def routes(self) -> tuple[Route, ...]:
        single, many = partial(self._generate, SingleReply), partial(self._generate, EventReply)
        return (
            Route(MODEL + "/generate", POST, Category.INFERENCE, single),
            Route(MODEL + "/generate_stream", POST, Category.INFERENCE, many),
        )

    def _generate(self, kind: "type[GenerateReply]", exchange: HttpExchange, model: str, version: str) -> None:
        """Handles a request: checks the version, the model, the encoding and the body, in this order (observed)."""
        try:
            number = parse_version(version)
        except Error as error:
            refuse(exchange, error)
            return
        ask(self._port, exchange, ModelMetadata(model, number), partial(self._read, kind, exchange, model, number))

    def _read(
        self, kind: "type[GenerateReply]", exchange: HttpExchange, model: str, number: int, info: ModelInfo
    ) -> None:
        if exchange.gone:
            return
        # Unlike inference, generate takes no compressed bodies.
        if exchange.headers.get(b"content-encoding", IDENTITY) != IDENTITY:
            self._start(kind, exchange, model, Invalid("Unsupported content-encoding, only 'identity' is supported."))
            return
        # The exchange lives until it is answered. The body need not.
        body, exchange.body = exchange.body, b""
        decode = partial(decode_generate, model, number, info.inputs, body, self._limit)
        if len(body) > OFFLOAD_BYTES:
            run_offloaded(
                self._offload, exchange, decode, partial(self._decoded, kind, exchange, model), size=len(body)
            )
            return
        request: InferRequest | Error
        try:
            request = decode()
        except Error as error:
            request = error
        self._start(kind, exchange, model, request)

    def _decoded(
        self, kind: "type[GenerateReply]", exchange: HttpExchange, model: str, request: InferRequest | Error
    ) -> None:
        """Another thread has decoded a large body."""
        if not isinstance(request, Error):
            hold_inputs(exchange, request)
        self._start(kind, exchange, model, request)

    def _start(
        self, kind: "type[GenerateReply]", exchange: HttpExchange, model: str, request: InferRequest | Error
    ) -> None:
        if exchange.gone:
            return
        if isinstance(request, Error):
            if self._traces.on:
                undecoded(self._traces, exchange, model)
            refuse(exchange, request)
            return
        form = exchange.headers.get(LOAD_FORMAT) if self._tells_load else None
        answered = exchange if form is None else LoadReportingExchange(exchange, form, self._port, request.model_name)
        reply = kind(answered, self._offload)
        slot: Reply = reply
        if self._traces.on and not self._traces.passes(request):
            slot = traced(self._traces, exchange, request, reply, reply.tells_end)
        key = self._port.infer(request, slot)
        # The engine may have answered already.
        if not reply.over:
            exchange.on_gone = partial(cancel, self._port, key, "HTTP", request.model_name, request.id)


def _encode(answer: InferResponse | Error, made: Callable[[int], None] = uncounted) -> _Encoded:
    """Encodes a response. Never raises: the client gets an answer even if the model answers nonsense."""
    if isinstance(answer, InferResponse):
        try:
            return 200, encode_generate(answer, made)
        except Error as error:
            answer = error
        except Exception:
            log.exception("model '%s': failed to encode a response", answer.model_name, extra=log_fields(answer))
            answer = Internal("the server failed to write the response")
    return status_of(answer), encode_error(answer)


class GenerateReply(ABC):
    """The reply slot of one request. It encodes responses in order; large ones on another thread.

    | state | event | then |
    | --- | --- | --- |
    | idle | a small response | delivered |
    | idle | a large response | `_encoding`: not writable |
    | `_encoding` | a response | it waits in `_queue` |
    | `_encoding` | the other thread is done | delivered, then the queue; senders are resumed |
    | any | the last response is delivered | `over` |
    """

    __slots__ = ("_encoding", "_exchange", "_offload", "_queue", "_resumes", "over")

    tells_end = True
    """Whether an end without a response is written."""

    def __init__(self, exchange: Streamable, offload: Offload) -> None:
        self._exchange = exchange
        self._offload = offload
        self._encoding = False
        self._queue: deque[tuple[Answer, bool]] = deque()
        self._resumes: list[Resume] = []
        self.over = False

    def send(self, answer: Answer, final: bool) -> bool:
        if self.over:
            return True
        if isinstance(answer, Error) and answer.refused:
            # A request that was refused before its start has no answer that has begun.
            self.over = True
            refuse(self._exchange, answer)
            return True
        self._queue.append((answer, final))
        return self._advance()

    def on_writable(self, resume: Resume) -> None:
        if self._encoding:
            self._resumes.append(resume)
        else:
            self._on_writable(resume)

    def _advance(self) -> bool:
        """Delivers the queue up to the next large response. Returns whether more may be sent."""
        writable = True
        # A large response stops the loop: those after it must be delivered after it.
        while self._queue and not self._encoding:
            answer, final = self._queue.popleft()
            if isinstance(answer, InferResponse) and (size := data_bytes(answer)) > OFFLOAD_BYTES:
                self._encoding = True
                make_offloaded(
                    self._offload,
                    self._exchange,
                    partial(_encode, answer),
                    partial(self._encoded, final),
                    size=size,
                    # Its pieces are joined twice.
                    expected=2 * text_bytes(answer),
                )
            else:
                writable = self._deliver(None if answer is None else _encode(answer), final)
        return writable and not self._encoding

    def _encoded(self, final: bool, encoded: _Encoded | Error) -> None:
        """Delivers a large response that another thread has encoded."""
        self._encoding = False
        try:
            self._deliver(_encode(encoded) if isinstance(encoded, Error) else encoded, final)
            self._advance()
        except Exception:
            # Nothing can follow. `finally` resumes the senders, which would otherwise wait forever.
            self.over = True
            self._queue.clear()
            raise
        finally:
            if not self._encoding:
                self._resume()

    def _resume(self) -> None:
        resumes, self._resumes = self._resumes, []
        for resume in resumes:
            self._on_writable(resume)

    @abstractmethod
    def _deliver(self, encoded: _Encoded | None, final: bool) -> bool:
        """Writes the next response, or (None) the end. Returns whether the client takes more at once."""

    @abstractmethod
    def _on_writable(self, resume: Resume) -> None:
        """Calls `resume` when the client takes more. All that was sent to the slot is delivered."""


class SingleReply(GenerateReply):
    """Answers with one whole response, when the last flag has come. The status is that of the first response, whatever
    follows (H135). Further responses are not kept."""

    __slots__ = ("_count", "_first")

    def __init__(self, exchange: Streamable, offload: Offload) -> None:
        super().__init__(exchange, offload)
        self._count = 0
        self._first: _Encoded = 200, NOT_ONE

    def send(self, answer: Answer, final: bool) -> bool:
        if answer is not None:
            self._count += 1
        # The queue gets no further responses, so a model without end fills no memory.
        return super().send(answer if self._count <= 1 else None, final)

    def _deliver(self, encoded: _Encoded | None, final: bool) -> bool:
        if encoded is not None:
            self._first = encoded
        if final:
            self.over = True
            status, body = self._first
            self._exchange.begin(status, JSON).send((body if self._count == 1 else NOT_ONE,), last=True)
        return True

    def _on_writable(self, resume: Resume) -> None:
        resume()


class EventReply(GenerateReply):
    """Answers with an event per response. The status is that of the first response. A last flag alone is no event
    (H136)."""

    __slots__ = ("_stream",)

    tells_end = False

    def __init__(self, exchange: Streamable, offload: Offload) -> None:
        super().__init__(exchange, offload)
        self._stream: AnswerStream | None = None

    def _deliver(self, encoded: _Encoded | None, final: bool) -> bool:
        if self._stream is None:
            self._stream = self._exchange.begin(200 if encoded is None else encoded[0], EVENTS)
        # Set before sending, because the answer may end the exchange.
        self.over = final
        return self._stream.send(() if encoded is None else event(encoded[1]), final)

    def _on_writable(self, resume: Resume) -> None:
        if self._stream is None:
            resume()
        else:
            self._stream.on_writable(resume)
