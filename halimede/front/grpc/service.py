"""The gRPC service `inference.GRPCInferenceService`: its RPCs, its handlers, and its inference streams.

Knows the engine's port, the messages, and what `transport.grpc.calls` offers. Callbacks only, all on the event-loop
thread. Nothing blocks; a large message is parsed on another thread.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic_ns
from typing import ClassVar

from halimede.engine_port import EnginePort, ModelTransaction
from halimede.errors import Cancelled, DecoupledModel, Error, Internal, Unavailable
from halimede.front.access import OPEN, Access
from halimede.front.cancelling import cancel
from halimede.front.grpc.access import ForwardingDecoder, restricted
from halimede.front.grpc.admin import SERVICE, admin_rpcs
from halimede.front.grpc.status import finish_with, internal_error, text_of
from halimede.front.offload import Offload, at_once
from halimede.front.tracing import traced_call, traced_message
from halimede.requests import Answer, InferResponse, Reply, Resume
from halimede.tensors import Buffer
from halimede.traces import UNTRACED, Sampler
from halimede.transport.grpc.calls import Bidirectional, Cancel, GrpcCall, GrpcStreamCall, Message, Unary
from halimede.wire.grpc.infer import (
    InferDecoder,
    InferEncoder,
    InferMessage,
    TakesLong,
    parse_large,
    stream_empty_final,
    stream_failure,
    stream_refusal,
)
from halimede.wire.grpc.scan import raw_offset

DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"
"""Triton's text."""
DRAINING = "GRPC server is shutting down and has stopped accepting new requests."
"""Triton's text for an inference after the server began to stop."""


CANCELS_PER_TURN = 64
"""Requests of streams that are cancelled in a turn of the loop, which take about a millisecond. A stream may have sixty
thousand."""
UNLIMITED_POOL = 2**31 - 1
"""The default of `--grpc-max-response-pool-size`."""


