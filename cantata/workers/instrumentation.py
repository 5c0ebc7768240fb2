"""Executes a step with its log context, its log lines and its trace span."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import structlog

from cantata.errors import CantataError
from cantata.observability import logs, traces
from cantata.observability.logs import context
from cantata.observability.traces import conventions, trace_ids
from cantata.state.ledger.records import Begun
from cantata.state.redis.connection import RedisFailure
from cantata.workers.code import user_code
from cantata.workers.execute import execute
from cantata.workers.runtime.outcomes import AttemptRecord
from cantata.workers.runtime.process import Process

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from cantata.observability.traces.spans import Spans

SLOW_S = 10.0  # a step that takes longer is logged
MAX_KNOWN_ATTEMPTS = 4096  # of parent steps, in one process

log = structlog.get_logger(__name__)

_attempts: OrderedDict[tuple[str, str], int] = OrderedDict()


def execute_traced(process: Process, begun: Begun) -> AttemptRecord | None:
    """Execute a step; return its record, or None if there is nothing to commit."""
    with context.bind({"run": begun.run_id, "step": begun.step_id, "attempt": begun.attempt, "worker": begun.worker}):
        lost = _lost_before(process, begun) if begun.attempt > begun.failures + 1 else None
        if lost:
            log.warning(
                "attempt_lost", lost_attempt=lost["attempt"], lost_worker=lost["worker"], note="its worker died; the step is retried"
            )
        started_at = time.monotonic()
        spans = traces.active()
        if spans is None:
            record = _execute(process, begun)
        else:
            with _span(spans, process, begun, lost) as span:
                record = _execute(process, begun)
                with suppress(Exception):  # a span that cannot be completed must not cost the step its outcome
                    _set_outcome(spans, span, begun, record)
        _log(begun, record, time.monotonic() - started_at)
        return record


def _execute(process: Process, begun: Begun) -> AttemptRecord | None:
    with user_code.recording() as used:
        record = execute(process, begun)
    return replace(record, info={**record.info, "code": [*sorted(used)]}) if record and used else record


def _log(begun: Begun, record: AttemptRecord | None, took_s: float) -> None:
    """Log an attempt that was slow or did not succeed."""
    what = begun.spec.work or begun.spec.kind
    if took_s > SLOW_S:
        log.info("step_slow", what=what, seconds=round(took_s, 1))
    if record is None or record.outcome.status == "done":
        return
    outcome, error = record.outcome, record.outcome.error
    if outcome.status == "wait":
        log.info("step_deferred", what=what, reason=outcome.detail.get("reason"), again_in_s=round(outcome.retry_in_s, 3))
    elif error is not None and outcome.status == "retry":
        log.info("step_retried", what=what, code=error.code, error=error.message, again_in_s=round(outcome.retry_in_s, 3))
    elif error is not None:
        log.warning("step_failed", what=what, code=error.code, error=error.message)
        logs.flush_soon()


def _lost_before(process: Process, begun: Begun) -> Mapping[str, Any] | None:
    """Return the attempt before this one if its worker died."""
    try:
        known = process.ledger.reader.infos(begun.run_id, [begun.step_id])[0].get("lost") or []
    except (CantataError, RedisFailure):
        return None
    lost = cast("list[dict[str, Any]]", known)
    return next((each for each in lost if each["attempt"] == begun.attempt - 1), None)


# --- traces -----------------------------------------------------------------------------------------------------------------


@contextmanager
def _span(spans: Spans, process: Process, begun: Begun, lost: Mapping[str, Any] | None) -> Iterator[Span]:
    run_id, spec = begun.run_id, begun.spec
    attributes = conventions.step_attributes(
        spec, run_id, begun.step_id, begun.attempt, worker=begun.worker, tenant=begun.tenant, session=begun.session.rpartition("/")[2]
    )
    with spans.step(run_id, begun.step_id, begun.attempt, _parent(process, begun), conventions.step_name(spec), attributes) as span:
        _attempts[run_id, begun.step_id] = begun.attempt
        if lost:
            span.add_event("attempt_lost", {"cantata.step.attempt": lost["attempt"], "cantata.worker": lost["worker"]})
        yield span
    while len(_attempts) > MAX_KNOWN_ATTEMPTS:
        _attempts.popitem(last=False)


def _parent(process: Process, begun: Begun) -> int:
    """Return the parent of a step's span: the span of the step that added it by expansion, else that of the run."""
    run_id, parent = begun.run_id, begun.spec.scope
    if parent is None:
        return trace_ids.run_span(run_id)
    attempt = _attempts.get((run_id, parent))
    if attempt is None:
        try:
            attempt = process.ledger.reader.records(run_id, [parent])[parent].attempt
        except (CantataError, RedisFailure, KeyError):
            attempt = 0
        _attempts[run_id, parent] = attempt
    if not attempt:  # a fork copied the parent step, which was executed in another trace
        return trace_ids.run_span(run_id)
    return trace_ids.step_span(run_id, parent, attempt)


def _set_outcome(spans: Spans, span: Span, begun: Begun, record: AttemptRecord | None) -> None:
    """Set the outcome of an attempt on its span."""
    if record is None:
        span.set_attribute("cantata.step.outcome", "released")  # another worker executes the step, or the run has ended
        return
    outcome = record.outcome
    span.set_attribute("cantata.step.outcome", outcome.status)
    if outcome.usage is not None:
        span.set_attributes(conventions.usage_attributes(outcome.usage))
    if outcome.error is not None:
        spans.fail(span, outcome.error.code, outcome.error.message)
    if conventions.records_content() and begun.spec.role in conventions.TOOL_ROLES:
        span.set_attributes(conventions.tool_content(begun.spec.params.get("input"), begun.inputs, record.output))
