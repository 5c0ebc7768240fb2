"""Turns what a handler returned or raised into the record of its attempt."""

from __future__ import annotations

import random
from os import environ

from cantata import bounds
from cantata.errors import MustWait, StepError
from cantata.flows.graph import Graph, Outcome
from cantata.flows.step_kinds import StepRole, kind_named
from cantata.ledger.encoding import to_json
from cantata.ledger.records import AttemptRecord, Begun
from cantata.operation.logs.secrets import redact_beginning, secrets_in
from cantata.values import ErrorInfo, JsonValue

MIN_RETRY_DELAY_S = 0.5
MAX_RETRY_DELAY_S = 30.0
RECHECK_S = 1.0  # until a sweep makes sure that a call waits in a queue of the limits: it may be woken before its wait is recorded
_ROLES_OF_VALUES: frozenset[StepRole] = frozenset({"tool", "function", "turn", "expansion"})
"""Roles of steps whose output is a value of somebody else's code, or of a model."""
MAX_MESSAGE_CHARS = 4000  # of an error: it is recorded with the step, in events, and with the run


def record_of(begun: Begun, outcome: Outcome, *, limit_bytes: int, took_ms: float, source: str = "") -> AttemptRecord:
    """Return the record of a handler's outcome.

    An output that is not JSON or too large becomes a failure whose message names `source`, by default the step's work or kind.
    """
    try:
        output = _output_text(outcome.output, limit_bytes, depth=_max_depth(begun, outcome))
        if outcome.fragment is not None:
            _check_fragment(outcome.fragment, limit_bytes)
    except StepError as error:
        return failure_record(
            begun,
            StepError(f"{source or begun.spec.work or begun.spec.kind} {error}", code=error.code),
            took_ms=took_ms,
        )
    if outcome.warnings:
        outcome = outcome.model_copy(update={"warnings": tuple(map(_recordable, outcome.warnings))})
    return AttemptRecord(outcome, output, _info(begun, outcome, took_ms))


def failure_record(begun: Begun, error: StepError, *, took_ms: float = 0.0) -> AttemptRecord:
    """Return the record of a failure: a retry if the error is retryable and retries are left."""
    prefix = str(begun.spec.params.get("failure", ""))
    info = ErrorInfo(code=error.code, message=_recordable(f"{prefix}{error}"), step=begun.step_id)
    if error.retryable and begun.failures < begun.spec.retries:
        delay_s = error.retry_after_s
        if delay_s is None:
            delay_s = min(MAX_RETRY_DELAY_S, MIN_RETRY_DELAY_S * float(2**begun.failures)) * (0.5 + random.random() / 2)
        outcome = Outcome(status="retry", error=info, retry_in_s=delay_s)
    else:
        outcome = Outcome(status="failed", error=info)
    return AttemptRecord(outcome, "null", _info(begun, outcome, took_ms))


def timed_out(begun: Begun) -> StepError:
    """Return the error of a step that took too long."""
    limit = f"{begun.spec.timeout_s:g} s" if begun.spec.timeout_s else "time"
    return StepError(f"took longer than its {limit} and was stopped", code="timeout", retryable=True)


def wait_record(begun: Begun, wait: MustWait) -> AttemptRecord:
    """Return the record of an attempt that must wait before it can begin."""
    detail: dict[str, JsonValue] = {"seconds": round(wait.seconds, 3), "reason": str(wait), "ahead": wait.ahead}
    outcome = Outcome(status="wait", retry_in_s=RECHECK_S if wait.is_queued else wait.seconds, detail=detail)
    return AttemptRecord(outcome, "null", _info(begun, outcome, 0.0))


def _recordable(message: str) -> str:
    """Return a message without the secrets of this process, cut to a length that can be recorded."""
    return redact_beginning(message, secrets_in(environ), max_chars=MAX_MESSAGE_CHARS)


def _info(begun: Begun, outcome: Outcome, took_ms: float) -> dict[str, JsonValue]:
    info: dict[str, JsonValue] = {"ms": round(took_ms, 2), "by": begun.worker, **outcome.detail}
    if outcome.takes != ("done",):
        info["takes"] = list(outcome.takes)
    if outcome.usage is not None:
        info["usage"] = outcome.usage.model_dump(exclude_defaults=True)
    if outcome.error is not None:
        info["error"] = outcome.error.model_dump()
    return info


def _max_depth(begun: Begun, outcome: Outcome) -> int:
    """Return the levels that an output may have: more for one of ours that wraps those of others, as that of a map, or a history."""
    is_wrapped = outcome.fragment is not None or kind_named(begun.spec.kind).role not in _ROLES_OF_VALUES
    return bounds.READ_DEPTH if is_wrapped else bounds.MAX_DEPTH


def _output_text(value: JsonValue, limit_bytes: int, *, depth: int) -> str:
    if excess := bounds.find(value, max_bytes=limit_bytes, depth=depth):
        raise StepError(f"returned a value that cannot be recorded: {excess.of('output')}", code="bad_output")
    text = to_json(value)
    size = len(text.encode())
    if size > limit_bytes:
        message = (
            f"returned {size / 1e6:.1f} MB of output; the limit is {limit_bytes / 1e6:.1f} MB (limits.output_bytes)"
        )
        raise StepError(message, code="output_too_large")
    return text


def _check_fragment(fragment: Graph, limit_bytes: int) -> None:
    """Check the values with which steps are added: items of a map, arguments of calls, contexts of waits. Raises StepError."""
    items = fragment.items.given if fragment.items else ()
    values: list[tuple[str, JsonValue, int]] = [
        (f"items[{index}]", value, bounds.MAX_DEPTH) for index, value in enumerate(items)
    ]
    for step in fragment.steps:
        values.append((f"the value of step {step.id!r}", step.given, bounds.MAX_DEPTH))
        values.append((f"the parameters of step {step.id!r}", step.params, bounds.READ_DEPTH))
    for name, value, depth in values:
        if excess := bounds.find(value, max_bytes=limit_bytes, depth=depth):
            raise StepError(f"adds steps with a value that cannot be recorded: {excess.of(name)}", code="bad_output")
