"""Folding of maps for display: one node with a count, until the user opens it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from cantata.flows.chains.step_ids import GATHER, maps_above
from cantata.flows.graph import STEP_OVER
from cantata.ledger.runs.run_snapshot import Snapshot

MAX_ITEMS = 200
"""Displayed items of an opened map."""

COUNTED_AS: Mapping[str, str] = {
    "running": "running", "waiting_signal": "running", "done": "done", "timed_out": "done", "failed": "failed", "skipped": "skipped",
}  # fmt: skip
"""State of a step → what it counts as; in any other state it counts as waiting, or as running once it began."""


@dataclass(slots=True)
class ItemCounts:
    """Counts of a map's items by state."""

    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("waiting", "running", "done", "failed", "skipped"), 0)
    )

    @property
    def total(self) -> int:
        """The number of items."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class FoldedGraph:
    """A run whose maps are folded, except those that are open."""

    shown: list[str]
    """The displayed steps."""
    maps: dict[str, ItemCounts]
    """The displayed maps with items."""
    limits: dict[str, int]
    """Map → number of its displayed items."""
    map_of: dict[str, str]
    """Step → the innermost map whose item it is, or whose item's expansion it is in."""


def fold(snapshot: Snapshot, opened: Collection[str]) -> FoldedGraph:
    """Return the steps of a run without the items of folded maps and the expansions of those items."""
    cells = snapshot.steps
    shown: list[str] = []
    maps: dict[str, ItemCounts] = {}
    map_of: dict[str, str] = {}
    limits: dict[str, int] = {}
    for step_id in cells:
        is_shown = True
        for owner, item, index in maps_above(step_id):
            if f"{owner}/{GATHER}" not in cells:
                continue
            if step_id == item:
                maps.setdefault(owner, ItemCounts()).counts[_state(snapshot, item)] += 1
            limits[owner] = MAX_ITEMS if owner in opened else 0
            map_of[step_id] = owner
            if index >= limits[owner]:
                is_shown = False
                break
        if is_shown:
            shown.append(step_id)
    return FoldedGraph(shown, maps, limits, map_of)


def _state(snapshot: Snapshot, item: str) -> str:
    """Return what an item counts as; if it expanded, as the step that answers in its place does at its end, and as running before."""
    cell = snapshot.steps[item]
    last = snapshot.steps.get(snapshot.answering(item), cell)
    if last.state in STEP_OVER:
        return COUNTED_AS[last.state]
    return (
        "running" if cell.state in STEP_OVER else COUNTED_AS.get(cell.state, "running" if cell.attempt else "waiting")
    )
