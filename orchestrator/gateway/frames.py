"""What the events of a turn become in a chat: one frame for an event, or none. Pure.

Each frame has the offset of its event, so a client that says how far it came gets each frame once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from orchestrator.models.graph import START
from orchestrator.models.values import JsonValue
from orchestrator.models.wire import RunEvent, RunResult
from orchestrator.state.records import StepRecord

Frame = dict[str, JsonValue]

TOOLS = frozenset({"tool.call", "mcp.call"})
AGENTS = frozenset({"agent.turn", "agent.run"})
CHOICES: Mapping[str, str] = {"team.rules": "rules", "team.route": "router", "team.next": "turn"}
"""Step kind → who chose."""

VOIDS = frozenset({"lost", "retry", "released", "fallback", "failed", "late"})
"""Events after which nothing counts that the step said before them."""

TOLD_OF_CHOICES = ("plan", "next_action", "refined", "fault")
MOST_VALUE = 4096  # characters of a call's input or output as JSON; larger ones are left out, and are in the run's record


def steps_of(events: list[RunEvent]) -> list[str]:
    """The steps that must be known to tell of these events."""
    told = ("started", "done", "grown", "failed", "late", "lost", "retry", "released")
    return list(dict.fromkeys(event.step for event in events if event.step and event.step != START and event.type in told))


def frame_of(event: RunEvent, step: StepRecord | None) -> Frame | None:
    """What an event is in a chat; `step` is what is known of its step, where `steps_of` asks for it."""
    told = _told(event, step)
    return None if told is None else {"type": told.pop("type"), "run_id": event.run_id, "seq": event.seq, **told}


def result_frame(event: RunEvent, result: RunResult) -> Frame:
    """The last frame of a turn: how it ended."""
    said = result.model_dump(mode="json", include={"status", "output", "error", "agents", "usage", "warnings", "duration_ms"})
    return {"type": "result", "run_id": event.run_id, "seq": event.seq, **said}


def _told(event: RunEvent, step: StepRecord | None) -> Frame | None:
    place: Frame = {"step": event.step, "attempt": event.attempt}
    match event.type:
        case "delta":
            return {"type": "token", **place, "text": str(event.detail.get("text", ""))}
        case "fallback":
            return {"type": "void", **place, "reason": "fallback"}
        case "warning" | "unserved":
            return {"type": "warning", **place, "message": str(event.detail.get("message", ""))}
        case "waits":
            return {"type": "waits", **place, "reason": str(event.detail.get("reason", ""))}
    if step is None:
        return None
    for kinds, tell in _TELLERS:
        if step.spec.kind in kinds:
            return tell(event, step, place)
    return None


def _tool(event: RunEvent, step: StepRecord, place: Frame) -> Frame | None:
    base: Frame = {"type": "tool", **place, "tool": _name(step)}
    match event.type:
        case "started":
            return {**base, "state": "started", "input": _short(step.spec.params.get("input"))}
        case "done":
            return {**base, "state": "done", "output": _short(step.output)}
        case "failed" | "late" | "retry" | "lost":
            return {**base, "state": event.type, "error": _error(event)}
    return None


def _agent(event: RunEvent, step: StepRecord, place: Frame) -> Frame | None:
    if event.type == "started" and not step.spec.params.get("round"):
        return {"type": "agent", **place, "agent": _name(step)}
    return _void(event, step, place)


def _void(event: RunEvent, step: StepRecord, place: Frame) -> Frame | None:
    return {"type": "void", **place, "reason": event.type, "error": _error(event)} if event.type in VOIDS else None


def _choice(event: RunEvent, step: StepRecord, place: Frame) -> Frame | None:
    told = {name: step.info[name] for name in TOLD_OF_CHOICES if step.info.get(name)}
    agent = step.info.get("chosen_agent")
    if event.type not in ("done", "grown") or not (told or agent):
        return None
    by = "default" if step.info.get("source") == "default" else CHOICES[step.spec.kind]
    return {"type": "chosen", **place, "agent": agent, "by": by, **told}


Teller = Callable[[RunEvent, StepRecord, Frame], Frame | None]

_TELLERS: tuple[tuple[frozenset[str], Teller], ...] = (
    (TOOLS, _tool),
    (AGENTS, _agent),
    (frozenset(CHOICES), _choice),
    (frozenset({"team.synthesize"}), _void),
)


def _name(step: StepRecord) -> str:
    return step.spec.work.partition(":")[2]


def _short(value: JsonValue) -> JsonValue:
    return value if len(json.dumps(value, ensure_ascii=False)) <= MOST_VALUE else None


def _error(event: RunEvent) -> str | None:
    error = event.detail.get("error")
    return str(error.get("message", "")) if isinstance(error, dict) else None
