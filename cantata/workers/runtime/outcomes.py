"""From what a handler returned or raised to the outcome that is recorded."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from os import environ

from pydantic import TypeAdapter

from cantata.errors import MustWait, StepError
from cantata.models.graph import Outcome
from cantata.models.values import ErrorInfo, JsonValue
from cantata.observability.logs.secrets import beginning, secrets_in
from cantata.state.runs.encoding import to_json
from cantata.state.runs.records import Begun

_json = TypeAdapter[JsonValue](JsonValue)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
LOOK_S = 1.0  # until a sweep makes sure that a call waits in a queue of the limits: it may be called before its wait is recorded
MOST_TOLD = 4000  # characters of an error message: it is recorded with the step, in events, and with the run


@dataclass(frozen=True, slots=True)
class Record:
    """What is told to the ledger."""

    outcome: Outcome
    output: str
    info: Mapping[str, JsonValue]


def of(begun: Begun, outcome: Outcome, *, limit_bytes: int, took_ms: float, giver: str = "") -> Record:
    """The record of a handler's outcome; an output that is no JSON or too large becomes a failure that says so, of its `giver`."""
    try:
        output = _output_text(outcome.output, limit_bytes)
    except StepError as error:
        return failed(begun, StepError(f"{giver or begun.spec.work or begun.spec.kind} {error}", code=error.code), took_ms=took_ms)
    return Record(outcome.model_copy(update={"warnings": tuple(map(_told, outcome.warnings))}), output, _info(begun, outcome, took_ms))


def failed(begun: Begun, error: StepError, *, took_ms: float = 0.0) -> Record:
    """The record of a failure: another try if the failure may pass and tries are left."""
    prefix = str(begun.spec.params.get("failure", ""))
    info = ErrorInfo(code=error.code, message=_told(f"{prefix}{error}"), step=begun.step_id)
    if error.retryable and begun.failures < begun.spec.retries:
        pause_s = _pause_s(begun.failures) if error.retry_after_s is None else error.retry_after_s
        outcome = Outcome(status="retry", error=info, retry_in_s=pause_s)
    else:
        outcome = Outcome(status="failed", error=info)
    return Record(outcome, "null", _info(begun, outcome, took_ms))


def waits(begun: Begun, wait: MustWait) -> Record:
    """The record of an attempt that could not begin."""
    detail: dict[str, JsonValue] = {"seconds": round(wait.seconds, 3), "reason": str(wait), "ahead": wait.ahead}
    outcome = Outcome(status="wait", retry_in_s=LOOK_S, detail=detail)
    return Record(outcome, "null", _info(begun, outcome, 0.0))


def _told(message: str) -> str:
    """A message as it can be recorded: without the secrets of this process, and no book."""
    return beginning(message, secrets_in(environ), most=MOST_TOLD)


def _pause_s(failures: int) -> float:
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(2**failures)) * (0.5 + random.random() / 2)


def _info(begun: Begun, outcome: Outcome, took_ms: float) -> dict[str, JsonValue]:
    info: dict[str, JsonValue] = {"ms": round(took_ms, 2), "by": begun.worker, **outcome.detail}
    if outcome.takes != ("done",):
        info["takes"] = list(outcome.takes)
    if outcome.usage is not None:
        info["usage"] = outcome.usage.model_dump(exclude_defaults=True)
    if outcome.error is not None:
        info["error"] = outcome.error.model_dump()
    return info


def _output_text(value: JsonValue, limit_bytes: int) -> str:
    try:
        _json.validate_python(value, strict=True)
    except (ValueError, RecursionError) as error:
        odd = "it is nested too deeply" if isinstance(error, RecursionError) else _odd_part(value)
        if odd:
            raise StepError(f"returned what is not JSON: {odd}", code="bad_output") from error
    try:
        text = to_json(value)
        size = len(text.encode())
    except (ValueError, RecursionError) as error:
        raise StepError(f"returned what is not JSON: {_odd_part(value)}", code="bad_output") from error
    if size > limit_bytes:
        message = f"returned {size / 1e6:.1f} MB of output; the limit is {limit_bytes / 1e6:.1f} MB (limits.output_bytes)"
        raise StepError(message, code="output_too_large")
    return text


def _odd_part(value: object, path: str = "the value") -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path} is {value}"
    if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        return f"{path} is text with half a surrogate pair"
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                return f"{path} has the key {key!r} of type {type(key).__name__}"
            if found := _odd_part(item, f"{path}[{key!r}]"):
                return found
        return ""
    if isinstance(value, list | tuple):
        return next((found for i, item in enumerate(value) if (found := _odd_part(item, f"{path}[{i}]"))), "")
    if value is None or isinstance(value, str | int | float | bool):
        return ""
    return f"{path} is of type {type(value).__name__}"
