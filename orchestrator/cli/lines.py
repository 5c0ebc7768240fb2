"""A run in plain lines, where no terminal watches: one for each thing that a person may want to know."""

from __future__ import annotations

import json

from orchestrator import words
from orchestrator.cli.view import ENDS, EXITS, Seen, View, apply
from orchestrator.models.graph import START
from orchestrator.models.wire import RunEvent

TENTHS = 10  # how often the progress of a map is told
MOST_FAILURES = 10  # of the items of one map, each told with its reason


def tell(view: View, event: RunEvent) -> tuple[View, str | None]:
    """The view after an event, and the line that tells of it, if it is worth one."""
    after = apply(view, event)
    said = _run_said(view, after, event) if event.step in (None, START) or event.type in ("warning", "unserved") else None
    said = said or _step_said(view, after, event)
    return after, f"{words.clock(event.at_ms)} {said}" if said else None


def _run_said(before: View, after: View, event: RunEvent) -> str | None:
    if len(after.warnings) > len(before.warnings):
        return f"warning: {words.line(after.warnings[-1], 300)}"
    if event.type == "accepted":
        return f"accepted {event.run_id}"
    if event.type == "closed":
        return f"{words.spoken(after.state)} {event.run_id}"
    if event.type == "failed":
        return f"failed to start: {_reason(event)}"
    return None


def _step_said(before: View, after: View, event: RunEvent) -> str | None:
    step = event.step
    if step is None or step == START:
        return None
    changed = [name for name, seen in after.steps.items() if seen.tally is not None and seen is not before.steps.get(name)]
    if changed and step.startswith(f"{changed[0]}/"):
        return _item_said(changed[0], before.steps.get(changed[0], Seen()), after.steps[changed[0]], event)
    if step.endswith(EXITS):
        step = step.rpartition("/")[0]
        if event.type not in ENDS:
            return None
    match event.type:
        case "started":
            return f"started {step} (attempt {event.attempt})"
        case "done":
            took_ms = after.steps[step].took_ms if step in after.steps else None
            word = "timed out" if event.detail.get("timed_out") else "done"
            return f"{word} {step}{f' ({words.duration(took_ms)})' if took_ms is not None else ''}"
        case "failed" | "late":
            return f"{event.type} {step}: {_reason(event)}"
        case "retry":
            return f"failed {step}, to be tried again: {_reason(event)}"
        case "waits":
            return f"waits {step}: {words.line(str(event.detail.get('reason', '')), 300)}"
        case "refused":
            return f"refused {step} by {event.worker}: {words.line(str(event.detail.get('message', '')), 300)}"
        case "uncertain":
            return (
                f"uncertain {step}: its worker {event.worker} is gone; say what came of it: submit runs signal {event.run_id} {step} JSON"
            )
        case "lost":
            return f"lost {step}: its worker {event.worker} is gone, another takes over"
        case "waiting":
            asks = f" to answer {json.dumps(event.detail['asks'], ensure_ascii=False)}" if "asks" in event.detail else ""
            return f"waiting {step} for a signal{asks}: submit runs signal {event.run_id} {step} JSON"
        case "skipped" | "signal" | "released":
            return f"{event.type} {step}"
    return None


def _item_said(name: str, before: Seen, after: Seen, event: RunEvent) -> str | None:
    old, new = before.tally, after.tally
    if old is None or new is None:
        return None
    if new.failed > old.failed and new.failed <= MOST_FAILURES:
        return f"failed {event.step}: {_reason(event)}"
    if new.over * TENTHS // max(1, new.total) == old.over * TENTHS // max(1, old.total):
        return None
    return f"{name} {new.over}/{new.total}" + (f", {new.failed} failed" if new.failed else "")


def _reason(event: RunEvent) -> str:
    error = event.detail.get("error")
    return words.line(str(error.get("message", "")) if isinstance(error, dict) else "", 300)
