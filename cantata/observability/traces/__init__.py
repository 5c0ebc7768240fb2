"""Traces of runs, sent to a collector by OpenTelemetry if the environment names one; else nothing of it is even imported.

The ids of a trace follow from the run's id (`ids.py`), so no message and no record carries them: a step that another machine does again
is in the same trace.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from cantata.observability.traces.export import Export
    from cantata.observability.traces.spans import Spans

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

log = structlog.get_logger(__name__)

_spans: Spans | None = None
_export: Export | None = None
_is_looked_at = False
_is_missing = False


def active() -> Spans | None:
    """What makes spans in this process, if it was started."""
    return _spans


def is_wanted() -> bool:
    """Whether the environment asks for traces."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(os.environ.get(name) for name in ENDPOINTS)


def prepare() -> None:
    """Import what traces need, before this process forks: its children share the memory. Warn if it is not there."""
    global _is_missing
    if not is_wanted():
        return
    try:
        from cantata.observability.traces import export, spans  # noqa: F401, PLC0415  # only where traces are wanted
    except ImportError:
        _is_missing = True
        log.warning("traces_off", reason="a collector is named, but OpenTelemetry is not installed here: pip install 'cantata[otel]'")
        return
    if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf") == "grpc":
        log.warning("traces_over_http", reason="OTEL_EXPORTER_OTLP_PROTOCOL asks for grpc; traces are sent over HTTP, mostly at port 4318")


def start(instance: str, version: str, *, joins: bool) -> None:
    """Make spans in this process of a worker, after its fork. `joins`: what tools and libraries trace by themselves goes the same way."""
    _start(instance, version)
    if joins and _export is not None:
        from opentelemetry import trace  # noqa: PLC0415  # only where traces are wanted

        trace.set_tracer_provider(_export.provider)


def for_client(version: str) -> Spans | None:
    """What makes spans in a program that submits runs: with its own provider if it has one, else as the environment says."""
    if _export is None and (provider := _provider_here()) is not None:
        from cantata.observability.traces.spans import Spans  # noqa: PLC0415  # as above

        return Spans(provider, version)
    if not _is_looked_at:
        prepare()
    _start("client", version)
    return _spans


@contextmanager
def submitting(kind: str, version: str) -> Iterator[Submission]:
    """A span for handing a run in while the block lasts, which says what run it is; where no traces are made, nothing."""
    spans = for_client(version)
    if spans is None:
        yield Submission()
        return
    with spans.submitting(kind) as submission:
        yield submission


@dataclass(slots=True)
class Submission:
    """What was handed in; nothing new if `run_id` stays empty."""

    run_id: str = ""
    source: str = ""
    """The run that it was made of, if it is a fork."""


def flush(timeout_s: float | None = None) -> None:
    """Have spans sent that were made, and wait for it a little."""
    if _export is not None:
        _export.flush(timeout_s)


def stop() -> None:
    """Have spans sent that were made; this process makes no more, unless it is started again."""
    global _spans, _export, _is_looked_at
    export, _export, _spans, _is_looked_at = _export, None, None, False
    if export is not None:
        export.stop()


def _start(instance: str, version: str) -> None:
    global _spans, _export, _is_looked_at
    if _is_looked_at:
        return
    _is_looked_at = True
    if not is_wanted() or _is_missing:
        return
    from cantata.observability.traces.export import Export  # noqa: PLC0415  # as above
    from cantata.observability.traces.spans import Spans  # noqa: PLC0415

    _export = Export(instance, version)
    _spans = Spans(_export.provider, version)
    atexit.register(stop)


def _provider_here() -> TracerProvider | None:
    """The provider that this program has set up, if it has."""
    if sys.modules.get("opentelemetry.sdk.trace") is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415  # it is there
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

    provider = trace.get_tracer_provider()
    return provider if isinstance(provider, TracerProvider) else None


def _forget() -> None:
    """A forked process has none of the threads that send."""
    global _spans, _export, _is_looked_at
    _spans, _export, _is_looked_at = None, None, False


os.register_at_fork(after_in_child=_forget)
