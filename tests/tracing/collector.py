"""A collector of OpenTelemetry on 127.0.0.1: takes spans over HTTP, or refuses them, or says nothing."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SLOW_SECONDS = 30.0


class Collector:
    """`status` is what it answers; 0 is no answer at all, for a long time."""

    def __init__(self, url: str, ended: threading.Event) -> None:
        self.url = url
        self.ended = ended
        self.status = 200
        self.asked = 0
        self.spans: list[Any] = []
        self.resource: dict[str, str] = {}

    def was_asked(self, times: int = 1) -> bool:
        return self.asked >= times

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def take(self, body: bytes, is_json: bool) -> None:
        """Of JSON the ids come out as other bytes than they are, but equal ones as equal ones."""
        if is_json:
            request = ParseDict(json.loads(body), ExportTraceServiceRequest(), ignore_unknown_fields=True)
        else:
            request = ExportTraceServiceRequest.FromString(body)
        for part in request.resource_spans:
            self.resource = {one.key: one.value.string_value for one in part.resource.attributes}
            for scope in part.scope_spans:
                self.spans += scope.spans


@contextmanager
def collecting() -> Iterator[Collector]:
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.asked += 1
            if not collector.status:
                ended.wait(SLOW_SECONDS)
                return
            if collector.status == 200:
                collector.take(body, "json" in self.headers["Content-Type"])
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces", ended)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        ended.set()
        server.shutdown()
        thread.join(10)
        server.server_close()


def attributes_of(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def events_of(span: Any) -> list[str]:
    return [event.name for event in span.events]
