"""Export of spans to a collector, in the background and within bounds: a collector that is down or slow delays nothing."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

DELAY_MS = 1000.0  # of a batch, unless OTEL_BSP_SCHEDULE_DELAY is set: a killed process loses so much
FLUSH_S = 2.0  # for a collector, when the process ends
SLOW_S = 1.0  # a slower collector is treated as failing
FAILING_FLUSH_S = 0.2  # for a collector that refused the last spans, or is slow

log = structlog.get_logger(__name__)


class Export:
    """A provider whose spans are sent by OTLP over HTTP, configured by the standard OTEL_* variables."""

    def __init__(self, instance: str, version: str) -> None:
        for noisy in ("opentelemetry.exporter", "opentelemetry.sdk"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)  # we log one line instead of one for each failure
        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        own = {"service.version": version, "service.instance.id": instance} | (
            {} if named else {"service.name": "cantata"}
        )
        self._exporter = _MonitoredExporter(OTLPSpanExporter())
        delay = None if "OTEL_BSP_SCHEDULE_DELAY" in os.environ else DELAY_MS
        self._batches = BatchSpanProcessor(self._exporter, schedule_delay_millis=delay)
        self.provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
        self.provider.add_span_processor(self._batches)

    def flush(self, timeout_s: float | None = None) -> None:
        """Send the spans that have ended, and wait for it for a bounded time."""
        _run_bounded(self._batches.force_flush, self._flush_timeout_s(timeout_s))

    def stop(self) -> None:
        """Send the spans that have ended, wait for it for a bounded time, and send no more."""
        _run_bounded(self._batches.shutdown, self._flush_timeout_s(None))
        self._exporter.give_up()

    def _flush_timeout_s(self, timeout_s: float | None) -> float:
        return FAILING_FLUSH_S if self._exporter.is_slow else FLUSH_S if timeout_s is None else timeout_s


class _MonitoredExporter(SpanExporter):
    """Logs once when the export begins to fail, and once when it works again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._since: float | None = None
        self.is_failing = False

    @property
    def is_slow(self) -> bool:
        """True if the collector refused the last spans, or the current export takes long."""
        since = self._since
        return self.is_failing or (since is not None and time.monotonic() - since > SLOW_S)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._since = time.monotonic()
        try:
            result = self._exporter.export(spans)
        finally:
            self._since = None
        had_failed, self.is_failing = self.is_failing, result is not SpanExportResult.SUCCESS
        if self.is_failing and not had_failed:
            log.warning(
                "trace_export_failed",
                spans=len(spans),
                note="the collector does not accept spans; runs are not affected",
            )
        elif had_failed and not self.is_failing:
            log.warning("trace_export_recovered")
        return result

    def shutdown(self) -> None:
        """Do nothing yet: an export may still be under way."""

    def give_up(self) -> None:
        """Stop exporting."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def _run_bounded(work: object, timeout_s: float) -> None:
    """Run work in a thread, and wait for it for at most `timeout_s`."""
    thread = threading.Thread(target=work, name="traces-flush", daemon=True)  # type: ignore[arg-type]
    thread.start()
    thread.join(timeout_s)
