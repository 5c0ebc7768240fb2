"""Plain lines about a run: one for each event worth one, and its log lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from cantata.client.view import EXITS, RunView, StepProgress
from cantata.flows.events import Action, RunEvent, SignalAwaited, StepDone, StepRefused
from cantata.flows.graph import START
from cantata.operation.logs.lines import LogLine
from cantata.text import text_format
from cantata.values import JsonValue, as_text

TENTHS = 10  # how often the progress of a map is printed
MAX_FAILURES = 10  # of the items of one map, each printed with its reason
MAX_REASON = 300  # characters
NO_NAMES: Mapping[str, str] = {}
MAX_SHOWN = 400  # characters of one value on a terminal; --json has it as it was kept


def apply_and_describe(
    view: RunView, event: RunEvent, names: Mapping[str, str] = NO_NAMES
) -> tuple[RunView, str | None]:
    """Return the view after an event, and a line about the event; None if it is not worth one. `names` are names of steps for people."""
    after = view.apply(event)
    line = _describe(view, after, event, names)
    return after, f"{text_format.clock(event.at_ms)} {line}" if line else None


def _describe(before: RunView, after: RunView, event: RunEvent, names: Mapping[str, str]) -> str:
    reason = text_format.line(event.explanation, MAX_REASON)
    if len(after.warnings) > len(before.warnings) or (
        event.is_warning and event.explanation not in before.blocked.values()
    ):
        return f"warning: {reason}"
    if event.ends_run:
        return f"{text_format.state_label(after.state)} {event.run_id}{_by(event)}"
    step = event.step or ""
    if step == START:
        return f"failed to start: {reason}" if event.step_state == "failed" else ""
    changed = next(
        (name for name, each in after.steps.items() if each.items is not None and each is not before.steps.get(name)),
        None,
    )
    if changed and step.startswith(f"{changed}/"):
        return _describe_item(changed, before.steps.get(changed, StepProgress()), after.steps[changed], event)
    if step.endswith(EXITS):
        is_refused = isinstance(event, StepRefused)
        step = step.partition("/@")[0] if is_refused else step.rpartition("/")[0]
        if not event.ends_step and not is_refused:
            return ""
    if isinstance(event, StepDone):
        took_ms = after.steps[step].took_ms if step in after.steps else None
        took = "" if took_ms is None else f" ({text_format.duration(took_ms)})"
        return f"{'timed out' if event.timed_out else 'done'} {named(step, names)}{took}"
    asks = _describe_question(event) if isinstance(event, SignalAwaited) else ""
    signal = f"submit runs signal {event.run_id} {step} JSON"
    return event.line.format_map(
        {
            **dict(event),
            "step": named(step, names),
            "reason": reason,
            "asks": asks,
            "signal": signal,
            "author": _by(event),
        }
    )


def _by(event: RunEvent) -> str:
    return f" by {text_format.line(event.author)}" if isinstance(event, Action) and event.by else ""


def named(step: str, names: Mapping[str, str]) -> str:
    """Return a step as people call it, with its id behind the name that it has beside."""
    return f"{names[step]} [{step}]" if step in names else step


def _describe_question(event: SignalAwaited) -> str:
    if event.question:
        return f" to answer: {text_format.line(event.question, MAX_REASON)}"
    return f" to answer {json.dumps(event.asks, ensure_ascii=False)}" if event.asks is not None else ""


def _describe_item(name: str, before: StepProgress, after: StepProgress, event: RunEvent) -> str:
    old, new = before.items, after.items
    if old is None or new is None:
        return ""
    if new.failed > old.failed and new.failed <= MAX_FAILURES:
        return f"failed {event.step}: {text_format.line(event.explanation, MAX_REASON)}"
    if new.over * TENTHS // max(1, new.total) == old.over * TENTHS // max(1, old.total):
        return ""
    return f"{name} {new.over}/{new.total}" + (f", {new.failed} failed" if new.failed else "")


def format_line(line: LogLine, names: Mapping[str, str] = NO_NAMES) -> str:
    """Return a log line as text for people. `names` are names of steps for people."""
    at = datetime.fromtimestamp(line.at).astimezone().strftime("%H:%M:%S.%f")[:-3]
    step = named(line.step, names) if line.step else "-"
    of = f"{step}#{line.attempt}" if line.step and line.attempt else step
    event = text_format.clean(line.event) if line.logger else text_format.line(line.event, MAX_SHOWN)
    rest = [f"{name}={_value(value)}" for name, value in line.fields.items() if name != "exception"]
    head = " ".join(
        [at, f"{line.level.upper():<7}", text_format.line(line.worker or "-"), text_format.line(of), event, *rest]
    )
    trace = line.fields.get("exception")
    return head + (
        ""
        if trace is None
        else "\n" + "\n".join(f"    {each}" for each in text_format.clean(str(trace)).rstrip().splitlines())
    )


def _value(value: JsonValue) -> str:
    flat = text_format.line(as_text(value), MAX_SHOWN)
    return json.dumps(flat, ensure_ascii=False) if " " in flat or not flat else flat
