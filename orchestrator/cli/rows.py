"""The tree of a run, line by line: what works and what failed is shown, the rest is folded where it does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.cli.view import OVER, Seen, View, above

UNSEEN = Seen()
NEXT = 3  # waiting steps that are kept beside those that work


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the tree: a step, or a count of steps that are folded into one line."""

    name: str
    depth: int = 0
    seen: Seen = UNSEEN
    folded: int = 0


def rows(view: View, *, most: int = 30) -> list[Row]:
    """The tree, line by line: grown steps under their grower, and not more than `most` lines.

    What works or failed is kept, and the next that wait; older finished steps and later waiting ones are folded into a count.
    """
    tree = list(_tree(view.steps))
    if len(tree) <= most:
        return tree
    next_ones = [i for i, row in enumerate(tree) if row.seen.word == "waiting"][:NEXT]
    order = sorted(range(len(tree)), key=lambda i: (1 if i in next_ones else _rank(tree[i]), _closeness(tree[i], i)))
    kept = set(order[: most - 2])
    folded = [row for i, row in enumerate(tree) if i not in kept]
    over = sum(row.seen.word in OVER for row in folded)
    shown = [row for i, row in enumerate(tree) if i in kept]
    first = [Row("steps are over", folded=over)] if over else []
    last = [Row("more steps", folded=len(folded) - over)] if len(folded) > over else []
    return [*first, *shown, *last]


def _tree(steps: Mapping[str, Seen]) -> Iterator[Row]:
    """Depth first: each step under the nearest step that its id begins with."""
    under: dict[str, list[str]] = {}
    for step_id in steps:
        parent = next((name for name in above(step_id) if name in steps), "")
        under.setdefault(parent, []).append(step_id)
    pending = [(name, "", 0) for name in reversed(under.get("", []))]
    while pending:
        step_id, parent, depth = pending.pop()
        yield Row(step_id.removeprefix(f"{parent}/") if parent else step_id, depth, steps[step_id])
        pending += [(name, step_id, depth + 1) for name in reversed(under.get(step_id, []))]


def _rank(row: Row) -> int:
    """What to keep first where not all fits."""
    if row.seen.word in ("running", "retry", "lost", "asking") or (row.seen.tally and row.seen.word not in OVER):
        return 0
    return {"failed": 1, "grown": 2, "waiting": 4}.get(row.seen.word, 3)


def _closeness(row: Row, place: int) -> int:
    """The latest of what is over, the next of what waits."""
    return place if row.seen.word == "waiting" else -place
