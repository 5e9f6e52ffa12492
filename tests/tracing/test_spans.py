import logging
import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from halimede.errors import Unsupported
from halimede.options.values import SPAN_BATCHING
from halimede.traces import Context
from halimede.tracing.spans import SpanExport, exporter_for
from halimede.tracing.writer import Writer
from tests.fakes import RecordingReply
from tests.tracing.collector import Collector, attributes_of, collecting, events_of
from tests.tracing.traces import Traced, request_for, response_for

AT_ONCE = {**SPAN_BATCHING, "bsp_schedule_delay": 20}
PATIENCE = 10.0


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


class Export:
    """An export to a collector. `close` sends the spans that were taken."""

    def __init__(self, url: str, protocol: str = "http/protobuf", queue: int = 2048) -> None:
        self.writer = Writer(gather=0)
        batching = {**AT_ONCE, "bsp_max_queue_size": queue}
        self.spans = SpanExport(self.writer, url, {"a": "b"}, batching, exporter_for(url, protocol))

    def take(self, context: Context | None = None) -> Traced:
        """Takes the trace of a request whose model calls another."""
        traced = Traced(context=context, spans=True)
        traced.begin()
        inner = request_for("inner")
        slot = traced.root.child(inner, RecordingReply())
        assert inner.trace is not None
        inner.trace.begun(inner, 1, [11, 21, 31, 41, 51, 61])
        slot.send(response_for(), True)
        root = traced.answered()
        assert root is not None
        self.spans.take(root)
        return traced

    def close(self, timeout: float = PATIENCE) -> None:
        assert self.writer.close(PATIENCE)
        self.spans.close(timeout)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.ERROR]


def test_spans_of_a_request_form_one_tree(collector: Collector) -> None:
    """The spans have the names, parents and attributes of the real server's (T8)."""
    export = Export(collector.url)
    export.take()
    export.close()
    (root,), (model,), (inner,) = (collector.named(name) for name in ("InferRequest", "m", "inner"))
    first, second = collector.named("compute")
    assert not root.parent_span_id
    assert (model.parent_span_id, inner.parent_span_id) == (root.span_id, model.span_id)
    assert [first.parent_span_id, second.parent_span_id] == [inner.span_id, model.span_id]
    assert len({span.trace_id for span in collector.spans}) == 1
    assert events_of(root) == [
        *("HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END")
    ]
    assert events_of(model) == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert events_of(first) == ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
    assert attributes_of(model) == {
        "triton.model_name": "m",
        "triton.model_version": 1,
        "triton.trace_id": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "r",
    }
    assert attributes_of(inner)["triton.trace_parent_id"] == 1
    assert collector.resource["service.name"] == "triton-inference-server"
    assert collector.resource["a"] == "b"


def test_times_of_spans_are_times_of_day(collector: Collector) -> None:
    export = Export(collector.url)
    traced = export.take()
    export.close()
    model, (compute, *_) = collector.named("m")[0], collector.named("compute")
    assert abs(time.time_ns() - time.monotonic_ns() + 10 - model.start_time_unix_nano) < 10**9
    assert model.end_time_unix_nano - model.start_time_unix_nano == traced.root.end - 10
    assert compute.end_time_unix_nano - compute.start_time_unix_nano == 30


def test_context_of_the_client_is_the_parent(collector: Collector) -> None:
    """The model gets a context with its own span, to pass on (T9)."""
    export = Export(collector.url)
    traced = export.take(Context(2**127 + 5, 7, "a=b"))
    export.close()
    root, model = collector.named("InferRequest")[0], collector.named("m")[0]
    assert root.parent_span_id == (7).to_bytes(8, "big")
    assert {span.trace_id for span in collector.spans} == {(2**127 + 5).to_bytes(16, "big")}
    assert {span.trace_state for span in collector.spans} == {"a=b"}
    parent = f"00-{2**127 + 5:032x}-{model.span_id.hex()}-01"
    assert traced.root.context == f'{{"traceparent":"{parent}","tracestate":"a=b"}}'


def test_outage_of_the_collector_is_logged_once_and_so_is_its_end(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    collector.status = 500
    export = Export(collector.url)
    for asked in (1, 2):
        export.take()
        _until(partial(collector.was_asked, asked))
    collector.status = 200
    export.take()
    export.close()
    assert errors(caplog) == [
        f"traces cannot be sent to {collector.url}; they are dropped until the collector accepts them"
    ]
    assert caplog.records[-1].message == f"traces are sent to {collector.url} again"
    assert len(collector.spans) == 5


def _until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_collector_that_hangs_delays_nothing_and_memory_stays_bounded(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = 0
    export = Export(collector.url, queue=8)
    export.take()
    _until(collector.was_asked)
    for _ in range(20):
        export.take()
    began = time.monotonic()
    export.close(0.2)
    assert time.monotonic() - began < 5
    assert errors(caplog) == [
        "spans are dropped: they arrive faster than the collector takes them; lower the trace rate, or raise "
        "bsp_max_queue_size"
    ]


def test_spans_are_sent_over_grpc() -> None:
    taken: list[ExportTraceServiceRequest] = []

    def export(request: ExportTraceServiceRequest, context: object) -> ExportTraceServiceResponse:
        taken.append(request)
        return ExportTraceServiceResponse()

    method = grpc.unary_unary_rpc_method_handler(
        export, ExportTraceServiceRequest.FromString, ExportTraceServiceResponse.SerializeToString
    )
    name = "opentelemetry.proto.collector.trace.v1.TraceService"
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, {"Export": method})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        made = Export(f"http://127.0.0.1:{port}", "grpc")
        made.take()
        made.close()
    finally:
        server.stop(0)
    spans = [span.name for part in taken[0].resource_spans for scope in part.scope_spans for span in scope.spans]
    assert spans == ["compute", "inner", "compute", "m", "InferRequest"]


def test_error_names_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(Unsupported, match=r"pip install 'halimede\[trace\]'"):
        exporter_for("http://localhost", "http/protobuf")
