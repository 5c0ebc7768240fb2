"""Plain view of a run, without a terminal: a line for each event worth one."""

from __future__ import annotations

import json

from cantata import text_format
from cantata.models.events import RunEvent, SignalAwaited, StepDone
from cantata.models.graph import START
from cantata.runs.view import EXITS, RunView, StepProgress

TENTHS = 10  # how often the progress of a map is printed
MAX_FAILURES = 10  # of the items of one map, each printed with its reason
MAX_REASON = 300  # characters


def apply_and_describe(view: RunView, event: RunEvent) -> tuple[RunView, str | None]:
    """Return the view after an event, and a line about the event; None if it is not worth one."""
    after = view.apply(event)
    line = _describe(view, after, event)
    return after, f"{text_format.clock(event.at_ms)} {line}" if line else None


def _describe(before: RunView, after: RunView, event: RunEvent) -> str:
    reason = text_format.line(event.explanation, MAX_REASON)
    if len(after.warnings) > len(before.warnings):
        return f"warning: {reason}"
    if event.ends_run:
        return f"{text_format.state_label(after.state)} {event.run_id}"
    step = event.step or ""
    if step == START:
        return f"failed to start: {reason}" if event.step_state == "failed" else ""
    changed = next((name for name, each in after.steps.items() if each.items is not None and each is not before.steps.get(name)), None)
    if changed and step.startswith(f"{changed}/"):
        return _describe_item(changed, before.steps.get(changed, StepProgress()), after.steps[changed], event)
    if step.endswith(EXITS):
        step = step.rpartition("/")[0]
        if not event.ends_step:
            return ""
    if isinstance(event, StepDone):
        took_ms = after.steps[step].took_ms if step in after.steps else None
        return f"{'timed out' if event.timed_out else 'done'} {step}{f' ({text_format.duration(took_ms)})' if took_ms is not None else ''}"
    asks = f" to answer {json.dumps(event.asks, ensure_ascii=False)}" if isinstance(event, SignalAwaited) and event.asks is not None else ""
    signal = f"submit runs signal {event.run_id} {step} JSON"
    return event.line.format_map({**dict(event), "step": step, "reason": reason, "asks": asks, "signal": signal})


def _describe_item(name: str, before: StepProgress, after: StepProgress, event: RunEvent) -> str:
    old, new = before.items, after.items
    if old is None or new is None:
        return ""
    if new.failed > old.failed and new.failed <= MAX_FAILURES:
        return f"failed {event.step}: {text_format.line(event.explanation, MAX_REASON)}"
    if new.over * TENTHS // max(1, new.total) == old.over * TENTHS // max(1, old.total):
        return ""
    return f"{name} {new.over}/{new.total}" + (f", {new.failed} failed" if new.failed else "")
