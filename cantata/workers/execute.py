"""Does one step: finds its handler, holds its lease, makes a record of what came of it."""

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
from cantata.state.runs.encoding import unknown_fields
from cantata.state.runs.records import Begun
from cantata.workers.handlers import HANDLERS
from cantata.workers.runtime import outcomes
from cantata.workers.runtime.outcomes import Record
from cantata.workers.runtime.process import Process
from cantata.workers.runtime.step_context import StepContext
from cantata.workers.tools import inline_scripts

log = structlog.get_logger(__name__)

SYNC_TIMEOUT_S = 600.0  # a Python function that says nothing of its time is stopped after ten minutes


def do(process: Process, begun: Begun) -> Record | None:
    """Do a step; None if its lease was lost on the way, so that there is nothing to record."""
    since = time.perf_counter()
    context = StepContext(begun, process)
    try:
        if process.ledger.is_old(begun):
            log.warning("step_not_done", run=begun.run_id, step=begun.step_id, reason="this process was frozen since it began the step")
            return None
        if why := _refusal(context):
            process.ledger.refuse(begun.run_id, begun.step_id, begun.attempt, begun.owner, why)
            return None
        outcome = _call(context)
        if outcome.fragment is not None:
            outcome = outcome.model_copy(update={"fragment": fragments.adopt(outcome.fragment, begun.step_id, begun.spec)})
        took_ms = (time.perf_counter() - since) * 1000
        if begun.spec.work:
            process.costs.record(begun.definitions, begun.spec.work, took_ms)
        return outcomes.of(
            begun, outcome, limit_bytes=context.definitions.limits.output_bytes, took_ms=took_ms, giver=_function_of(context)
        )
    except (CancelledError, _Lost):
        return None
    except UnavailableError as error:  # Redis was away for longer than the step could wait: no fault of the step's
        log.warning("step_handed_back", run=begun.run_id, step=begun.step_id, reason=str(error))
        process.ledger.release(begun)
        return None
    except MustWait as wait:
        return outcomes.waits(begun, wait)
    except StepError as error:
        return outcomes.failed(begun, error, took_ms=(time.perf_counter() - since) * 1000)
    except CantataError as error:
        return outcomes.failed(begun, StepError(str(error), code="step_error"))
    except Exception as error:  # the edge: a fault of ours must not tear the canvas
        log.exception("step_broke", run=begun.run_id, step=begun.step_id)
        return outcomes.failed(begun, StepError(f"{type(error).__name__}: {error}", code="internal"))


def _function_of(context: StepContext) -> str:
    """The function that a step calls, as the configuration names it; empty if it calls none by a tool's name."""
    tools = getattr(context.definitions, str(context.params.get("section")), {})
    tool = tools.get(context.params.get("tool")) if isinstance(tools, dict) else None
    return str(tool.function or "") if tool is not None else ""


class _Lost(Exception):
    """The lease was lost while the step was done."""


def _refusal(context: StepContext) -> str:
    """Return why this worker hands a step back: only a newer one knows it, or one with another configuration."""
    if context.begun.spec.kind not in HANDLERS:
        return refused_steps.too_old(f"step kind {context.begun.spec.kind!r}")
    try:
        context.definitions  # noqa: B018  # read now, before anything is done
    except ValidationError as error:
        return refused_steps.too_old(unknown_fields(error))
    return inline_scripts.refusal(context)


def _call(context: StepContext) -> Outcome:
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
    with process.working(begun, timeout_s=limit_s) as held:
        outcome = cast("Callable[[StepContext], Outcome]", handler)(context)
    if held.cancelled:
        raise _Lost
    return outcome
