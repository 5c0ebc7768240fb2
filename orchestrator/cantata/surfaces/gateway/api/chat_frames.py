"""Chat frames: one for an event of a turn, or none. Pure.

Each frame has the offset of its event, so a client that reconnects with its last offset gets each frame once.
"""

from __future__ import annotations

import json

from cantata.client.records import StepRecord
from cantata.client.turn_activity import (
    Activity,
    AgentBegan,
    AgentChosen,
    AttemptVoided,
    RateLimit,
    ReplyPiece,
    ToolDone,
    ToolFailed,
    ToolStarted,
    TurnWarning,
    activity_of,
)
from cantata.flows.events import RunEvent
from cantata.flows.wire import RunResult
from cantata.values import JsonValue

Frame = dict[str, JsonValue]

CHOICE_FIELDS = ("plan", "next_action", "refined", "fault")
MAX_VALUE = (
    4096  # characters of a call's input or output as JSON; larger ones are left out, and are in the run's record
)


def frame_of(event: RunEvent, step: StepRecord | None) -> Frame | None:
    """Return the frame of an event; `step` is the record of its step, where `turn_activity.steps_of` names it."""
    fields = _fields(activity_of(event, step))
    place: Frame = {"run_id": event.run_id, "seq": event.seq, "step": event.step, "attempt": event.attempt}
    return None if fields is None else {"type": fields.pop("type"), **place, **fields}


def result_frame(event: RunEvent, result: RunResult) -> Frame:
    """Return the last frame of a turn: how it ended."""
    fields = result.model_dump(
        mode="json", include={"status", "output", "error", "agents", "usage", "warnings", "duration_ms"}
    )
    return {"type": "result", "run_id": event.run_id, "seq": event.seq, **fields}


def _fields(activity: Activity | None) -> Frame | None:
    match activity:
        case ReplyPiece(text):
            return {"type": "token", "text": text}
        case AttemptVoided(cause="fallback"):
            return {"type": "void", "reason": "fallback"}
        case AttemptVoided(is_heard=True):
            return {"type": "void", "reason": activity.cause, "error": activity.error}
        case AgentBegan(name, is_synthesizer=False):
            return {"type": "agent", "agent": name}
        case ToolStarted(tool, value):
            return {"type": "tool", "tool": tool, "state": "started", "input": _short(value)}
        case ToolDone(tool, value):
            return {"type": "tool", "tool": tool, "state": "done", "output": _short(value)}
        case ToolFailed(tool):
            return {"type": "tool", "tool": tool, "state": activity.cause, "error": activity.error}
        case AgentChosen(agent, by):
            found = {name: value for name in CHOICE_FIELDS if (value := getattr(activity, name))}
            return {"type": "chosen", "agent": agent, "by": by, **found}
        case TurnWarning(message):
            return {"type": "warning", "message": message}
        case RateLimit(reason):
            return {"type": "rate_limited", "reason": reason}
    return None


def _short(value: JsonValue) -> JsonValue:
    return value if len(json.dumps(value, ensure_ascii=False)) <= MAX_VALUE else None