class GrpcService:
    """The handlers of one server over one engine port.

    `response_pool_size` is how many responses of a request may wait for its reader before the model waits (G32).
    `access` says what is restricted and what is forwarded. `offload` parses large messages on another thread. `later`
    calls a step in the next turn of the loop.
    """

    def __init__(
        self,
        port: EnginePort,
        response_pool_size: int = UNLIMITED_POOL,
        access: Access = OPEN,
        traces: Sampler = UNTRACED,
        offload: Offload = at_once,
        later: Callable[[Callable[[], None]], object] = lambda step: step(),
    ) -> None:
        self.port = port
        self._later = later
        self._leaving: deque[_StreamReply] = deque()
        self.offload = offload
        # 0 means no limit to the engine, and costs no callback per response.
        self.most_ahead = response_pool_size if response_pool_size < UNLIMITED_POOL else 0
        self.forwarding = None if access.forward is None else ForwardingDecoder(access.forward)
        self.decoder = self.forwarding or InferDecoder()
        self.encoder = InferEncoder()
        self.traces = traces
        self.draining = False
        self.streams: set[InferStream] = set()
        rpcs: dict[str, Unary | Bidirectional] = {**admin_rpcs(port, offload)}
        infer, stream = (self._infer, InferStream) if access.forward is None else (self._forward, _ForwardingStream)
        rpcs[SERVICE + "ModelInfer"] = Unary(infer, True, raw_offset)
        rpcs[SERVICE + "ModelStreamInfer"] = Bidirectional(partial(stream, self), True, raw_offset)
        self.rpcs = restricted(rpcs, access)

    def cancel_all(self, replies: Iterable["_StreamReply"]) -> None:
        """Cancels requests of a stream whose client has gone, a few in each turn of the loop."""
        waits = bool(self._leaving)
        # A request whose model is not known yet has not reached the engine.
        self._leaving.extend(reply for reply in replies if reply.key is not None)
        if not waits:
            self._cancel_some()

    def _cancel_some(self) -> None:
        leaving = self._leaving
        for _ in range(min(len(leaving), CANCELS_PER_TURN)):
            reply = leaving.popleft()
            assert reply.key is not None
            cancel(self.port, reply.key, "gRPC stream", reply.incoming.model_name, reply.incoming.id)
        if leaving:
            self._later(self._cancel_some)

    def drain(self) -> None:
        """Refuses inferences from now on. Those in flight go on (G35). A stream ends when it has none."""
        self.draining = True
        # A stream that ends takes itself out of the set.
        for stream in list(self.streams):
            stream.finish_when_done()

    def _infer(self, message: Buffer, call: GrpcCall) -> Cancel | None:
        # The clock is read only if something is traced.
        started = monotonic_ns() if self.traces.on else 0
        try:
            if self.draining:
                raise Unavailable(DRAINING)
            try:
                incoming = self.decoder.parse(message)
            except TakesLong:
                return _LargeInfer(self, message, call, started).cancel
            return self._start(incoming, call, started)
        except Error as error:
            finish_with(call, error)
        except Exception:
            finish_with(call, internal_error("an inference over gRPC"))
        return None

    def start_large(self, incoming: InferMessage | Error, call: GrpcCall, started: int) -> Cancel | None:
        """Starts the inference of a message that another thread has parsed."""
        try:
            if isinstance(incoming, Error):
                raise incoming
            if self.forwarding is not None:
                self.forwarding.metadata = call.metadata
            return self._start(incoming, call, started)
        except Error as error:
            finish_with(call, error)
        except Exception:
            finish_with(call, internal_error("an inference over gRPC"))
        return None

    def _start(self, incoming: InferMessage, call: GrpcCall, started: int) -> Cancel | None:
        version = incoming.version
        try:
            request = self.decoder.request(incoming, version)
        except Error as error:
            # Triton checks the model before the request, so an error of the model has precedence.
            self.port.ask(ModelTransaction(incoming.model_name, version), partial(_refuse, call, error))
            return None
        reply = _UnaryReply(self.encoder, call)
        slot: Reply = reply
        if started and not self.traces.passes(request):
            slot = traced_call(self.traces, call, request, reply, started)
        key = self.port.infer(request, slot)
        # A call that is answered already has nothing to cancel.
        return None if reply.over else partial(cancel, self.port, key, "gRPC", request.model_name, request.id)

    def _forward(self, message: Buffer, call: GrpcCall) -> Cancel | None:
        """Handles a ModelInfer call and adds its metadata to the parameters. `_infer` decodes before it returns, so the
        decoder may hold the metadata."""
        if self.forwarding is not None:
            self.forwarding.metadata = call.metadata
        return self._infer(message, call)


class _LargeInfer:
    """A ModelInfer call whose message another thread parses."""

    __slots__ = ("_call", "_cancel", "_gone", "_service", "_started")

    def __init__(self, service: GrpcService, message: Buffer, call: GrpcCall, started: int) -> None:
        self._service = service
        self._call = call
        self._started = started
        self._cancel: Cancel | None = None
        self._gone = False
        service.offload(partial(self._parse, message), self._parsed)

    def cancel(self) -> None:
        """The client has gone."""
        self._gone = True
        if self._cancel is not None:
            self._cancel()

    def _parse(self, message: Buffer) -> InferMessage:
        """Any thread."""
        if self._gone:
            raise Cancelled("the client has gone")
        return parse_large(message)

    def _parsed(self, incoming: InferMessage | Error) -> None:
        if not self._gone:
            self._cancel = self._service.start_large(incoming, self._call, self._started)


def _refuse(call: GrpcCall, error: Error, decoupled: bool | Error) -> None:
    if isinstance(decoupled, Error):
        error = decoupled
    elif decoupled:
        error = DecoupledModel(DECOUPLED)
    finish_with(call, error)


def _unwritten(error: Exception) -> Error:
    """Returns the error for a response that could not be written. A reply slot must not raise, even if a model has
    answered nonsense."""
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
        # The engine does not know the RPC that its text names.
        if isinstance(answer, DecoupledModel):
            answer = DecoupledModel(DECOUPLED)
        finish_with(self._call, answer or Internal("expected a single response, got 0"))
        return True

    def on_writable(self, resume: Resume) -> None:
        resume()


