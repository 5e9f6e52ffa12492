"""Traces as spans of OpenTelemetry, for a collector (contract T8): by the SDK's batch processor and OTLP exporter.

Traces come from the event loop and become spans on the writer's thread; the SDK sends them on a thread of its own, from
a queue with a bound. A collector that is away, slow or refuses costs the spans and nothing else, and is said once.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from random import getrandbits
from threading import Thread
from time import monotonic_ns, time_ns
from typing import Any, Final

from halimede.errors import Unsupported
from halimede.requests import Moment
from halimede.traces import Context, Root, Trace
from halimede.tracing.writer import Outage, Writer

SERVICE: Final = "triton-inference-server"
_ROOT = "InferRequest"
_COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


def exporter_for(url: str, protocol: str) -> Any:
    """An exporter of the SDK. Raises Unsupported where its packages are not there."""
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

            return OverGrpc(endpoint=url, insecure=not url.startswith("https:"))
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        return OverHttp(endpoint=url)
    except ImportError as error:
        raise Unsupported(
            f"The trace mode opentelemetry needs packages that are not installed ({error.name}): "
            "pip install 'halimede[trace]'"
        ) from None


class SpanExport:
    """Where all traces go. `batching` are the settings of the processor, `bsp_...`; `exporter` is one of the SDK."""

    def __init__(
        self, writer: Writer, url: str, resource: Mapping[str, str], batching: Mapping[str, int], exporter: Any
    ) -> None:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._writer = writer
        self._spans = _Spans(resource)
        logs = logging.getLogger("opentelemetry")
        outage = Outage()
        logs.propagate = False
        logs.handlers[:] = [_Overflow(outage)]
        size = batching["bsp_max_queue_size"]
        self._processor = BatchSpanProcessor(
            _told_once(exporter, url, outage),
            max_queue_size=size,
            schedule_delay_millis=batching["bsp_schedule_delay"],
            max_export_batch_size=min(size, batching["bsp_max_export_batch_size"]),
        )

    def take(self, root: Root) -> None:
        self._writer.put(lambda: self._write(root), root.cost)

    def close(self, timeout: float) -> None:
        """Sends what is left, within so many seconds."""
        ending = Thread(target=self._processor.shutdown, name="halimede-spans-end", daemon=True)
        ending.start()
        ending.join(timeout)

    def _write(self, root: Root) -> None:
        for span in self._spans.of(root):
            self._processor.on_end(span)


class _Overflow(logging.Handler):
    """What the SDK logs. It has its own words for a collector that fails, again and again; that its queue is full is
    said once."""

    def __init__(self, outage: Outage) -> None:
        super().__init__()
        self._outage = outage

    def emit(self, record: logging.LogRecord) -> None:
        if "queue" in record.getMessage().lower():
            self._outage.failed("Spans are lost: the collector does not take them as quickly as they come")


def _told_once(exporter: Any, url: str, outage: Outage) -> Any:
    """The exporter; that it fails, and that it works again, is said once."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class ToldOnce(SpanExporter):
        def export(self, spans: Sequence[Any]) -> SpanExportResult:
            try:
                result: SpanExportResult = exporter.export(spans)
            except Exception as error:
                outage.failed("Traces cannot be sent to %s: %s", url, error)
                return SpanExportResult.FAILURE
            if result is SpanExportResult.SUCCESS:
                outage.worked("Traces are sent to %s again", url)
            else:
                outage.failed("Traces cannot be sent to %s; they are lost until it works again", url)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30000) -> bool:
            return bool(exporter.force_flush(timeout_millis))

    return ToldOnce()


class _Spans:
    """Spans of the SDK from traces. On the writer's thread."""

    def __init__(self, resource: Mapping[str, str]) -> None:
        from opentelemetry.sdk import trace as sdk
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
        from opentelemetry.trace.span import TraceState

        attributes = dict(resource)
        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        if not named:
            attributes.setdefault("service.name", SERVICE)
        self._resource = Resource.create(attributes)
        self._scope = InstrumentationScope("triton-server")
        self._sdk, self._context, self._state = sdk, SpanContext, TraceState
        self._kind, self._flags = SpanKind.SERVER, TraceFlags(TraceFlags.SAMPLED)
        self._offset = 0
        """From the clock of time stamps to that of the calendar, in nanoseconds."""

    def of(self, root: Root) -> Iterator[Any]:
        """The parts before the whole, as they end before it."""
        self._offset = time_ns() - monotonic_ns()
        client, front = root.client, root.front
        state = self._state.from_header([client.state]) if client is not None and client.state else self._state()
        whole = Context(root.trace_id, root.front_span)
        for call in reversed(root.calls):
            if call.times is not None:
                yield from self._of_model(call, Context(root.trace_id, call.parent.span), state)
        if root.times is not None:
            yield from self._of_model(root, whole, state)
        moments = (front.receive_start, front.receive_end, *root.moments)
        events = list(zip(moments, (*root.received, *root.moments_at), strict=True))
        end = max(events[-1][1], root.end)
        yield self._span(_ROOT, whole, client, state, events, root.received[0], end, {}, remote=True)

    def _of_model(self, trace: Trace, parent: Context, state: Any) -> Iterator[Any]:
        times = trace.times or []
        own = Context(parent.trace_id, trace.span)
        compute = [pair for pair in zip(_COMPUTE, times[Moment.COMPUTE_START :], strict=True) if pair[1]]
        if trace.computes and compute:
            inner = Context(parent.trace_id, getrandbits(64) or 1)
            yield self._span("compute", inner, own, state, compute, compute[0][1], compute[-1][1], {})
        start = times[Moment.REQUEST_START]
        events = [("REQUEST_START", start), ("QUEUE_START", times[Moment.QUEUE_START] or start)]
        if trace.end:
            events.append(("REQUEST_END", trace.end))
        attributes: dict[str, str | int] = {
            "triton.model_name": trace.model,
            "triton.model_version": trace.version,
            "triton.trace_id": trace.id,
            "triton.trace_parent_id": trace.parent_id,
        }
        if trace.request_id:
            attributes["triton.request_id"] = trace.request_id
        yield self._span(trace.model, own, parent, state, events, start, events[-1][1], attributes)

    def _span(
        self,
        name: str,
        own: Context,
        parent: Context | None,
        state: Any,
        events: Sequence[tuple[str, int]],
        start: int,
        end: int,
        attributes: Mapping[str, str | int],
        remote: bool = False,
    ) -> Any:
        above = None
        if parent is not None:
            above = self._context(parent.trace_id, parent.span_id, remote, self._flags, state)
        return self._sdk.ReadableSpan(
            name,
            self._context(own.trace_id, own.span_id, False, self._flags, state),
            above,
            self._resource,
            attributes,
            [self._sdk.Event(event, {}, ns + self._offset) for event, ns in events],
            kind=self._kind,
            start_time=start + self._offset,
            end_time=end + self._offset,
            instrumentation_scope=self._scope,
        )
