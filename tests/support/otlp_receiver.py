"""An HTTP endpoint for what OpenTelemetry sends (OTLP), which keeps the spans that it is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

TRACES, METRICS = "/v1/traces", "/v1/metrics"


class OtlpReceiver(ThreadingHTTPServer):
    """Keeps spans, and takes metrics, on a free port of this machine."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.spans: list[Span] = []

    def url(self, path: str) -> str:
        """Where spans or metrics go to, for the variable of OpenTelemetry that names it."""
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class _Request(BaseHTTPRequestHandler):
    server: OtlpReceiver

    def do_POST(self) -> None:
        """Take what is sent."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == TRACES:
            sent = ExportTraceServiceRequest.FromString(body)
            self.server.spans += [s for one in sent.resource_spans for scope in one.scope_spans for s in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as the original)
        """Say nothing."""


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Lend an endpoint."""
    server = OtlpReceiver()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