class InferStream:
    """One ModelStreamInfer call (G26 to G34).

    Responses of models that are not decoupled are sent in the order of their requests. Responses of decoupled models
    are sent at once. With the metadata `triton_grpc_error: true` the first request that fails after its start ends
    the call with its status (G29). If many bytes of responses wait behind a slow one, or many bytes of requests are in
    flight, the call delivers no more messages. Then the client's window closes.

    `_line` has the requests whose responses must be sent in order.

    | state of a request | event | then |
    | --- | --- | --- |
    | parsed | the engine knows the model | begun; leaves the line if the model is decoupled |
    | parsed | the engine refuses it | its error is sent when it is the first in the line |
    | begun, first in the line or decoupled | a response | sent |
    | begun, not the first in the line | a response | held |
    | begun, not the first in the line | the requests before it are done | its held responses are sent |
    | begun | the last response | done |
    | any | `cancelled` | forgotten, and the engine cancels it |
    """

    MAX_HELD_BYTES: ClassVar[int] = 1 << 20
    """With this many bytes of held responses, the call delivers no more messages. Requests that were delivered before
    still begin."""
    MAX_IN_FLIGHT_BYTES: ClassVar[int] = 1 << 28
    """With this many bytes of requests in flight, the call delivers no more messages."""
    OVERHEAD_BYTES: ClassVar[int] = 1 << 12
    """Bytes that a request counts in addition to its message."""

    __slots__ = (
        "_ends_on_error",
        "_half_closed",
        "_held",
        "_holding",
        "_in_flight",
        "_line",
        "_open",
        "_over",
        "_parsing",
        "_service",
        "call",
        "counts",
    )

    def __init__(self, service: GrpcService, call: GrpcStreamCall) -> None:
        self.call = call
        self._service = service
        self._line: deque[_StreamReply] = deque()
        self._open: set[_StreamReply] = set()
        self._held = 0
        self._in_flight = 0
        self._holding = False
        self._parsing = False
        """Whether another thread parses a message."""
        self._half_closed = False
        self._over = False
        self.counts = service.most_ahead > 0
        """Whether a decoupled model learns of each response when it is sent (G32)."""
        service.streams.add(self)
        self._ends_on_error = any(key == "triton_grpc_error" and value == "true" for key, value in call.metadata)

    def message(self, message: Buffer) -> None:
        # A message that could not be parsed ended the stream, or the call has failed.
        if self._half_closed or self._over:
            return
        try:
            incoming = self._service.decoder.parse(message)
        except TakesLong:
            # No further message is delivered before this one, so the order stays.
            self._parsing = True
            self._hold_if_full()
            self._service.offload(partial(parse_large, message), partial(self._parsed, len(message)))
        except Error as error:
            self._unparsed(error)
        else:
            self._take(incoming, len(message))

    def _parsed(self, size: int, incoming: InferMessage | Error) -> None:
        """Another thread has parsed a large message."""
        self._parsing = False
        if self._over:
            return
        if isinstance(incoming, Error):
            self._unparsed(incoming)
        else:
            self._take(incoming, size)
        self._advance()
        self.finish_when_done()

    def _unparsed(self, error: Error) -> None:
        if isinstance(error, Internal):
            # Triton treats a message that it cannot parse as the end of the stream.
            self.half_closed()
        else:
            # The message is beyond a limit.
            self._cancel_all()
            finish_with(self.call, error)

    def _take(self, incoming: InferMessage, size: int) -> None:
        reply = _StreamReply(self, incoming, size + self.OVERHEAD_BYTES)
        self._in_flight += reply.cost
        self._open.add(reply)
        # Every request stands in the line until the engine says that its model is decoupled.
        self._line.append(reply)
        try:
            self._ask(reply)
        except Exception as error:
            reply.refuse(error)
        self._hold_if_full()

    def _hold_if_full(self) -> None:
        # Once, and again only after the call has resumed.
        if self._is_full and not self._holding:
            self._holding = True
            self.call.hold_back()

    @property
    def _is_full(self) -> bool:
        return self._parsing or self._in_flight >= self.MAX_IN_FLIGHT_BYTES or self._held >= self.MAX_HELD_BYTES

    def half_closed(self) -> None:
        self._half_closed = True
        self.finish_when_done()

    def held_bytes(self) -> int:
        return len(self._open) * self.OVERHEAD_BYTES

    def cancelled(self) -> None:
        self._end()
        self._service.cancel_all(self._open)
        self._open.clear()
        self._line.clear()

    def _cancel_all(self) -> None:
        """Cancels what is in flight, because the call ends with an error."""
        self._end()
        self._service.cancel_all(self._open)
        self._open.clear()
        self._line.clear()

    def _ask(self, reply: "_StreamReply") -> None:
        if self._service.draining:
            raise Unavailable(DRAINING)
        incoming = reply.incoming
        # Whether the reply stays in the line must be known before its first response.
        self._service.port.ask(ModelTransaction(incoming.model_name, incoming.version), reply.begin)

    def begin(self, reply: "_StreamReply", decoupled: bool | Error) -> None:
        """Starts the inference, or raises the Error of its model."""
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
        # Its own first answer may have ended the call.
        if self._over:
            self._service.port.cancel(reply.key)

    def _leave_line(self, reply: "_StreamReply") -> None:
        """Takes a reply out of the line. It is the last one, because the engine answers at once. So a long line is not
        searched."""
        if self._line[-1] is reply:
            self._line.pop()
        else:
            self._line.remove(reply)

    def deliver(self, reply: "_StreamReply", answer: Answer, final: bool) -> bool:
        """Sends an answer, or holds it until those before it in the line are sent. Returns False if the call is
        full."""
        # An answer after the end of the call, or after the last one of its request, is dropped.
        if self._over or reply.done:
            return True
        # A request that was refused before its start does not end the call.
        if self._ends_on_error and isinstance(answer, Error) and not answer.refused:
            self._cancel_all()
            finish_with(self.call, answer)
            return True
        writable = True
        message = self._encode(reply, answer, final)
        if message is not None:
            # Requests before it have not been answered yet.
            if reply.ordered and self._line[0] is not reply:
                reply.held.append(message)
                self._held += sum(map(len, message))
            else:
                writable = self.call.send(message)
        if final:
            reply.done = True
            self._open.discard(reply)
            self._in_flight -= reply.cost
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
            return stream_refusal(reply.incoming, text_of(answer))
        return stream_failure(reply.incoming, text_of(answer), final)

    def _advance(self) -> None:
        """Sends held responses that have come to the head of the line, and lets messages come again."""
        while self._line:
            head = self._line[0]
            for message in head.held:
                self._held -= sum(map(len, message))
                self.call.send(message)
            head.held.clear()
            # The head of the line may still answer. What follows it must wait.
            if not head.done:
                break
            self._line.popleft()
        if self._holding and not self._is_full:
            self._holding = False
            self.call.go_on()

    def finish_when_done(self) -> None:
        """Ends the call if nothing is in flight and nothing more is to come, because the client or the server
        ends it."""
        # The last of the open requests calls this again.
        if self._open or self._over or self._parsing:
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
    """A stream that adds the metadata of the call to the parameters of each request (G14)."""

    __slots__ = ()

    def begin(self, reply: "_StreamReply", decoupled: bool | Error) -> None:
        if self._service.forwarding is not None:
            self._service.forwarding.metadata = self.call.metadata
        super().begin(reply, decoupled)


class _StreamReply:
    """The reply slot of one request of a stream. `held` are the messages that wait in the line."""

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
        """Receives the engine's answer about the model. Errors end here, because the caller is the engine."""
        try:
            self._stream.begin(self, decoupled)
        except Exception as error:
            self.refuse(error)

    def refuse(self, error: Exception) -> None:
        """Answers that the request was refused before its model saw it."""
        if isinstance(error, Error):
            error.refused = True
            self.send(error, True)
        else:
            self.send(internal_error("a message of a gRPC stream"), True)

    def send(self, answer: Answer, final: bool) -> bool:
        # With a limited pool the model waits after each response until that is sent (G32).
        return self._stream.deliver(self, answer, final) and not self._stream.counts

    def on_writable(self, resume: Resume) -> None:
        call = self._stream.call
        if self._stream.counts:
            call.on_sent(resume)
        else:
            call.on_writable(resume)
