"""What the events of a run tell: a value that each event makes anew. Knows no clock and no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from orchestrator.models.graph import START
from orchestrator.models.values import JsonValue
from orchestrator.models.wire import RunEvent, RunStatus
from orchestrator.planning.strategies.chain_ids import END, GATHER
from orchestrator.state.summaries import state_of

Word = Literal["waiting", "running", "grown", "retry", "lost", "asking", "done", "failed", "skipped", "timed_out", "stopped"]
OVER: frozenset[Word] = frozenset({"done", "failed", "skipped", "timed_out", "stopped"})

ENDS: Mapping[str, Word] = {"done": "done", "failed": "failed", "late": "failed", "skipped": "skipped"}
"""Events after which a step is over."""

MOST_SAID = 400
"""Characters of a reply that are kept while it comes."""

GATHERED = f"/{GATHER}"
EXITS = (GATHERED, f"/{END}")
"""Steps that only close what a step grew: they are shown as that step."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The items of a map, counted: there may be thousands."""

    total: int
    running: frozenset[str] = frozenset()
    done: int = 0
    failed: int = 0
    skipped: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    """Of items that grew: how many of their steps are not over."""

    @property
    def over(self) -> int:
        """How many items are over."""
        return self.done + self.failed + self.skipped


@dataclass(frozen=True, slots=True)
class Seen:
    """A step as far as its events tell."""

    word: Word = "waiting"
    attempt: int = 0
    since_ms: int = 0
    """When this attempt began."""
    took_ms: int | None = None
    note: str = ""
    """Why it failed, or is tried again."""
    tally: Tally | None = None
    """Of a map."""
    left: int = 0
    """Of a step that grew: how many of the steps under it are not over."""
    said: str = ""
    """The end of what its model says in this attempt, while it says it."""
    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    is_known: bool = False
    """Whether `learn` told how it ended."""


@dataclass(frozen=True, slots=True)
class View:
    """A run as far as its events tell."""

    run_id: str
    steps: Mapping[str, Seen] = field(default_factory=dict)
    """By id, in the order of the plan, then as they came."""
    status: str = "accepted"
    state: str = "accepted"
    """How people are told that it stands."""
    began_ms: int = 0
    at_ms: int = 0
    """When the last event was, by Redis's clock."""
    seq: int = 0
    warnings: tuple[str, ...] = ()


def planned(run_id: str, steps: Iterable[str]) -> View:
    """A run of which nothing happened yet, with the ids of its plan."""
    return View(run_id, {step_id: Seen() for step_id in steps if step_id != START})


def apply(view: View, *events: RunEvent) -> View:
    """The view after these events."""
    steps = dict(view.steps)
    for event in events:
        view = _run_level(view, event)
        if event.step is not None and event.step != START:
            _step_level(steps, event)
    if view.status == "succeeded":
        steps = {step_id: _ended_with_run(seen, view.at_ms) for step_id, seen in steps.items()}
    elif view.status not in ("accepted", "running"):
        steps = {step_id: seen if seen.word in OVER else replace(seen, word="stopped") for step_id, seen in steps.items()}
    return replace(view, steps=steps)


def unknown(view: View, most: int = 200) -> list[str]:
    """Steps that are over and of which `learn` was not told how they ended."""
    return [step_id for step_id, seen in view.steps.items() if seen.word in ("done", "failed") and not seen.is_known][-most:]


def learn(view: View, infos: Mapping[str, Mapping[str, JsonValue]]) -> View:
    """The view with what the ledger recorded of steps that are over: model and usage."""
    return replace(view, steps={**view.steps, **{step_id: _learned(view.steps[step_id], info) for step_id, info in infos.items()}})


# --- events -----------------------------------------------------------------------------------------------------------------


def _run_level(view: View, event: RunEvent) -> View:
    status, warnings = view.status, view.warnings
    state = status
    if event.type == "closed":
        status = str(event.detail["status"])
        state = state_of(cast(RunStatus, status), int(cast(int, event.detail.get("failures", 0))))
    elif event.type == "started" and status == "accepted":
        status = state = "running"
    elif event.type in ("warning", "unserved") and event.detail["message"] not in warnings:
        warnings = (*warnings, str(event.detail["message"]))
    return replace(
        view,
        status=status,
        state=state,
        warnings=warnings,
        seq=event.seq,
        at_ms=max(view.at_ms, event.at_ms),
        began_ms=view.began_ms or event.at_ms,
    )


def _step_level(steps: dict[str, Seen], event: RunEvent) -> None:
    step_id = cast(str, event.step)
    owner = _map_over(steps, step_id)
    if owner is not None:
        name, item = owner
        seen = steps[name]
        assert seen.tally is not None
        note = _error(event) if event.type in ("failed", "late") else seen.note
        steps[name] = replace(seen, tally=_count(seen.tally, item, item == step_id, event), note=note)
    elif not step_id.endswith(EXITS):
        if event.type in _CHANGES:
            steps[step_id] = _CHANGES[event.type](steps.get(step_id, Seen()), event)
    elif step_id.endswith(GATHERED) and event.type in ENDS:
        grower = step_id.removesuffix(GATHERED)
        steps[grower] = _ended(steps.get(grower, Seen()), event)
    _count_for_growers(steps, event)


