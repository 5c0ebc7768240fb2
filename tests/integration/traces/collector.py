"""A collector of traces: OTLP over HTTP on loopback. It can be slow, and it can refuse."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True)
class Seen:
    """A span as it came over the wire."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    links: tuple[tuple[str, str], ...]
    events: tuple[tuple[str, Mapping[str, Any]], ...]
    has_failed: bool
    message: str

    @property
    def run_id(self) -> Any:
        """The run that it says it is of."""
        return self.attributes.get("cantata.run.id")


class Collector:
    """Takes spans in."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.headers: list[dict[str, str]] = []
        self._spans: list[Seen] = []
        self._lock = threading.Lock()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(collector.delay_s)
                collector._take(
                    dict(self.headers), gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                )
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *words: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def spans(self, run_id: str | None = None) -> list[Seen]:
        """What came, each span once; of one trace if a run of it is named."""
        with self._lock:
            seen = list(self._spans)
        if run_id is None:
            return seen
        traces = {span.trace_id for span in seen if span.run_id == run_id}
        return [span for span in seen if span.trace_id in traces]

    def _take(self, headers: dict[str, str], body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        found = [
            _seen(span, _attributes(group.resource.attributes))
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self.headers.append(headers)
            self._spans += found

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _seen(span: Any, resource: Mapping[str, Any]) -> Seen:
    return Seen(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        resource=resource,
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        events=tuple((event.name, _attributes(event.attributes)) for event in span.events),
        has_failed=span.status.code == 2,
        message=span.status.message,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
