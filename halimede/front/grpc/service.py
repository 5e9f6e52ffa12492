"""The gRPC service `inference.GRPCInferenceService`: its table of RPCs, their handlers, streams, and status codes.

Knows the engine's port and the messages, and of the transport only what every gRPC transport offers. Callbacks only,
all of them on the event-loop thread; nothing blocks.
"""

from collections import deque
from functools import partial
from time import monotonic_ns
from typing import ClassVar

from halimede.engine_port import EnginePort, ModelTransaction
from halimede.errors import DecoupledModel, Error, Internal, Unavailable
from halimede.front.access import OPEN, Access
from halimede.front.grpc.access import ForwardingDecoder, restricted
from halimede.front.grpc.admin import SERVICE, admin_rpcs
from halimede.front.grpc.status import finish_with, internal_error
from halimede.front.tracing import traced_call, traced_message
from halimede.requests import Answer, InferResponse, Reply, Resume
from halimede.tensors import Buffer
from halimede.traces import UNTRACED, Sampler
from halimede.transport.grpc.calls import Bidirectional, Cancel, GrpcCall, GrpcStreamCall, Message, Unary
from halimede.wire.grpc.infer import (
    InferDecoder,
    InferEncoder,
    InferMessage,
    stream_empty_final,
    stream_failure,
    stream_refusal,
)
from halimede.wire.grpc.scan import raw_offset

DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"
DRAINING = "GRPC server is shutting down and has stopped accepting new requests."


UNLIMITED_POOL = 2**31 - 1
"""What the pool size of responses is when nobody gives one."""


class GrpcService:
    """The handlers of one server over one engine port. `response_pool_size` is how many responses of a request may wait
    for its reader before the model does (G32); `access` says what is restricted and what is forwarded."""

    def __init__(
        self,
        port: EnginePort,
        response_pool_size: int = UNLIMITED_POOL,
        access: Access = OPEN,
        traces: Sampler = UNTRACED,
    ) -> None:
        self.port = port
        self.most_ahead = response_pool_size if response_pool_size < UNLIMITED_POOL else 0
        self.forwarding = None if access.forward is None else ForwardingDecoder(access.forward)
        self.decoder = self.forwarding or InferDecoder()
        self.encoder = InferEncoder()
        self.traces = traces
        self.draining = False
        self.streams: set[InferStream] = set()
        rpcs: dict[str, Unary | Bidirectional] = {**admin_rpcs(port)}
        infer, stream = (self._infer, InferStream) if access.forward is None else (self._forward, _ForwardingStream)
        rpcs[SERVICE + "ModelInfer"] = Unary(infer, True, raw_offset)
        rpcs[SERVICE + "ModelStreamInfer"] = Bidirectional(partial(stream, self), True, raw_offset)
        self.rpcs = restricted(rpcs, access.keys)

    def drain(self) -> None:
        """From now on inferences are refused; those under way go on (G35), and streams end when they have none."""
        self.draining = True
        for stream in list(self.streams):
            stream.finish_when_done()

    def _infer(self, message: Buffer, call: GrpcCall) -> Cancel | None:
        started = monotonic_ns() if self.traces.on else 0
        try:
            if self.draining:
                raise Unavailable(DRAINING)
            incoming = self.decoder.parse(message)
            version = incoming.version
            try:
                request = self.decoder.request(incoming, version)
            except Error as error:
                # What the real server says of the model comes before what it says of the request.
                self.port.ask(ModelTransaction(incoming.model_name, version), partial(_refuse, call, error))
                return None
            reply = _UnaryReply(self.encoder, call)
            slot: Reply = reply
            if started and not self.traces.passes(request):
                slot = traced_call(self.traces, call, request, reply, started)
            key = self.port.infer(request, slot)
            return None if reply.over else partial(self.port.cancel, key)
        except Error as error:
            finish_with(call, error)
        except Exception:
            finish_with(call, internal_error("an inference over gRPC"))
        return None

    def _forward(self, message: Buffer, call: GrpcCall) -> Cancel | None:
        """As `_infer`, which decodes at once, with metadata as parameters."""
        if self.forwarding is not None:
            self.forwarding.metadata = call.metadata
        return self._infer(message, call)


def _refuse(call: GrpcCall, error: Error, decoupled: bool | Error) -> None:
    if isinstance(decoupled, Error):
        error = decoupled
    elif decoupled:
        error = DecoupledModel(DECOUPLED)
    finish_with(call, error)


def _unwritten(error: Exception) -> Error:
    """Why a response could not be written: a reply slot must not raise whatever a model has answered."""
    return error if isinstance(error, Error) else internal_error("writing a response")


