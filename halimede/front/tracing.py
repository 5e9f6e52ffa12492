"""What front ends record of a request that may be traced: when it arrived, and its W3C trace context (T4, T9).

Called only while something is traced. Event-loop thread only.
"""

import re
from time import monotonic_ns
from typing import Protocol

from halimede.front.http.handling import HttpExchange
from halimede.requests import InferRequest, Reply
from halimede.traces import GRPC, HTTP, HTTP_EVENTS, Context, Sampler
from halimede.transport.grpc.calls import GrpcCall

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII)
MAX_STATE_CHARACTERS = 512
"""Characters of `tracestate` that are passed on. A longer one is dropped."""


class StreamedReply(Reply, Protocol):
    """The reply slot of one message of a stream. `tells_end`: an end without a response is written too."""

    @property
    def tells_end(self) -> bool: ...


def read_context(parent: str, state: str = "") -> Context | None:
    """Returns the trace context of a `traceparent` header, or None if it is malformed."""
    found = _PARENT.fullmatch(parent.strip())
    # W3C Trace Context: version ff is invalid, and version 00 has four fields only.
    if found is None or found[1] == "ff" or (found[1] == "00" and found[4]):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    # W3C Trace Context: ids of zeros only are invalid.
    if not trace_id or not span_id:
        return None
    return Context(
        trace_id, span_id, state.strip() if len(state) <= MAX_STATE_CHARACTERS and state.isprintable() else ""
    )


def traced(
    traces: Sampler, exchange: HttpExchange, request: InferRequest, reply: Reply, tells_end: bool = True
) -> Reply:
    """Returns the reply slot for a request over HTTP. `tells_end` is false for a stream of events, which writes nothing
    for an end without a response."""
    now = monotonic_ns()
    context = _of_headers(exchange) if traces.takes_context else None
    front, received = HTTP if tells_end else HTTP_EVENTS, (exchange.began or now, now)
    return traces.traced(request, reply, front, received, context, tells_end, lambda: exchange.gone)


def undecoded(traces: Sampler, exchange: HttpExchange, model: str) -> None:
    """Records a request over HTTP that could not be decoded."""
    now = monotonic_ns()
    context = _of_headers(exchange) if traces.takes_context else None
    traces.undecoded(model, HTTP, (exchange.began or now, now), context)


def _of_headers(exchange: HttpExchange) -> Context | None:
    parent = exchange.headers.get(b"traceparent")
    if parent is None:
        return None
    return read_context(parent.decode("latin-1"), exchange.headers.get(b"tracestate", b"").decode("latin-1"))


def traced_call(traces: Sampler, call: GrpcCall, request: InferRequest, reply: Reply, started: int) -> Reply:
    """Returns the reply slot for a gRPC call whose message was complete at `started`."""
    context = _of_metadata(call) if traces.takes_context else None
    # Only a call whose message came in parts has recorded when it began.
    began = getattr(call, "began", started)
    return traces.traced(request, reply, GRPC, (began, started), context, True, lambda: _is_over(call))


def traced_message(traces: Sampler, call: GrpcCall, request: InferRequest, reply: StreamedReply) -> Reply:
    """Returns the reply slot for a message of a gRPC stream. Its trace context is that of the stream."""
    now = monotonic_ns()
    context = _of_metadata(call) if traces.takes_context else None
    return traces.traced(request, reply, GRPC, (now, now), context, reply.tells_end, lambda: _is_over(call))


def _is_over(call: GrpcCall) -> bool:
    """Whether the call is over. Nothing can be written then."""
    return bool(getattr(call, "over", False))


def _of_metadata(call: GrpcCall) -> Context | None:
    parent = state = ""
    for key, value in call.metadata:
        if key == "traceparent" and isinstance(value, str):
            parent = value
        elif key == "tracestate" and isinstance(value, str):
            state = value
    return read_context(parent, state) if parent else None
