"""RunView: the fold of a run's events for display. Pure: it uses no clock and no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from cantata.flows.chains.step_ids import ADVANCE, END, GATHER, ancestors, maps_above
from cantata.flows.events import (
    Action,
    ModelFallback,
    QueueUnserved,
    ReplyDelta,
    RunCancelling,
    RunClosed,
    RunEvent,
    StepDone,
    StepExpanded,
    StepRefused,
)
from cantata.flows.graph import START, StepState
from cantata.flows.wire import RUN_OVER, RunStatus
from cantata.ledger.runs.step_names import is_counted
from cantata.ledger.runs.summaries import state_of
from cantata.values import JsonValue, Usage

ViewState = StepState | Literal["expanded", "timed_out", "stopped"]
VIEW_OVER: frozenset[ViewState] = frozenset({"done", "failed", "skipped", "timed_out", "stopped"})

MAX_ACTS = 10
MAX_REPLY = 400
"""Characters of a reply that are kept while it comes."""

GATHERED = f"/{GATHER}"
EXITS = (GATHERED, f"/{END}", f"/{ADVANCE}")
"""The ends of the ids of steps that only continue or close an expansion: they are shown as the step that expanded."""


@dataclass(frozen=True, slots=True)
class MapProgress:
    """The items of a map, counted: there may be thousands."""

    total: int
    running: frozenset[str] = frozenset()
    done: int = 0
    failed: int = 0
    skipped: int = 0
    open_steps: Mapping[str, int] = field(default_factory=dict)
    """Item that expanded → the number of its steps that are not over."""

    @property
    def over(self) -> int:
        """Return the number of items that are over."""
        return self.done + self.failed + self.skipped

    def apply(self, event: RunEvent, item: str) -> MapProgress:
        """Return the counts after an event of an item, or of a step that the item expanded to."""
        if event.step_state == "running":
            return replace(self, running=self.running | {item})
        left = self.open_steps.get(item, 1) - 1
        if isinstance(event, StepExpanded):
            return replace(self, open_steps={**self.open_steps, item: left + event.steps})
        if event.ends_step and left > 0:
            return replace(self, open_steps={**self.open_steps, item: left})
        if event.ends_step:
            others = {name: count for name, count in self.open_steps.items() if name != item}
            ended = str(event.step_state)  # done, failed or skipped: names of fields
            return replace(self, open_steps=others, running=self.running - {item}, **{ended: getattr(self, ended) + 1})
        return replace(self, running=self.running - {item}) if event.step_state and event.step == item else self


@dataclass(frozen=True, slots=True)
class StepProgress:
    """The fold of a step's events."""

    state: ViewState = "waiting"
    attempt: int = 0
    since_ms: int = 0
    """The start of this attempt."""
    took_ms: int | None = None
    note: str = ""
    """The reason why it failed or is retried."""
    items: MapProgress | None = None
    """The items, if it is a map."""
    open_steps: int = 0
    """The number of steps under it that are not over, if it expanded."""
    reply: str = ""
    """The end of the model's reply in this attempt, while it comes."""
    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    has_usage: bool = False
    name: str = ""
    """Its name, if its id does not tell what it does."""
    line: str = ""
    """The line of a workflow's code that gave it: `flow.py:14`."""

    @property
    def is_retried(self) -> bool:
        """Return whether another attempt follows."""
        return self.attempt > 0 and self.state in ("waiting", "ready")

    def apply(self, event: RunEvent) -> StepProgress:
        """Return the step after an event of its own."""
        match event:
            case RunEvent(step_state="running"):
                return replace(
                    self,
                    state="running",
                    attempt=event.attempt or 1,
                    since_ms=event.at_ms,
                    took_ms=None,
                    reply="",
                    note=event.explanation,
                )
            case ReplyDelta():
                return replace(self, reply=(self.reply + event.text)[-MAX_REPLY:])
            case ModelFallback():
                return replace(self, reply="")
            case StepExpanded():
                return replace(self, state="expanded", open_steps=event.steps)
        if event.ends_step:
            return self.end(event)
        if event.step_state is None:
            return self
        since_ms = event.at_ms if event.step_state == "waiting_signal" else self.since_ms
        return replace(self, state=event.step_state, since_ms=since_ms, note=event.explanation)

    def end(self, event: RunEvent) -> StepProgress:
        """Return the step as ended by an event: its own, or that of the last step it expanded to."""
        state = "timed_out" if isinstance(event, StepDone) and event.timed_out else cast(ViewState, event.step_state)
        took_ms = event.at_ms - self.since_ms if self.since_ms else None
        return replace(self, state=state, took_ms=took_ms, note=event.explanation)

    def end_with_run(self, run_status: str, at_ms: int) -> StepProgress:
        """Return the step as its run's end leaves it."""
        if self.state in VIEW_OVER:
            return self
        if run_status != "succeeded":
            return replace(self, state="stopped")
        if (
            self.state != "expanded" or self.items
        ):  # one whose steps are not named after it, as conductors' are, ends with the run
            return self
        return replace(self, state="done", took_ms=at_ms - self.since_ms if self.since_ms else None)


