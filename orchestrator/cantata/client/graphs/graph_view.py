"""Graph of a run for display: its steps and edges, and which of these were taken. Pure."""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

from cantata.client.graphs.map_folding import FoldedGraph, ItemCounts
from cantata.client.graphs.page_views import EdgeView, MapView, StepView
from cantata.features.forks.fork_store import takes_of
from cantata.flows.chains.step_ids import GATHER
from cantata.flows.graph import START, STEP_OVER
from cantata.flows.step_kinds import MODEL_ROLES, kind_named
from cantata.ledger.runs.run_snapshot import Parts, Snapshot
from cantata.ledger.runs.step_names import name_of
from cantata.ledger.runs.summaries import shown_state
from cantata.ledger.runs.timeline import NEVER, Moments
from cantata.values import ErrorInfo, JsonValue, Usage

EXPANDED = "expanded"
"""The label of edges that we add: from a step to those of its expansion."""

NOT_READY = frozenset({"waiting", "failed", "skipped"})
"""States of steps that may never have been ready, if they did not start."""

_INTERNAL = re.compile(r"@(?!\d+!?$)[^/]*$")


@dataclass(frozen=True)
class RunGraph:
    """The displayed part of a run."""

    snapshot: Snapshot
    folded: FoldedGraph
    parts: Parts
    moments: Mapping[str, Moments]
    shown: Set[str]
    """The displayed steps; all their parts are known."""

    # --- steps --------------------------------------------------------------------------------------------------------

    def steps(self) -> list[StepView]:
        """Return the steps in the order of their start; steps that did not start come last."""
        ready = self._ready()
        order = sorted(
            self.shown,
            key=lambda step_id: (self._at(step_id).begun_ms or self._at(step_id).ended_ms or float("inf"), step_id),
        )
        return [self.step(step_id, ready.get(step_id)) for step_id in order]

    def step(self, step_id: str, ready_ms: int | None = None) -> StepView:
        """Return a displayed step."""
        cell, spec, info = self.snapshot.steps[step_id], self.parts.specs[step_id], self.parts.infos.get(step_id, {})
        at, work = self._at(step_id), str(spec.get("work", ""))
        is_over = cell.state in STEP_OVER
        ended = at.ended_ms if is_over else None
        closed = self.snapshot.run.closed_at
        error, usage = (
            cast("dict[str, Any] | None", info.get("error")),
            cast("dict[str, Any] | None", info.get("usage")),
        )
        return StepView(
            id=step_id,
            name=name_of(step_id, work),
            kind=str(spec["kind"]),
            work=work,
            internal=is_internal(step_id, str(spec["kind"])) and not (error and error.get("step") == step_id),
            queue=str(spec.get("queue", "coordinator")),
            state=shown_state(cell.state, info),
            attempt=cell.attempt,
            failures=cell.failures,
            crashes=cell.crashes,
            worker=at.worker or (str(info["by"]) if info.get("by") else None),
            ready_at=_seconds(ready_ms),
            first_at=_seconds(at.first_ms),
            started_at=_seconds(at.started_ms),
            ended_at=_seconds(ended) if ended else closed if is_over else None,
            awaits=_awaited(spec, at),
            asked_at=_seconds(at.asked_ms),
            limited=at.was_limited,
            error=ErrorInfo.model_validate(error) if error else None,
            usage=Usage.model_validate(usage) if usage else None,
            model=cast("str | None", info.get("model")),
            map=self.folded.map_of.get(step_id),
            scope=cast("str | None", spec.get("scope")),
        )

    def _ready(self) -> dict[str, int]:
        """Return when steps were first ready: when the last step upstream ended, or they were added; at the latest when they started."""
        last = {START: round(self.snapshot.run.created_at * 1000)}
        for edge in self.edges:
            last[edge.target] = max(last.get(edge.target, 0), self._at(edge.source).ended_ms or 0)
        for owner in self.folded.maps:
            last.pop(f"{owner}/{GATHER}", None)  # it waits for items that may not be displayed
        last |= self._slots_free()
        ready = {}
        for step_id in self.shown:
            first, before = self._at(step_id).begun_ms, last.get(step_id)
            if first is not None or self.snapshot.steps[step_id].state not in NOT_READY:
                known = [at for at in (first, before) if at]
                ready.update({step_id: min(known)} if known else {})
        if self.snapshot.run.session:
            ready.pop(START, None)  # it may have waited for the turn before it, and in no queue
        return ready

    def _slots_free(self) -> dict[str, int]:
        """Return when items got a slot of their map's window. Items get slots in order, so only earlier ones can have freed theirs."""
        free: dict[str, int] = {}
        for owner in self.folded.maps:
            items = cast("dict[str, Any]", self.parts.expansions.get(owner, {}).get("items") or {})
            window, ends = int(items.get("window") or 0), list[int]()
            for index in range(self.folded.limits[owner] if window else 0):
                item = f"{owner}/{index}"
                if len(ends) > index - window >= 0:
                    free[item] = ends[index - window]
                if (ended := self._at(self.snapshot.answering(item)).ended_ms) is not None:
                    insort(ends, ended)
        return free

    def _at(self, step_id: str) -> Moments:
        return self.moments.get(step_id, NEVER)

    # --- edges --------------------------------------------------------------------------------------------------------

    @cached_property
    def edges(self) -> list[EdgeView]:
        """The edges between displayed steps, and one from each step to those of its expansion that have no other edge."""
        edges = [*self._own(), *self._past_items()]
        led_to, parents = {START, *(edge.target for edge in edges)}, self._parents()
        for step_id in self.shown:
            parent = parents.get(step_id, START)
            if step_id not in led_to and parent in self.shown:
                edges.append(EdgeView(source=parent, target=step_id, label=EXPANDED, wakes=True, taken=True))
        return edges

    def _own(self) -> Iterator[EdgeView]:
        """Yield the run's own edges: the stored ones, and those that were already resolved when an expansion added them."""
        for source in self.shown:
            for target, label, wakes in self.parts.edges.get(source, ()):
                if target in self.shown:
                    yield EdgeView(
                        source=source, target=target, label=label, wakes=wakes, taken=self._is_taken(source, label)
                    )
        for expansion in self.parts.expansions.values():
            for source, target, label, wakes in cast(
                "list[tuple[str, str, str, bool]]", expansion.get("counted") or []
            ):
                if source in self.shown and target in self.shown:
                    yield EdgeView(
                        source=source, target=target, label=label, wakes=wakes, taken=self._is_taken(source, label)
                    )

    def _past_items(self) -> Iterator[EdgeView]:
        """Yield edges from a map to its gather, in place of the items that are not displayed."""
        for owner, items in self.folded.maps.items():
            gather = f"{owner}/{GATHER}"
            if owner in self.shown and gather in self.shown and items.total > self.folded.limits[owner]:
                yield EdgeView(
                    source=owner, target=gather, label="done", wakes=True, taken=self._is_gathered(gather, items)
                )

    def _is_gathered(self, gather: str, items: ItemCounts) -> bool | None:
        """Return whether the items led to their gather: not if it never started, because an item failed or the run was closed."""
        cell = self.snapshot.steps[gather]
        if cell.state in ("failed", "skipped"):
            return cell.attempt > 0
        return None if items.counts["waiting"] or items.counts["running"] else True

    def _parents(self) -> dict[str, str]:
        """Return step → its parent step; steps of the initial plan have none."""
        parents = {
            step_id: owner for step_id, owner in self.folded.map_of.items() if step_id.rpartition("/")[0] == owner
        }
        for parent, expansion in self.parts.expansions.items():
            parents |= dict.fromkeys(cast("list[str]", expansion.get("ids") or []), parent)
        return parents

    def _is_taken(self, source: str, label: str) -> bool | None:
        cell = self.snapshot.steps[source]
        if cell.state not in STEP_OVER:
            return None
        info: Mapping[str, JsonValue] = self.parts.infos.get(source, {})
        return label in takes_of(cell.state, str(self.parts.specs[source].get("on_error", "abort")), info)

    # --- maps ---------------------------------------------------------------------------------------------------------

    def maps(self) -> list[MapView]:
        """Return the displayed maps."""
        return [
            MapView(id=owner, name=name_of(owner, ""), prefix=owner, count=items.total, **items.counts)
            for owner, items in self.folded.maps.items()
            if owner in self.shown
        ]


def _awaited(spec: Mapping[str, Any], at: Moments) -> Literal["answer", "time"] | None:
    """Return what a step waits, or waited, for instead of a queue."""
    if kind_named(str(spec["kind"])).role == "wait":
        return "time" if (spec.get("params") or {}).get("sleeps") else "answer"
    return "answer" if at.asked_ms else None


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def is_internal(step_id: str, kind: str) -> bool:
    """Return whether a step is no node, call or agent of the user's: the start, a gather, an end, an advance of a workflow's code."""
    return bool(_INTERNAL.search(step_id)) and kind_named(kind).role not in MODEL_ROLES
