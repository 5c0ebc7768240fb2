"""Maps as pages show them: one node with a count, until it is opened. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from cantata.models.graph import STEP_OVER
from cantata.planning.chains.step_ids import GATHER
from cantata.state.runs.run_snapshot import Snapshot

MAX_ITEMS = 200
"""MapItems of an opened map that are shown."""

_ITEM = re.compile(r"/(\d+)(?=/|$)")


@dataclass(slots=True)
class MapItems:
    """The items of a map, counted by how they stand."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("waiting", "running", "done", "failed", "skipped"), 0))

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class FoldedGraph:
    """A run whose maps are folded, but for those that are opened."""

    shown: list[str]
    """The steps that are shown."""
    maps: dict[str, MapItems]
    """Those among them that are maps with items."""
    limits: dict[str, int]
    """Map → how many of its items are shown."""
    map_of: dict[str, str]
    """Step → the innermost map that it is an item of, or grew in."""


def fold(snapshot: Snapshot, opened: Collection[str]) -> FoldedGraph:
    """The steps of a run without the items of maps that are not opened, and what grew from them."""
    cells = snapshot.cells
    shown: list[str] = []
    maps: dict[str, MapItems] = {}
    map_of: dict[str, str] = {}
    limits: dict[str, int] = {}
    for step_id in cells:
        is_shown = True
        for owner, item, index in _places(step_id):
            if f"{owner}/{GATHER}" not in cells:
                continue
            if step_id == item:
                maps.setdefault(owner, MapItems()).counts[_word(snapshot, item)] += 1
            limits[owner] = MAX_ITEMS if owner in opened else 0
            map_of[step_id] = owner
            if index >= limits[owner]:
                is_shown = False
                break
        if is_shown:
            shown.append(step_id)
    return FoldedGraph(shown, maps, limits, map_of)


def _places(step_id: str) -> Iterator[tuple[str, str, int]]:
    """The maps that a step may be in, the outermost first: the map, its item, the item's number."""
    if "/" in step_id:
        for match in _ITEM.finditer(step_id):
            yield step_id[: match.start()], step_id[: match.end()], int(match[1])


def _word(snapshot: Snapshot, item: str) -> str:
    """How an item stands; one that grew stands as what answers in its place."""
    cell = snapshot.cells[item]
    exit_id = snapshot.answering(item)
    last = snapshot.cells.get(exit_id, cell)
    if last.word in STEP_OVER:
        return last.word
    return "running" if cell.word in ("running", "waiting_signal", *STEP_OVER) or cell.attempt else "waiting"