@dataclass(frozen=True, slots=True)
class RunView:
    """The fold of a run's events: each event makes a new view."""

    run_id: str
    steps: Mapping[str, StepProgress] = field(default_factory=dict)
    """By id: those of the plan in its order, then the others as they were added."""
    status: str = "accepted"
    state: str = "accepted"
    """The status as people see it; it tells a success with failures from one without."""
    began_ms: int = 0
    at_ms: int = 0
    """The time of the last event by Redis's clock."""
    seq: int = 0
    """The offset of the last event."""
    warnings: tuple[str, ...] = ()
    acts: tuple[Action, ...] = ()
    """The events that people and programs caused; the last MAX_ACTS."""
    blocked: Mapping[str, str] = field(default_factory=dict)
    """The reason why a step cannot go on, until it does: its workers refuse it, or none serves its queue."""

    def with_plan(self, steps: Iterable[str]) -> RunView:
        """Return the run with the steps of its plan, in their order."""
        return replace(self, steps={**dict.fromkeys(steps, StepProgress()), **self.steps})

    def apply(self, *events: RunEvent) -> RunView:
        """Return the run after these events."""
        view, steps = self, dict(self.steps)
        for event in events:
            view = view._with_run(event)
            if event.step is not None and event.step != START:
                _apply_to_steps(steps, event, event.step)
        if view.status in RUN_OVER:
            steps = {step_id: step.end_with_run(view.status, view.at_ms) for step_id, step in steps.items()}
        return replace(view, steps=steps)

    def with_status(self, status: RunStatus) -> RunView:
        """Return the run with its status by the ledger, while it is open: events do not tell whether only people can go on with it."""
        return self if self.status in RUN_OVER or status in RUN_OVER else replace(self, status=status, state=status)

    def without_usage(self, limit: int = 200) -> list[str]:
        """Return the last `limit` steps that are over and for which `with_usage` was not called yet."""
        return [
            step_id for step_id, step in self.steps.items() if step.state in ("done", "failed") and not step.has_usage
        ][-limit:]

    def with_usage(self, infos: Mapping[str, Mapping[str, JsonValue]]) -> RunView:
        """Return the run with the model and usage of steps, as the ledger recorded them."""
        return replace(
            self,
            steps={
                **self.steps,
                **{step_id: _with_usage(self.steps[step_id], info) for step_id, info in infos.items()},
            },
        )

    def without_name(self) -> list[str]:
        """Return the steps that `with_names` was not called for yet, and whose ids do not tell what they do."""
        return [step_id for step_id, step in self.steps.items() if not step.name and is_counted(step_id)]

    def with_names(self, names: Mapping[str, str]) -> RunView:
        """Return the run with the names of steps for people."""
        return replace(
            self,
            steps={
                **self.steps,
                **{step_id: replace(self.steps[step_id], name=name) for step_id, name in names.items()},
            },
        )

    def with_lines(self, lines: Mapping[str, str]) -> RunView:
        """Return the run with the lines of code that gave its steps, by step."""
        return replace(
            self, steps={step_id: replace(step, line=lines.get(step_id, "")) for step_id, step in self.steps.items()}
        )

    def _with_run(self, event: RunEvent) -> RunView:
        status, state, warnings, blocked = self.status, self.state, self.warnings, self.blocked
        if event.step in blocked and event.step_state:
            blocked = {step_id: why for step_id, why in blocked.items() if step_id != event.step}
        match event:
            case RunClosed():
                status, state, blocked = event.status, state_of(event.status, event.failures), {}
            case RunCancelling():
                status = state = "cancelling"
            case RunEvent(step_state="running") if status == "accepted":
                status = state = "running"
            case StepRefused(step=str(step)):
                blocked = {**blocked, step: f"stopped: {event.explanation}"}
            case QueueUnserved(step=str(step)):
                blocked = {**blocked, step: event.explanation}
            case RunEvent(is_warning=True) if event.explanation not in warnings:
                warnings = (*warnings, event.explanation)
        acts = (*self.acts, event)[-MAX_ACTS:] if isinstance(event, Action) and event.by else self.acts
        began_ms, at_ms = self.began_ms or event.at_ms, max(self.at_ms, event.at_ms)
        return replace(
            self,
            status=status,
            state=state,
            warnings=warnings,
            acts=acts,
            blocked=blocked,
            seq=event.seq,
            began_ms=began_ms,
            at_ms=at_ms,
        )


