"""Sends spans to a collector, in the background and within bounds: one that is down or slow holds nothing up."""

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

DELAY_MS = 1000.0  # how long spans wait for others, where OTEL_BSP_SCHEDULE_DELAY says nothing: what a killed process loses
FLUSH_S = 2.0  # how long a process that ends waits for a collector
SLOW_S = 1.0  # a collector that takes so long is not waited for
FAILING_FLUSH_S = 0.2  # and for one that did not take the last spans either

log = structlog.get_logger(__name__)


class Export:
    """A provider of spans that are sent by OTLP over HTTP, as the standard OTEL_* variables say."""

    def __init__(self, instance: str, version: str) -> None:
        for noisy in ("opentelemetry.exporter", "opentelemetry.sdk"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)  # one line of ours tells what each failure would
        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        own = {"service.version": version, "service.instance.id": instance} | ({} if named else {"service.name": "cantata"})
        self._watched = _Watched(OTLPSpanExporter())
        delay = None if "OTEL_BSP_SCHEDULE_DELAY" in os.environ else DELAY_MS
        self._batches = BatchSpanProcessor(self._watched, schedule_delay_millis=delay)
        self.provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
        self.provider.add_span_processor(self._batches)

    def flush(self, timeout_s: float | None = None) -> None:
        """Have what is there sent, and wait for it a little."""
        _bounded(self._batches.force_flush, self._patience_s(timeout_s))

    def stop(self) -> None:
        """Send what is there, wait for it a little, and send no more."""
        _bounded(self._batches.shutdown, self._patience_s(None))
        self._watched.give_up()

    def _patience_s(self, timeout_s: float | None) -> float:
        return FAILING_FLUSH_S if self._watched.is_slow else FLUSH_S if timeout_s is None else timeout_s


class _Watched(SpanExporter):
    """Says once that spans are not taken, and once that they are again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._since: float | None = None
        self.is_failing = False

    @property
    def is_slow(self) -> bool:
        """Whether it did not take the last spans, or takes long for those it is sent now."""
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
            log.warning("traces_not_sent", spans=len(spans), note="the collector does not take them; the runs are not harmed")
        elif had_failed and not self.is_failing:
            log.warning("traces_sent_again")
        return result

    def shutdown(self) -> None:
        """Nothing yet: what is on its way may arrive."""

    def give_up(self) -> None:
        """Try no more."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def _bounded(work: object, timeout_s: float) -> None:
    """Do work that may take long in a thread, and wait for it so long."""
    thread = threading.Thread(target=work, name="traces-flush", daemon=True)  # type: ignore[arg-type]
    thread.start()
    thread.join(timeout_s)
