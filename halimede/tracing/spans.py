"""Exports traces as OpenTelemetry spans to a collector (T8), with the SDK's batch processor and OTLP exporter.

The event loop hands over traces, and the writer's thread turns them into spans. The SDK sends them on its own thread,
from a bounded queue. If the collector is gone, slow or refuses, the spans are lost, and that is logged once.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from random import getrandbits
from threading import Thread
from time import monotonic_ns, time_ns
from typing import Any, Final

from halimede.errors import Unsupported
from halimede.requests import Stamp
from halimede.traces import Context, RootTrace, Trace
from halimede.tracing.writer import OutageLog, Writer

SERVICE: Final = "triton-inference-server"
"""The name of the service, if neither settings nor environment give one."""
_ROOT = "InferRequest"
_COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


def exporter_for(url: str, protocol: str) -> Any:
    """The SDK's exporter for a collector. Raises Unsupported if its packages are not installed."""
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
    """Takes the traces of all settings. `batching` has the `bsp_*` settings of the SDK's processor."""

    def __init__(
        self, writer: Writer, url: str, resource: Mapping[str, str], batching: Mapping[str, int], exporter: Any
    ) -> None:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._writer = writer
        self._spans = _Spans(resource)
        logs = logging.getLogger("opentelemetry")
        outage = OutageLog()
        # The SDK would log each failure. `_log_outages` and `_QueueFullHandler` log an outage once.
        logs.propagate = False
        logs.handlers[:] = [_QueueFullHandler(outage)]
        size = batching["bsp_max_queue_size"]
        self._processor = BatchSpanProcessor(
            _log_outages(exporter, url, outage),
            max_queue_size=size,
            schedule_delay_millis=batching["bsp_schedule_delay"],
            max_export_batch_size=min(size, batching["bsp_max_export_batch_size"]),
        )

    def take(self, root: RootTrace) -> None:
        self._writer.put(lambda: self._write(root), root.cost)

    def close(self, timeout: float) -> None:
        """Sends the remaining spans. Waits at most `timeout` seconds."""
        # On a thread, since `shutdown` may wait much longer for a collector that hangs.
        ending = Thread(target=self._processor.shutdown, name="halimede-spans-end", daemon=True)
        ending.start()
        ending.join(timeout)

    def _write(self, root: RootTrace) -> None:
        for span in self._spans.of(root):
            self._processor.on_end(span)


class _QueueFullHandler(logging.Handler):
    """Gets the log records of the SDK. Logs once that its queue is full, and drops all others."""

    def __init__(self, outage: OutageLog) -> None:
        super().__init__()
        self._outage = outage

    def emit(self, record: logging.LogRecord) -> None:
        if "queue" in record.getMessage().lower():
            self._outage.failed(
                "spans are dropped: they arrive faster than the collector takes them; lower the trace rate, or raise "
                "bsp_max_queue_size"
            )


def _log_outages(exporter: Any, url: str, outage: OutageLog) -> Any:
    """The exporter, with one log line when it starts to fail, and one when it works again."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class LoggingExporter(SpanExporter):
        def export(self, spans: Sequence[Any]) -> SpanExportResult:
            try:
                result: SpanExportResult = exporter.export(spans)
            except Exception as error:
                outage.failed(
                    "traces cannot be sent to %s; they are dropped until the collector answers: %s", url, error
                )
                return SpanExportResult.FAILURE
            if result is SpanExportResult.SUCCESS:
                outage.worked("traces are sent to %s again", url)
            else:
                outage.failed("traces cannot be sent to %s; they are dropped until the collector accepts them", url)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30000) -> bool:
            return bool(exporter.force_flush(timeout_millis))

    return LoggingExporter()


class _Spans:
    """Makes the SDK's spans from traces. Used on the writer's thread."""

    def __init__(self, resource: Mapping[str, str]) -> None:
        from opentelemetry.sdk import trace as sdk
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
        from opentelemetry.trace.span import TraceState

        attributes = dict(resource)
        # The SDK reads these variables too, but the given attributes would win.
        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        if not named:
            attributes.setdefault("service.name", SERVICE)
        self._resource = Resource.create(attributes)
        self._scope = InstrumentationScope("triton-server")
        self._sdk, self._context, self._state = sdk, SpanContext, TraceState
        self._kind, self._flags = SpanKind.SERVER, TraceFlags(TraceFlags.SAMPLED)
        self._offset = 0
        """Nanoseconds from monotonic time to the time of day. Taken again for each root: the system clock may be
        set."""

    def of(self, root: RootTrace) -> Iterator[Any]:
        """The spans of a root: inner ones first, since they end first."""
        self._offset = time_ns() - monotonic_ns()
        client, front = root.client, root.front
        state = self._state.from_header([client.state]) if client is not None and client.state else self._state()
        whole = Context(root.trace_id, root.front_span)
        for call in reversed(root.calls):
            if call.times is not None:
                yield from self._of_model(call, Context(root.trace_id, call.parent.span), state)
        if root.times is not None:
            yield from self._of_model(root, whole, state)
        moments = (front.receive_start, front.receive_end, *root.stamps)
        events = list(zip(moments, (*root.received, *root.stamp_times), strict=True))
        end = max(events[-1][1], root.end)
        yield self._span(_ROOT, whole, client, state, events, root.received[0], end, {}, remote=True)

    def _of_model(self, trace: Trace, parent: Context, state: Any) -> Iterator[Any]:
        times = trace.times or []
        own = Context(parent.trace_id, trace.span)
        compute = [pair for pair in zip(_COMPUTE, times[Stamp.COMPUTE_START :], strict=True) if pair[1]]
        if trace.computes and compute:
            inner = Context(parent.trace_id, getrandbits(64) or 1)
            yield self._span("compute", inner, own, state, compute, compute[0][1], compute[-1][1], {})
        start = times[Stamp.REQUEST_START]
        events = [("REQUEST_START", start), ("QUEUE_START", times[Stamp.QUEUE_START] or start)]
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