def _apply_to_steps(steps: dict[str, StepProgress], event: RunEvent, step_id: str) -> None:
    if owner := _map_over(steps, step_id):
        name, item = owner
        step, items = steps[name], cast(MapProgress, steps[name].items)
        has_failed = event.ends_step and event.step_state == "failed"
        steps[name] = replace(step, items=items.apply(event, item), note=event.explanation if has_failed else step.note)
    elif not step_id.endswith(EXITS):
        if event.step_state or isinstance(event, ReplyDelta | ModelFallback):
            steps[step_id] = steps.get(step_id, StepProgress()).apply(event)
    elif step_id.endswith(GATHERED) and event.ends_step:
        expanded = step_id.removesuffix(GATHERED)
        steps[expanded] = steps.get(expanded, StepProgress()).end(event)
    _count_for_ancestors(steps, event, step_id)


def _count_for_ancestors(steps: dict[str, StepProgress], event: RunEvent, step_id: str) -> None:
    """End each expanded step above when the last step under it is over; its state is that of the last one."""
    for name in ancestors(step_id):
        step = steps.get(name)
        if step is None or step.state != "expanded" or step.items:
            continue
        if isinstance(event, StepExpanded):
            steps[name] = replace(step, open_steps=step.open_steps + event.steps - 1)
        elif event.ends_step:
            steps[name] = step.end(event) if step.open_steps <= 1 else replace(step, open_steps=step.open_steps - 1)


def _map_over(steps: dict[str, StepProgress], step_id: str) -> tuple[str, str] | None:
    """Return the map whose item a step is, or belongs to, and the item's id."""
    for name, item, _ in maps_above(step_id):
        if (step := steps.get(name)) is not None:
            if step.items is None:
                steps[name] = replace(
                    step, items=MapProgress(step.open_steps - 1)
                )  # without the step that gathers them
            return name, item
    return None


def _with_usage(step: StepProgress, info: Mapping[str, JsonValue]) -> StepProgress:
    used = Usage.model_validate(info.get("usage") or {})
    return replace(
        step,
        model=str(info.get("model") or ""),
        tokens_in=used.input_tokens,
        tokens_out=used.output_tokens,
        has_usage=True,
    )
