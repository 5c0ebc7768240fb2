"""Executes one step: calls its handler under its time-out, turns the result into a record, and writes its log lines and trace span."""

from __future__ import annotations

import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, cast

import structlog
from pydantic import ValidationError

from cantata.engine.fleet import registry
from cantata.errors import (
    CantataError,
    CodeMismatchError,
    ImportFailedError,
    MustWait,
    StepError,
    StoredDataError,
    UnavailableError,
)
from cantata.flows import graph
from cantata.flows.graph import Outcome
from cantata.ledger import refused_steps
from cantata.ledger.records import AttemptRecord, Begun
from cantata.ledger.redis.connection import RedisFailure
from cantata.operation import exits, logs, traces
from cantata.operation.logs.lines import bind, log_printed
from cantata.operation.traces import conventions
from cantata_workers.process import outcomes, user_code
from cantata_workers.process.process import Process, StepStoppedError
from cantata_workers.process.step_context import Handler, ModelAnswers, StepContext
from cantata_workers.steps.handlers import HANDLERS
from cantata_workers.tools import inline_scripts

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from cantata.operation.traces.spans import Spans

SYNC_TIMEOUT_S = 600.0  # of a Python function for which no time-out is configured
SLOW_S = 10.0  # a step that takes longer is logged
NOBODY_CAN_MS = (
    15_000  # until a step is sent again whose code no worker can import: many of them must not keep workers from others
)
MAX_KNOWN_ATTEMPTS = 4096  # of parent steps, in one process

log = structlog.get_logger(__name__)

_attempts: OrderedDict[tuple[str, str], int] = OrderedDict()


def execute(
    process: Process, begun: Begun, handlers: Mapping[str, Handler] = HANDLERS, answer_model: ModelAnswers | None = None
) -> AttemptRecord | None:
    """Execute a step; return its record, or None if there is nothing to commit: its lease was lost, or it was released or refused."""
    with (
        bind({"run": begun.run_id, "step": begun.step_id, "attempt": begun.attempt, "worker": begun.worker}),
        log_printed(),
    ):
        all_lost = _lost_before(process, begun) if begun.attempt > begun.failures + 1 else []
        lost = next((each for each in all_lost if each["attempt"] == begun.attempt - 1), None)
        if lost:
            note = "its worker died; the step is retried"
            log.warning("attempt_lost", lost_attempt=lost["attempt"], lost_worker=lost["worker"], note=note)
        started_at, spans = time.monotonic(), traces.active()
        with (
            user_code.recording() as used,
            nullcontext() if spans is None else _span(spans, process, begun, lost) as span,
        ):
            with exits.marking_signals(), user_code.careful(bool(all_lost)):
                record = _call_and_record(StepContext(begun, process, answer_model), handlers)
            if record and used:
                record = AttemptRecord(record.outcome, record.output, {**record.info, "code": [*sorted(used)]})
            if spans is not None and span is not None:
                with suppress(Exception):  # a span that cannot be completed must not cost the step its outcome
                    _set_outcome(spans, span, begun, record)
        _log(begun, record, time.monotonic() - started_at)
        return record


def _call_and_record(context: StepContext, handlers: Mapping[str, Handler]) -> AttemptRecord | None:
    """Call the handler of a step, and return the record of its outcome."""
    begun, process, started_at, used_s = context.begun, context.process, time.perf_counter(), time.thread_time()
    try:
        if process.ledger.steps.may_have_expired(begun):
            log.warning(
                "step_not_done",
                run=begun.run_id,
                step=begun.step_id,
                reason="this process was frozen since it began the step",
            )
            return None
        if begun.unreadable:
            return outcomes.failure_record(begun, StepError(begun.unreadable, code="unreadable"))
        if reason := _refusal(context):
            process.ledger.steps.refuse(begun.run_id, begun.step_id, begun.attempt, begun.owner, reason)
            return None
        outcome = _call_handler(context, handlers[begun.spec.kind])
        if outcome.fragment is not None:
            outcome = outcome.model_copy(update={"fragment": graph.adopt(outcome.fragment, begun.step_id, begun.spec)})
        took_ms = (time.perf_counter() - started_at) * 1000
        if begun.spec.work:  # an advance waits for nothing, so a processor that others use makes it no dearer
            cost_ms = (time.thread_time() - used_s) * 1000 if begun.spec.kind == "workflow.advance" else took_ms
            process.costs.record(begun.definitions, begun.spec.work, cost_ms)
        source, limit_bytes = (context.tool and context.tool.function) or "", context.definitions.limits.output_bytes
        return outcomes.record_of(begun, outcome, limit_bytes=limit_bytes, took_ms=took_ms, source=source)
    except StepStoppedError:
        return None
    except (
        UnavailableError
    ) as error:  # Redis was unavailable for longer than the step could wait, which is no failure of the step
        log.warning("step_released", run=begun.run_id, step=begun.step_id, reason=str(error))
        process.ledger.steps.release(begun)
        return None
    except MustWait as wait:
        return outcomes.wait_record(begun, wait)
    except CodeMismatchError as error:
        process.ledger.steps.refuse(begun.run_id, begun.step_id, begun.attempt, begun.owner, str(error))
        return None
    except StepError as error:
        if isinstance(error, ImportFailedError) and _refuse_import(context, error):
            return None
        return outcomes.failure_record(begun, error, took_ms=(time.perf_counter() - started_at) * 1000)
    except CantataError as error:
        return outcomes.failure_record(begun, StepError(str(error), code="step_error"))
    except Exception as error:  # the edge: an error of ours must not break the canvas
        log.exception("step_crashed", run=begun.run_id, step=begun.step_id)
        return outcomes.failure_record(begun, StepError(f"{type(error).__name__}: {error}", code="internal"))
    except (
        BaseException
    ) as error:  # the same, of code at which nothing else looks, such as the methods of a user's types
        failure = exits.failure_of(begun.spec.work or begun.spec.kind, error, code="internal")
        log.exception("step_crashed", run=begun.run_id, step=begun.step_id)
        return outcomes.failure_record(begun, failure)


