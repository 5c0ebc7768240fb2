"""Executes one step: calls its handler under its time-out, and turns the result into a record."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import cast

import structlog
from pydantic import ValidationError

from cantata.errors import CantataError, MustWait, StepError, UnavailableError
from cantata.models.graph import Outcome
from cantata.planning import fragments
from cantata.state.fleet import refused_steps
from cantata.state.ledger.encoding import unknown_fields
from cantata.state.ledger.records import Begun
from cantata.workers.handlers import HANDLERS
from cantata.workers.runtime import outcomes
from cantata.workers.runtime.outcomes import AttemptRecord
from cantata.workers.runtime.process import Process
from cantata.workers.runtime.step_context import StepContext
from cantata.workers.tools import inline_scripts

log = structlog.get_logger(__name__)

SYNC_TIMEOUT_S = 600.0  # of a Python function for which no time-out is configured


def execute(process: Process, begun: Begun) -> AttemptRecord | None:
    """Execute a step; return its record, or None if there is nothing to commit: its lease was lost, or it was released or refused."""
    started_at = time.perf_counter()
    context = StepContext(begun, process)
    try:
        if process.ledger.steps.may_have_expired(begun):
            log.warning("step_not_done", run=begun.run_id, step=begun.step_id, reason="this process was frozen since it began the step")
            return None
        if reason := _refusal(context):
            process.ledger.steps.refuse(begun.run_id, begun.step_id, begun.attempt, begun.owner, reason)
            return None
        outcome = _call_handler(context)
        if outcome.fragment is not None:
            outcome = outcome.model_copy(update={"fragment": fragments.adopt(outcome.fragment, begun.step_id, begun.spec)})
        took_ms = (time.perf_counter() - started_at) * 1000
        if begun.spec.work:
            process.costs.record(begun.definitions, begun.spec.work, took_ms)
        return outcomes.record_of(
            begun, outcome, limit_bytes=context.definitions.limits.output_bytes, took_ms=took_ms, source=_function_of(context)
        )
    except (CancelledError, _LeaseLost):
        return None
    except UnavailableError as error:  # Redis was unavailable for longer than the step could wait, which is no failure of the step
        log.warning("step_released", run=begun.run_id, step=begun.step_id, reason=str(error))
        process.ledger.steps.release(begun)
        return None
    except MustWait as wait:
        return outcomes.wait_record(begun, wait)
    except StepError as error:
        return outcomes.failure_record(begun, error, took_ms=(time.perf_counter() - started_at) * 1000)
    except CantataError as error:
        return outcomes.failure_record(begun, StepError(str(error), code="step_error"))
    except Exception as error:  # the edge: an error of ours must not break the canvas
        log.exception("step_crashed", run=begun.run_id, step=begun.step_id)
        return outcomes.failure_record(begun, StepError(f"{type(error).__name__}: {error}", code="internal"))


def _function_of(context: StepContext) -> str:
    """Return the name of the function that a step calls, as configured; empty if it calls no tool."""
    tools = getattr(context.definitions, str(context.params.get("section")), {})
    tool = tools.get(context.params.get("tool")) if isinstance(tools, dict) else None
    return str(tool.function or "") if tool is not None else ""


class _LeaseLost(Exception):
    """The lease was lost while the handler ran, or the step timed out."""


def _refusal(context: StepContext) -> str:
    """Return why this worker cannot execute a step; empty if it can. Another worker may: a newer one, or one with other files."""
    if context.begun.spec.kind not in HANDLERS:
        return refused_steps.too_old(f"step kind {context.begun.spec.kind!r}")
    try:
        context.definitions  # noqa: B018  # parsed now, before the handler runs
    except ValidationError as error:
        return refused_steps.too_old(unknown_fields(error))
    return inline_scripts.refusal(context)


def _call_handler(context: StepContext) -> Outcome:
    begun, process = context.begun, context.process
    handler = HANDLERS[begun.spec.kind]
    timeout_s = begun.spec.timeout_s
    if inspect.iscoroutinefunction(handler):
        try:
            return process.run_async(begun, cast("Coroutine[object, object, Outcome]", handler(context)), timeout_s)
        except TimeoutError:
            limit = f"{timeout_s:g} s" if timeout_s else "time"
            raise StepError(f"took longer than its {limit} and was stopped", code="timeout", retryable=True) from None
    limit_s = None if begun.spec.decides else timeout_s or SYNC_TIMEOUT_S
    with process.running(begun, timeout_s=limit_s) as step:
        outcome = cast("Callable[[StepContext], Outcome]", handler)(context)
    if step.is_cancelled:
        raise _LeaseLost
    return outcome
