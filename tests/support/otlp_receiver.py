"""An HTTP endpoint for what OpenTelemetry sends (OTLP), which keeps the spans that it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.endpoint import Answer, Endpoint, Request

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

TRACES, METRICS = "/v1/traces", "/v1/metrics"


class OtlpReceiver(Endpoint):
    """Keeps spans, and takes metrics."""

    def __init__(self) -> None:
        super().__init__(self._take)
        self.spans: list[Span] = []

    def _take(self, request: Request) -> Answer:
        if request.path == TRACES:
            sent = ExportTraceServiceRequest.FromString(request.body)
            self.spans += [s for one in sent.resource_spans for scope in one.scope_spans for s in scope.spans]
        return Answer()
