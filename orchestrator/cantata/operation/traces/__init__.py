"""Traces of runs, exported by OpenTelemetry if the environment names a collector; else OpenTelemetry is not even imported.

The ids of a trace follow from the run's id (`conventions.py`), so no message or record has them: a step that another machine executes again
is in the same trace.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from cantata.operation.traces.conventions import SubmissionSpan

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from cantata.operation.traces.export import Export
    from cantata.operation.traces.spans import Spans

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

log = structlog.get_logger(__name__)

_spans: Spans | None = None
_export: Export | None = None
_is_started = False
_is_missing = False


def active() -> Spans | None:
    """Return the span factory of this process; None if traces were not started."""
    return _spans


def is_wanted() -> bool:
    """Return whether the environment asks for traces."""
    if (
        os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return False
    return any(os.environ.get(name) for name in ENDPOINTS)


def prepare() -> None:
    """Import OpenTelemetry before this process forks, so that its children share the memory. Log a warning if it is not installed."""
    global _is_missing
    if not is_wanted():
        return
    try:
        from cantata.operation.traces import export, spans  # noqa: F401, PLC0415  # only where traces are wanted
    except ImportError:
        _is_missing = True
        log.warning(
            "traces_off", reason="a collector is named, but OpenTelemetry is not installed: pip install 'cantata[otel]'"
        )
        return
    if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf") == "grpc":
        log.warning(
            "traces_over_http",
            reason="OTEL_EXPORTER_OTLP_PROTOCOL asks for grpc; traces are sent over HTTP, usually to port 4318",
        )


def start(instance: str, version: str, *, is_global: bool) -> None:
    """Start traces in a worker process, after its fork. With `is_global`, spans of tools and libraries go to the same collector."""
    _start(instance, version)
    if is_global and _export is not None:
        from opentelemetry import trace  # noqa: PLC0415  # only where traces are wanted

        trace.set_tracer_provider(_export.provider)


def client_spans(version: str) -> Spans | None:
    """Return the span factory of a program that submits runs: with its own provider if it has one, else as the environment says."""
    if _export is None and (provider := _existing_provider()) is not None:
        from cantata.operation.traces.spans import Spans  # noqa: PLC0415  # as above

        return Spans(provider, version)
    if not _is_started:
        prepare()
    _start("client", version)
    return _spans


@contextmanager
def trace_submission(kind: str, version: str) -> Iterator[SubmissionSpan]:
    """Trace a submission; the block sets the run in the value it gets. Does nothing without traces."""
    spans = client_spans(version)
    if spans is None:
        yield SubmissionSpan()
        return
    with spans.submission(kind) as submission:
        yield submission


def flush(timeout_s: float | None = None) -> None:
    """Send the spans that have ended, and wait for it for a bounded time."""
    if _export is not None:
        _export.flush(timeout_s)


def stop() -> None:
    """Send the spans that have ended, and stop traces in this process; `start` starts them again."""
    global _spans, _export, _is_started
    export, _export, _spans, _is_started = _export, None, None, False
    if export is not None:
        export.stop()


def _start(instance: str, version: str) -> None:
    global _spans, _export, _is_started
    if _is_started:
        return
    _is_started = True
    if not is_wanted() or _is_missing:
        return
    from cantata.operation.traces.export import Export  # noqa: PLC0415  # as above
    from cantata.operation.traces.spans import Spans  # noqa: PLC0415

    _export = Export(instance, version)
    _spans = Spans(_export.provider, version)
    atexit.register(stop)


def _existing_provider() -> TracerProvider | None:
    """Return the provider that this program has configured, if any."""
    if sys.modules.get("opentelemetry.sdk.trace") is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415  # it is installed
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

    provider = trace.get_tracer_provider()
    return provider if isinstance(provider, TracerProvider) else None


def _reset() -> None:
    """Reset traces in a forked process: the threads that send do not survive a fork."""
    global _spans, _export, _is_started
    _spans, _export, _is_started = None, None, False


os.register_at_fork(after_in_child=_reset)