def _started(seen: Seen, event: RunEvent) -> Seen:
    return replace(seen, word="running", attempt=event.attempt or 1, since_ms=event.at_ms, took_ms=None, said="")


def _heard(seen: Seen, event: RunEvent) -> Seen:
    return replace(seen, said=(seen.said + str(event.detail.get("text", "")))[-MOST_SAID:])


def _waits(seen: Seen, event: RunEvent) -> Seen:
    return replace(seen, word="retry", note=str(event.detail.get("reason", "")))


def _ended(seen: Seen, event: RunEvent) -> Seen:
    took_ms = event.at_ms - seen.since_ms if seen.since_ms else None
    word: Word = "timed_out" if event.detail.get("timed_out") else ENDS[event.type]
    return replace(seen, word=word, took_ms=took_ms, note=_error(event) if event.type in ("failed", "late") else "")


def _ended_with_run(seen: Seen, at_ms: int) -> Seen:
    """A step that grew steps which are not named after it, as conductors do, is over when the run is."""
    if seen.word != "grown" or seen.tally:
        return seen
    return replace(seen, word="done", took_ms=at_ms - seen.since_ms if seen.since_ms else None)


def _grown(seen: Seen, event: RunEvent) -> Seen:
    return replace(seen, word="grown", left=_count_of(event))


_CHANGES: Mapping[str, Callable[[Seen, RunEvent], Seen]] = {
    "started": _started,
    "grown": _grown,
    "retry": lambda seen, event: replace(seen, word="retry", note=_error(event)),
    "lost": lambda seen, event: replace(seen, word="lost", note=f"its worker {event.worker} is gone"),
    "delta": _heard,
    "fallback": lambda seen, event: replace(seen, said=""),
    "waits": _waits,
    "refused": lambda seen, event: replace(seen, word="retry", note=str(event.detail.get("message", ""))),
    "uncertain": lambda seen, event: replace(seen, word="asking", since_ms=event.at_ms),
    "released": lambda seen, event: replace(seen, word="waiting"),
    "waiting": lambda seen, event: replace(seen, word="asking", since_ms=event.at_ms),
    **dict.fromkeys(ENDS, _ended),
}


def _count_for_growers(steps: dict[str, Seen], event: RunEvent) -> None:
    """A step that grew is over when all that it grew, and that those grew, is over; it ends as the last of them did."""
    for name in above(cast(str, event.step)):
        seen = steps.get(name)
        if seen is None or seen.word != "grown" or seen.tally:
            continue
        if event.type == "grown":
            steps[name] = replace(seen, left=seen.left + _count_of(event) - 1)
        elif event.type in ENDS:
            steps[name] = _ended(seen, event) if seen.left <= 1 else replace(seen, left=seen.left - 1)


def _count(tally: Tally, item: str, is_item: bool, event: RunEvent) -> Tally:
    """A map's items after an event of one of them, or of a step that the item grew."""
    if event.type == "started":
        return replace(tally, running=tally.running | {item})
    if event.type in ("retry", "waits", "lost", "released", "refused", "waiting", "uncertain") and is_item:
        return replace(tally, running=tally.running - {item})
    if event.type == "grown":
        left = tally.left.get(item, 1) - 1 + _count_of(event)
        return replace(tally, left={**tally.left, item: left})
    if event.type not in ENDS:
        return tally
    left = tally.left.get(item, 1) - 1
    others = {name: count for name, count in tally.left.items() if name != item}
    if left > 0:
        return replace(tally, left={**others, item: left})
    word = ENDS[event.type]
    return replace(
        tally, left=others, running=tally.running - {item}, done=tally.done + (word == "done"),
        failed=tally.failed + (word == "failed"), skipped=tally.skipped + (word == "skipped"),
    )  # fmt: skip


def _map_over(steps: dict[str, Seen], step_id: str) -> tuple[str, str] | None:
    """The map whose item a step is, or belongs to, and the item's id: only items have ids of digits alone."""
    parts = step_id.split("/")
    for end in range(1, len(parts)):
        name = "/".join(parts[:end])
        seen = steps.get(name)
        if seen is not None and parts[end].isdecimal():
            if seen.tally is None:
                steps[name] = replace(seen, tally=Tally(seen.left - 1))  # but for what gathers them
            return name, f"{name}/{parts[end]}"
    return None


def _count_of(event: RunEvent) -> int:
    """How many steps were grown."""
    return int(cast(int, event.detail.get("steps", 0)))


def above(step_id: str) -> Iterator[str]:
    """The ids that a step's id begins with, the nearest first."""
    while "/" in step_id:
        step_id = step_id.rpartition("/")[0]
        yield step_id


def _error(event: RunEvent) -> str:
    error = event.detail.get("error")
    return str(error.get("message", "")) if isinstance(error, dict) else ""


def _learned(seen: Seen, info: Mapping[str, JsonValue]) -> Seen:
    usage = info.get("usage")
    used = usage if isinstance(usage, dict) else {}
    return replace(
        seen, model=str(info.get("model") or ""), tokens_in=int(cast(int, used.get("input_tokens", 0))),
        tokens_out=int(cast(int, used.get("output_tokens", 0))), is_known=True,
    )  # fmt: skip
