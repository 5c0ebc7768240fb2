"""Plain view of a run, without a terminal: a line for each event worth one."""

from __future__ import annotations

import json

from cantata import text_format
from cantata.models.events import (
    AttemptFailed,
    LeaseLost,
    OutcomeUncertain,
    RateLimited,
    RunAccepted,
    RunClosed,
    RunEvent,
    SignalAwaited,
    SignalReceived,
    StepDone,
    StepFailed,
    StepRefused,
    StepReleased,
    StepRetried,
    StepSkipped,
    StepStarted,
)
from cantata.models.graph import START
from cantata.runs.view import EXITS, RunView, StepProgress

TENTHS = 10  # how often the progress of a map is printed
MAX_FAILURES = 10  # of the items of one map, each printed with its reason
MAX_REASON = 300  # characters


def apply_and_describe(view: RunView, event: RunEvent) -> tuple[RunView, str | None]:
    """Return the view after an event, and a line about the event; None if it is not worth one."""
    after = view.apply(event)
    line = _run_line(view, after, event) or _step_line(view, after, event)
    return after, f"{text_format.clock(event.at_ms)} {line}" if line else None


def _run_line(before: RunView, after: RunView, event: RunEvent) -> str | None:
    if len(after.warnings) > len(before.warnings):
        return f"warning: {text_format.line(after.warnings[-1], MAX_REASON)}"
    match event:
        case RunAccepted():
            return f"accepted {event.run_id}"
        case RunClosed():
            return f"{text_format.state_label(after.state)} {event.run_id}"
        case StepFailed(step="@start"):
            return f"failed to start: {_reason(event)}"
    return None


def _step_line(before: RunView, after: RunView, event: RunEvent) -> str | None:
    step = event.step
    if step is None or step == START:
        return None
    changed = [name for name, each in after.steps.items() if each.items is not None and each is not before.steps.get(name)]
    if changed and step.startswith(f"{changed[0]}/"):
        return _item_line(changed[0], before.steps.get(changed[0], StepProgress()), after.steps[changed[0]], event)
    if step.endswith(EXITS):
        step = step.rpartition("/")[0]
        if not event.ends_step:
            return None
    signal = f"submit runs signal {event.run_id} {step} JSON"
    match event:
        case StepStarted():
            return f"started {step} (attempt {event.attempt})"
        case StepDone():
            took_ms = after.steps[step].took_ms if step in after.steps else None
            return (
                f"{'timed out' if event.timed_out else 'done'} {step}{f' ({text_format.duration(took_ms)})' if took_ms is not None else ''}"
            )
        case StepRetried():
            return f"failed {step}, to be tried again: {_reason(event)}"
        case AttemptFailed():
            return f"{event.type.replace('_', ' ')} {step}: {_reason(event)}"
        case RateLimited():
            return f"rate limited {step}: {_reason(event)}"
        case StepRefused():
            return f"refused {step} by {event.worker}: {_reason(event)}"
        case OutcomeUncertain():
            return f"uncertain {step}: its worker {event.worker} is gone; say how it ended: {signal}"
        case LeaseLost():
            return f"lost {step}: {_reason(event)}, another takes over"
        case SignalAwaited():
            asks = "" if event.asks is None else f" to answer {json.dumps(event.asks, ensure_ascii=False)}"
            return f"waiting {step} for a signal{asks}: {signal}"
        case StepSkipped() | SignalReceived() | StepReleased():
            return f"{event.type} {step}"
    return None


def _item_line(name: str, before: StepProgress, after: StepProgress, event: RunEvent) -> str | None:
    old, new = before.items, after.items
    if old is None or new is None:
        return None
    if new.failed > old.failed and new.failed <= MAX_FAILURES:
        return f"failed {event.step}: {_reason(event)}"
    if new.over * TENTHS // max(1, new.total) == old.over * TENTHS // max(1, old.total):
        return None
    return f"{name} {new.over}/{new.total}" + (f", {new.failed} failed" if new.failed else "")


def _reason(event: RunEvent) -> str:
    return text_format.line(event.explanation, MAX_REASON)
