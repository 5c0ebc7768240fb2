"""Chat frames: one for an event of a turn, or none. Pure.

Each frame has the offset of its event, so a client that reconnects with its last offset gets each frame once.
"""

from __future__ import annotations

import json

from cantata.client.records import StepRecord
from cantata.flows.events import AttemptFailed, LeaseLost, ModelFallback, RateLimited, ReplyDelta, RunEvent
from cantata.flows.graph import START
from cantata.flows.step_kinds import kind_named
from cantata.flows.wire import RunResult
from cantata.values import JsonValue

Frame = dict[str, JsonValue]

CHOICE_FIELDS = ("plan", "next_action", "refined", "fault")
MAX_VALUE = 4096  # characters of a call's input or output as JSON; larger ones are left out, and are in the run's record


def steps_of(events: list[RunEvent]) -> list[str]:
    """Return the steps whose records are needed to make frames of these events."""
    needed = [event for event in events if event.step_state in ("running", "done") or event.voids_attempt]
    return list(dict.fromkeys(event.step for event in needed if event.step and event.step != START))


def frame_of(event: RunEvent, step: StepRecord | None) -> Frame | None:
    """Return the frame of an event; `step` is the record of its step, where `steps_of` names it."""
    fields = _fields(event, step)
    return None if fields is None else {"type": fields.pop("type"), "run_id": event.run_id, "seq": event.seq, **fields}


def result_frame(event: RunEvent, result: RunResult) -> Frame:
    """Return the last frame of a turn: how it ended."""
    fields = result.model_dump(mode="json", include={"status", "output", "error", "agents", "usage", "warnings", "duration_ms"})
    return {"type": "result", "run_id": event.run_id, "seq": event.seq, **fields}


def _fields(event: RunEvent, step: StepRecord | None) -> Frame | None:
    base: Frame = {"step": event.step, "attempt": event.attempt}
    match event:
        case ReplyDelta():
            return {"type": "token", **base, "text": event.text}
        case ModelFallback():
            return {"type": "void", **base, "reason": "fallback"}
        case RunEvent(is_warning=True):
            return {"type": "warning", **base, "message": event.explanation}
        case RateLimited():
            return {"type": "rate_limited", **base, "reason": event.reason}
    if step is None:
        return None
    match step.spec.role:
        case "tool":
            return _tool(event, step, base)
        case "choice":
            return _choice(event, step, base)
    if not kind_named(step.spec.kind).is_heard:
        return None
    if event.step_state == "running" and step.spec.role in ("turn", "agent") and not step.spec.params.get("round"):
        return {"type": "agent", **base, "agent": step.spec.work_name}
    return {"type": "void", **base, "reason": event.type, "error": _error(event)} if event.voids_attempt else None


def _tool(event: RunEvent, step: StepRecord, base: Frame) -> Frame | None:
    base = {"type": "tool", **base, "tool": step.spec.work_name}
    match event:
        case RunEvent(step_state="running"):
            return {**base, "state": "started", "input": _short(step.spec.params.get("input"))}
        case RunEvent(step_state="done"):
            return {**base, "state": "done", "output": _short(step.output)}
        case AttemptFailed() | LeaseLost():
            return {**base, "state": event.type, "error": _error(event)}
    return None


def _choice(event: RunEvent, step: StepRecord, base: Frame) -> Frame | None:
    found = {name: step.info[name] for name in CHOICE_FIELDS if step.info.get(name)}
    agent = step.info.get("chosen_agent")
    if event.step_state != "done" or not (found or agent):
        return None
    by = "default" if step.info.get("source") == "default" else kind_named(step.spec.kind).chosen_by
    return {"type": "chosen", **base, "agent": agent, "by": by, **found}


def _short(value: JsonValue) -> JsonValue:
    return value if len(json.dumps(value, ensure_ascii=False)) <= MAX_VALUE else None


def _error(event: RunEvent) -> str | None:
    return event.explanation if isinstance(event, AttemptFailed) else None