def _refusal(context: StepContext) -> str:
    """Return why this worker cannot execute a step; empty if it can. Another worker may: a newer one, or one with other files."""
    if context.begun.spec.kind not in HANDLERS:
        return refused_steps.too_old(f"step kind {context.begun.spec.kind!r}")
    try:
        context.definitions  # noqa: B018  # parsed now, before the handler runs
    except ValidationError as error:
        return refused_steps.cannot_read(error)
    except StoredDataError as error:
        raise StepError(f"the definitions of the run cannot be read: {error}", code="unreadable") from error
    return inline_scripts.refusal(context)


def _refuse_import(context: StepContext, error: ImportFailedError) -> bool:
    """Refuse a step whose code this worker cannot import, since another may have other files; return False if none has."""
    begun, steps = context.begun, context.process.ledger.steps
    try:
        other = registry.worker_with(
            context.process.ledger.redis,
            error.module,
            begun.spec.queue,
            but=begun.worker.partition("#")[0],
            other_than=user_code.used() if error.lacks_name else (),
        )
    except RedisFailure:
        other = ""
    if other:
        where = f"{other} serves {'another version of ' if error.lacks_name else ''}{error.module!r}"
        steps.refuse(begun.run_id, begun.step_id, begun.attempt, begun.owner, f"{error}; {where}")
    elif not context.process.is_alone:
        why = f"{error}; correct the file, or start a worker that has it"
        steps.refuse(begun.run_id, begun.step_id, begun.attempt, begun.owner, why, resend_ms=NOBODY_CAN_MS)
    return bool(other) or not context.process.is_alone


def _call_handler(context: StepContext, handler: Handler) -> Outcome:
    begun, process = context.begun, context.process
    timeout_s = begun.spec.timeout_s
    if inspect.iscoroutinefunction(handler):
        return context.wait_for(cast("Coroutine[object, object, Outcome]", handler(context)))
    limit_s = None if begun.spec.decides else timeout_s or SYNC_TIMEOUT_S
    step = None
    try:
        with process.running(begun, timeout_s=limit_s) as step:
            outcome = cast("Callable[[StepContext], Outcome]", handler)(context)
    except BaseException as error:
        if (
            step is None
            or not step.is_cancelled
            or (exits.is_of_signal(error) and not isinstance(error, exits.InterruptedFunction))
        ):
            raise
        raise StepStoppedError from error
    if step.is_cancelled:
        raise StepStoppedError
    return outcome


# --- log lines ------------------------------------------------------------------------------------------------------


def _log(begun: Begun, record: AttemptRecord | None, took_s: float) -> None:
    """Log an attempt that was slow or did not succeed."""
    what = begun.spec.work or begun.spec.kind
    if took_s > SLOW_S:
        log.info("step_slow", what=what, seconds=round(took_s, 1))
    if record is None or record.outcome.status == "done":
        return
    outcome, error = record.outcome, record.outcome.error
    if outcome.status == "wait":
        log.info(
            "step_deferred", what=what, reason=outcome.detail.get("reason"), again_in_s=round(outcome.retry_in_s, 3)
        )
    elif error is not None and outcome.status == "retry":
        log.info(
            "step_retried", what=what, code=error.code, error=error.message, again_in_s=round(outcome.retry_in_s, 3)
        )
    elif error is not None:
        log.warning("step_failed", what=what, code=error.code, error=error.message)
        logs.flush_soon()


def _lost_before(process: Process, begun: Begun) -> list[dict[str, Any]]:
    """Return the attempts before this one whose worker died."""
    try:
        known = process.ledger.reader.infos(begun.run_id, [begun.step_id])[0].get("lost") or []
    except (CantataError, RedisFailure):
        return []
    return cast("list[dict[str, Any]]", known)


# --- traces -----------------------------------------------------------------------------------------------------------------


@contextmanager
def _span(spans: Spans, process: Process, begun: Begun, lost: Mapping[str, Any] | None) -> Iterator[Span]:
    run_id, spec = begun.run_id, begun.spec
    attributes = conventions.step_attributes(
        spec,
        run_id,
        begun.step_id,
        begun.attempt,
        worker=begun.worker,
        tenant=begun.tenant,
        session=begun.session.rpartition("/")[2],
    )
    with spans.step(
        run_id, begun.step_id, begun.attempt, _parent(process, begun), conventions.step_name(spec), attributes
    ) as span:
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
        return conventions.run_span(run_id)
    attempt = _attempts.get((run_id, parent))
    if attempt is None:
        try:
            attempt = process.ledger.reader.records(run_id, [parent])[parent].attempt
        except (CantataError, RedisFailure, KeyError):
            attempt = 0
        _attempts[run_id, parent] = attempt
    if not attempt:  # a fork copied the parent step, which was executed in another trace
        return conventions.run_span(run_id)
    return conventions.step_span(run_id, parent, attempt)


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
