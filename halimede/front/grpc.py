"""The gRPC service `inference.GRPCInferenceService`: its table of RPCs, their handlers, streams, and status codes.

Knows the engine's port and the messages, and of the transport only what every gRPC transport offers. Callbacks only,
all of them on the event-loop thread; nothing blocks.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

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
from halimede.requests import Answer, InferResponse, Resume
from halimede.service.port import EnginePort, ModelTransaction
from halimede.tensors import Buffer
from halimede.transport.grpc_calls import Bidirectional, Call, Cancel, Message, Rpcs, Unary
from halimede.wire.grpc import (
    InferDecoder,
    InferEncoder,
    InferMessage,
    stream_empty_final,
    stream_failure,
    stream_refusal,
    version_of,
)
from halimede.wire.grpc_admin import EXCHANGES, HEALTH, Exchange

log = logging.getLogger(__name__)

CODES: dict[type[BaseException], int] = {
    Cancelled: 1,
    Unknown: 2,
    Invalid: 3,
    NotFound: 5,
    AlreadyExists: 6,
    Unsupported: 12,
    Internal: 13,
    Unavailable: 14,
}
"""The status of each kind of error (G3). Kinds derived from these have theirs."""

NOT_YET = (
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
)
"""The RPCs of the service that are not served yet; they say so."""

DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"
DRAINING = "GRPC server is shutting down and has stopped accepting new requests."


def finish_with(call: Call, error: Error) -> None:
    """Ends the call with the status of an error."""
    code = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), CODES[Unknown])
    call.finish(code, error.message)


class GrpcService:
    """The handlers of one server over one engine port."""

    def __init__(self, port: EnginePort) -> None:
        self.port = port
        self.decoder = InferDecoder()
        self.encoder = InferEncoder()
        self.draining = False
        self.streams: set[InferStream] = set()
        prefix = "/inference.GRPCInferenceService/"
        rpcs: dict[str, Unary | Bidirectional] = {
            prefix + name: Unary(partial(self._guarded, partial(self._ask, exchange)))
            for name, exchange in EXCHANGES.items()
        }
        rpcs.update((prefix + name, Unary(partial(_not_yet, name))) for name in NOT_YET)
        rpcs["/grpc.health.v1.Health/Check"] = Unary(partial(self._guarded, partial(self._ask, HEALTH)))
        rpcs[prefix + "ModelInfer"] = Unary(partial(self._guarded, self._infer))
        rpcs[prefix + "ModelStreamInfer"] = Bidirectional(partial(InferStream, self))
        self.rpcs: Rpcs = rpcs

    def drain(self) -> None:
        """From now on inferences are refused; those under way go on (G35), and streams end when they have none."""
        self.draining = True
        for stream in list(self.streams):
            stream.finish_when_done()

    def _guarded(self, handler: Callable[[Buffer, Call], Cancel | None], message: Buffer, call: Call) -> Cancel | None:
        try:
            return handler(message, call)
        except Error as error:
            finish_with(call, error)
        except Exception:
            finish_with(call, _broken("a gRPC handler"))
        return None

    def _ask(self, exchange: Exchange, message: Buffer, call: Call) -> None:
        self.port.ask(exchange.query(message), partial(self._answer, exchange, call))

    def _answer(self, exchange: Exchange, call: Call, answer: Any) -> None:
        if not isinstance(answer, Error):
            try:
                encoded = exchange.answer(answer)
            except Exception:
                answer = _broken("a gRPC answer")
            else:
                call.send([encoded])
                call.finish()
                return
        finish_with(call, answer)

    def _infer(self, message: Buffer, call: Call) -> Cancel | None:
        if self.draining:
            raise Unavailable(DRAINING)
        incoming = self.decoder.parse(message)
        version = version_of(incoming.model_version)
        try:
            request = self.decoder.request(incoming, version)
        except Error as error:
            # What the real server says of the model comes before what it says of the request.
            self.port.ask(ModelTransaction(incoming.model_name, version), partial(_refuse, call, error))
            return None
        return partial(self.port.cancel, self.port.infer(request, _UnaryReply(self.encoder, call)))


def _not_yet(name: str, message: Buffer, call: Call) -> None:
    finish_with(call, Unsupported(f"{name} is not supported yet"))


def _refuse(call: Call, error: Error, decoupled: bool | Error) -> None:
    if isinstance(decoupled, Error):
        error = decoupled
    elif decoupled:
        error = DecoupledModel(DECOUPLED)
    finish_with(call, error)


def _broken(what: str) -> Internal:
    """For the guards: the details go to the log, not to the client."""
    log.exception("%s failed", what)
    return Internal("internal error")


def _encoded(encode: Callable[..., Message], *arguments: object) -> Message | Error:
    """The message, or why there is none: a reply slot must not raise whatever a model has answered."""
    try:
        return encode(*arguments)
    except Error as error:
        return error
    except Exception:
        return _broken("writing a response")


class _UnaryReply:
    """The reply slot of a ModelInfer call."""

    __slots__ = ("_call", "_encoder")

    def __init__(self, encoder: InferEncoder, call: Call) -> None:
        self._encoder = encoder
        self._call = call

    def send(self, answer: Answer, final: bool) -> bool:
        if isinstance(answer, InferResponse):
            message = _encoded(self._encoder.response, answer)
            if not isinstance(message, Error):
                self._call.send(message)
                self._call.finish()
                return True
            answer = message
        if isinstance(answer, DecoupledModel):
            answer = DecoupledModel(DECOUPLED)
        finish_with(self._call, answer or Internal("expected a single response, got 0"))
        return True

    def on_writable(self, resume: Resume) -> None:
        resume()


class InferStream:
    """One ModelStreamInfer call (G26 to G34).

    Requests to models that are not decoupled stand in a line, and their responses are sent in its order; those of
    decoupled models are sent as they come. With the metadata `triton_grpc_error: true` the first failure of a request
    on its way ends the call with its status (G29).
    """

    __slots__ = ("_ends_on_error", "_half_closed", "_line", "_open", "_over", "_service", "call")

    def __init__(self, service: GrpcService, call: Call) -> None:
        self.call = call
        self._service = service
        self._line: deque[_StreamReply] = deque()
        self._open: set[_StreamReply] = set()
        self._half_closed = False
        self._over = False
        service.streams.add(self)
        self._ends_on_error = any(key == "triton_grpc_error" and value == "true" for key, value in call.metadata)

    def message(self, message: Buffer) -> None:
        if self._half_closed or self._over:
            return
        try:
            incoming = self._service.decoder.parse(message)
        except Error:
            # The real server takes a message that it cannot read for the end of the stream.
            self.half_closed()
            return
        reply = _StreamReply(self, incoming)
        self._open.add(reply)
        self._line.append(reply)
        self._attempt(reply, self._ask, reply)

    def half_closed(self) -> None:
        self._half_closed = True
        self.finish_when_done()

    def cancelled(self) -> None:
        self._end()
        for reply in self._open:
            if reply.key is not None:
                self._service.port.cancel(reply.key)
        self._open.clear()
        self._line.clear()

    def _attempt(self, reply: "_StreamReply", step: Callable[..., None], *arguments: object) -> None:
        """The guard around what is done for one request."""
        try:
            step(*arguments)
        except Error as error:
            error.refused = True
            reply.send(error, True)
        except Exception:
            reply.send(_broken("a message of a gRPC stream"), True)

    def _ask(self, reply: "_StreamReply") -> None:
        if self._service.draining:
            raise Unavailable(DRAINING)
        incoming = reply.incoming
        version = version_of(incoming.model_version)
        # Whether the reply keeps its place in the line must be known before its first response.
        query = ModelTransaction(incoming.model_name, version)
        self._service.port.ask(query, partial(self._attempt, reply, self._begin, reply, version))

    def _begin(self, reply: "_StreamReply", version: int, decoupled: bool | Error) -> None:
        if self._over:
            return
        if isinstance(decoupled, Error):
            raise decoupled
        if decoupled:
            reply.ordered = False
            self._line.remove(reply)
            self._advance()
        request = self._service.decoder.request(reply.incoming, version)
        request.decoupled_ok = True
        reply.key = self._service.port.infer(request, reply)

    def deliver(self, reply: "_StreamReply", answer: Answer, final: bool) -> bool:
        """Sends an answer, or holds it until those before it in the line are sent. False when the call is full."""
        if self._over or reply.done:
            return True
        if self._ends_on_error and isinstance(answer, Error) and not answer.refused:
            self.cancelled()
            finish_with(self.call, answer)
            return True
        writable = True
        message = self._encode(reply, answer, final)
        if message is not None:
            if reply.ordered and self._line[0] is not reply:
                reply.held.append(message)
            else:
                writable = self.call.send(message)
        if final:
            reply.done = True
            self._open.discard(reply)
            self._advance()
            self.finish_when_done()
        return writable

    def _encode(self, reply: "_StreamReply", answer: Answer, final: bool) -> Message | None:
        if isinstance(answer, InferResponse):
            message = _encoded(self._service.encoder.stream_response, answer, final)
            if not isinstance(message, Error):
                return message
            answer = message
        if answer is None:
            return stream_empty_final(reply.incoming) if reply.incoming.empty_final and not reply.ordered else None
        if answer.refused:
            return stream_refusal(reply.incoming, answer.message)
        return stream_failure(reply.incoming, answer.message, final)

    def _advance(self) -> None:
        """Sends what was held back and has now come to the head of the line."""
        while self._line:
            head = self._line[0]
            for message in head.held:
                self.call.send(message)
            head.held.clear()
            if not head.done:
                return
            self._line.popleft()

    def finish_when_done(self) -> None:
        """Ends the call if nothing is under way and nothing more is to come: from the client, or to this server."""
        if self._open or self._over:
            return
        if self._half_closed:
            self._end()
            self.call.finish()
        elif self._service.draining:
            self._end()
            finish_with(self.call, Unavailable(DRAINING))

    def _end(self) -> None:
        self._over = True
        self._service.streams.discard(self)


class _StreamReply:
    """The reply slot of one request on a stream: its place in the line, and the messages that wait there."""

    __slots__ = ("_stream", "done", "held", "incoming", "key", "ordered")

    def __init__(self, stream: InferStream, incoming: InferMessage) -> None:
        self._stream = stream
        self.incoming = incoming
        self.key: int | None = None
        self.ordered = True
        self.done = False
        self.held: list[Message] = []

    def send(self, answer: Answer, final: bool) -> bool:
        return self._stream.deliver(self, answer, final)

    def on_writable(self, resume: Resume) -> None:
        self._stream.call.on_writable(resume)