class _UnaryReply:
    """The reply slot of a ModelInfer call."""

    __slots__ = ("_call", "_encoder", "over")

    def __init__(self, encoder: InferEncoder, call: GrpcCall) -> None:
        self._encoder = encoder
        self._call = call
        self.over = False

    def send(self, answer: Answer, final: bool) -> bool:
        self.over = True
        if isinstance(answer, InferResponse):
            try:
                message = self._encoder.response(answer)
            except Exception as error:
                answer = _unwritten(error)
            else:
                self._call.send(message)
                self._call.finish()
                return True
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
    on its way ends the call with its status (G29). While many bytes of responses are held behind a slow one, or many
    requests are under way, the call is told to deliver no more: the client's window closes.
    """

    HELD: ClassVar[int] = 1 << 20
    """Bytes of held responses from which on the call delivers no more messages. Those delivered before are begun."""
    UNDER_WAY: ClassVar[int] = 1 << 28
    """The same for the bytes of requests under way."""
    OVERHEAD: ClassVar[int] = 1 << 12
    """Bytes that a request takes besides those of its message."""

    __slots__ = (
        "_ends_on_error",
        "_half_closed",
        "_held",
        "_holding",
        "_line",
        "_open",
        "_over",
        "_service",
        "_under_way",
        "call",
        "counts",
    )

    def __init__(self, service: GrpcService, call: GrpcStreamCall) -> None:
        self.call = call
        self._service = service
        self._line: deque[_StreamReply] = deque()
        self._open: set[_StreamReply] = set()
        self._held = 0
        self._under_way = 0
        self._holding = False
        self._half_closed = False
        self._over = False
        self.counts = service.most_ahead > 0
        """Whether decoupled models are told of each response when it is sent (G32)."""
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
        reply = _StreamReply(self, incoming, len(message) + self.OVERHEAD)
        self._under_way += reply.cost
        self._open.add(reply)
        self._line.append(reply)
        try:
            self._ask(reply)
        except Exception as error:
            reply.refuse(error)
        if self._is_full and not self._holding:
            self._holding = True
            self.call.hold_back()

    @property
    def _is_full(self) -> bool:
        return self._under_way >= self.UNDER_WAY or self._held >= self.HELD

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

    def _ask(self, reply: "_StreamReply") -> None:
        if self._service.draining:
            raise Unavailable(DRAINING)
        incoming = reply.incoming
        # Whether the reply keeps its place in the line must be known before its first response.
        self._service.port.ask(ModelTransaction(incoming.model_name, incoming.version), reply.begin)

    def begin(self, reply: "_StreamReply", decoupled: bool | Error) -> None:
        """Starts the inference; its model is known to be there, or not. Raises Error."""
        if self._over:
            return
        if isinstance(decoupled, Error):
            raise decoupled
        if decoupled:
            reply.ordered = False
            self._leave_line(reply)
            self._advance()
        request = self._service.decoder.request(reply.incoming, reply.incoming.version)
        request.decoupled_ok = True
        request.most_ahead = self._service.most_ahead
        traces = self._service.traces
        slot: Reply = reply
        if traces.on and not traces.passes(request):
            slot = traced_message(traces, self.call, request, reply)
        reply.key = self._service.port.infer(request, slot)
        if self._over:  # its own first answer has ended the call
            self._service.port.cancel(reply.key)

    def _leave_line(self, reply: "_StreamReply") -> None:
        """It is the last where the engine knows the model at once, as it does: a long line is not searched."""
        if self._line[-1] is reply:
            self._line.pop()
        else:
            self._line.remove(reply)

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
                self._held += sum(map(len, message))
            else:
                writable = self.call.send(message)
        if final:
            reply.done = True
            self._open.discard(reply)
            self._under_way -= reply.cost
            self._advance()
            self.finish_when_done()
        return writable

    def _encode(self, reply: "_StreamReply", answer: Answer, final: bool) -> Message | None:
        if isinstance(answer, InferResponse):
            try:
                return self._service.encoder.stream_response(answer, final)
            except Exception as error:
                answer = _unwritten(error)
        if answer is None:
            return stream_empty_final(reply.incoming) if reply.incoming.empty_final and not reply.ordered else None
        if answer.refused:
            return stream_refusal(reply.incoming, answer.message)
        return stream_failure(reply.incoming, answer.message, final)

    def _advance(self) -> None:
        """Sends what was held and has now come to the head of the line, and lets requests come again."""
        while self._line:
            head = self._line[0]
            for message in head.held:
                self._held -= sum(map(len, message))
                self.call.send(message)
            head.held.clear()
            if not head.done:
                break
            self._line.popleft()
        if self._holding and not self._is_full:
            self._holding = False
            self.call.go_on()

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


class _ForwardingStream(InferStream):
    """With metadata of the call as parameters of each request (G14)."""

    __slots__ = ()

    def begin(self, reply: "_StreamReply", decoupled: bool | Error) -> None:
        if self._service.forwarding is not None:
            self._service.forwarding.metadata = self.call.metadata
        super().begin(reply, decoupled)


class _StreamReply:
    """The reply slot of one request on a stream: its place in the line, and the messages that wait there."""

    __slots__ = ("_stream", "cost", "done", "held", "incoming", "key", "ordered")

    def __init__(self, stream: InferStream, incoming: InferMessage, cost: int) -> None:
        self._stream = stream
        self.incoming = incoming
        self.cost = cost
        self.key: int | None = None
        self.ordered = True
        self.done = False
        self.held: list[Message] = []

    @property
    def tells_end(self) -> bool:
        """Whether an end without a response is written."""
        return self.incoming.empty_final and not self.ordered

    def begin(self, decoupled: bool | Error) -> None:
        """Takes the answer to the question for the model; the guard of this entry."""
        try:
            self._stream.begin(self, decoupled)
        except Exception as error:
            self.refuse(error)

    def refuse(self, error: Exception) -> None:
        """The request did not come as far as its model."""
        if isinstance(error, Error):
            error.refused = True
            self.send(error, True)
        else:
            self.send(internal_error("a message of a gRPC stream"), True)

    def send(self, answer: Answer, final: bool) -> bool:
        return self._stream.deliver(self, answer, final) and not self._stream.counts

    def on_writable(self, resume: Resume) -> None:
        call = self._stream.call
        if self._stream.counts:
            call.on_sent(resume)
        else:
            call.on_writable(resume)
