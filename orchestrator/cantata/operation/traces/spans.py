"""Spans of runs. Imported only where traces are wanted: it needs the extra `otel`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from cantata.operation.traces import conventions
from cantata.operation.traces.conventions import Attributes, SubmissionSpan

_next_ids: ContextVar[tuple[int, int] | None] = ContextVar("cantata_span", default=None)


class _FixedIds(IdGenerator):
    """Gives a span the ids that are set for it, and any other span those of the previous generator."""

    def __init__(self, previous: IdGenerator) -> None:
        self._previous = previous

    def generate_trace_id(self) -> int:
        ids = _next_ids.get()
        return ids[0] if ids else self._previous.generate_trace_id()

    def generate_span_id(self) -> int:
        ids = _next_ids.get()
        return ids[1] if ids else self._previous.generate_span_id()

    def is_trace_id_random(self) -> bool:
        return True  # ours are digests, which are distributed as evenly


class Spans:
    """Factory of spans in the traces of runs, with our provider or that of the host program."""

    def __init__(self, provider: TracerProvider, version: str) -> None:
        tracer = provider.get_tracer("cantata", version)
        if isinstance(tracer, SdkTracer) and not isinstance(tracer.id_generator, _FixedIds):
            tracer.id_generator = _FixedIds(tracer.id_generator)  # only of this tracer
        self._tracer = tracer
        self._sampler = provider.sampler

    @contextmanager
    def step(
        self, run_id: str, step_id: str, attempt: int, parent: int, name: str, attributes: Attributes
    ) -> Iterator[Span]:
        """Trace an attempt of a step; its span is current for the block. `parent` is the span of the parent step, or of the run."""
        context = self._in_trace(run_id, parent)
        span = self._start(
            conventions.trace_id(run_id), conventions.step_span(run_id, step_id, attempt), name, context, attributes
        )
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            yield span

    @contextmanager
    def call(self, name: str, attributes: Attributes) -> Iterator[Span]:
        """Trace a call of another service, as a child of the current span."""
        span = self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            yield span

    def run(self, run_id: str, fields: Mapping[str, str | None]) -> None:
        """Record the root span of a closed run."""
        attributes = conventions.run_attributes(fields, run_id)
        start, end = _ns(fields["created_at"]), _ns(fields["closed_at"])
        name = f"run {fields['kind']}"
        span = self._start(
            conventions.trace_id(run_id), conventions.run_span(run_id), name, Context(), attributes, start_ns=start
        )
        if fields["status"] != "succeeded":
            self.fail(span, *conventions.error_of(fields))
        span.end(end_time=end)

    @contextmanager
    def submission(self, kind: str) -> Iterator[SubmissionSpan]:
        """Trace a submission, in the trace of the run that the block sets, with a link to the current span of the caller."""
        submitted = SubmissionSpan()
        start = time.time_ns()
        yield submitted
        run_id = submitted.run_id
        if not run_id:
            return
        caller = trace.get_current_span()
        known = caller.get_span_context()
        links = [Link(known)] if known.is_valid else []
        if submitted.source:
            links.append(Link(self._root(submitted.source)))
        context = self._in_trace(run_id, conventions.run_span(run_id))
        span = self._tracer.start_span(
            f"submit {kind}", context, SpanKind.PRODUCER, {"cantata.run.id": run_id}, links, start
        )
        span.end()
        if caller.is_recording():
            caller.add_link(self._root(run_id), {"cantata.run.id": run_id})

    def fail(self, span: Span, code: str, message: str) -> None:
        """Mark a span as failed."""
        span.set_attribute("error.type", code)
        span.set_status(Status(StatusCode.ERROR, message))

    def _start(
        self,
        trace_id: int,
        span_id: int,
        name: str,
        context: Context,
        attributes: Attributes,
        *,
        start_ns: int | None = None,
    ) -> Span:
        before = _next_ids.set((trace_id, span_id))
        try:
            return self._tracer.start_span(name, context, SpanKind.INTERNAL, attributes, start_time=start_ns)
        finally:
            _next_ids.reset(before)

    def _in_trace(self, run_id: str, parent: int) -> Context:
        return trace.set_span_in_context(NonRecordingSpan(self._root(run_id, parent)), Context())

    def _root(self, run_id: str, span_id: int | None = None) -> SpanContext:
        """Return the root of a run's trace, or another span in it; whether it is sampled depends on the trace's id only."""
        trace_id = conventions.trace_id(run_id)
        is_sampled = self._sampler.should_sample(Context(), trace_id, "run").decision is not Decision.DROP
        flags = TraceFlags.RANDOM_TRACE_ID | (TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
        return SpanContext(
            trace_id, span_id or conventions.run_span(run_id), is_remote=True, trace_flags=TraceFlags(flags)
        )


def _ns(ms: str | None) -> int:
    return int(float(ms or 0)) * 1_000_000
