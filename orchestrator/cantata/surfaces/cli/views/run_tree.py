"""Rows of a run's tree: steps that run or failed are kept, others are folded if not all fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cantata.client.view import VIEW_OVER, RunView, StepProgress
from cantata.flows.chains.step_ids import ancestors

NO_PROGRESS = StepProgress()
MAX_NEXT = 3  # waiting steps that are kept beside the running ones


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the tree: a step, or a count of steps that are folded into one row."""

    name: str
    depth: int = 0
    step: StepProgress = NO_PROGRESS
    folded: int = 0


def rows(view: RunView, *, max_rows: int = 30) -> list[Row]:
    """Return the rows of the tree, at max_rows `max_rows`: steps are under the one that expanded to them.

    Those that run or failed are kept, and the next that wait; older finished steps and later waiting ones are folded into a count.
    """
    tree = list(_tree(view.steps))
    if len(tree) <= max_rows:
        return tree
    next_ones = [i for i, row in enumerate(tree) if row.step.state == "waiting"][:MAX_NEXT]
    order = sorted(range(len(tree)), key=lambda i: (1 if i in next_ones else _rank(tree[i]), _distance(tree[i], i)))
    kept = set(order[: max_rows - 2])
    folded = [row for i, row in enumerate(tree) if i not in kept]
    over = sum(row.step.state in VIEW_OVER for row in folded)
    shown = [row for i, row in enumerate(tree) if i in kept]
    first = [Row("steps are over", folded=over)] if over else []
    last = [Row("more steps", folded=len(folded) - over)] if len(folded) > over else []
    return [*first, *shown, *last]


def _tree(steps: Mapping[str, StepProgress]) -> Iterator[Row]:
    """Yield the steps depth first, each under the nearest step whose id is a prefix of its own."""
    under: dict[str, list[str]] = {}
    for step_id in steps:
        parent = next((name for name in ancestors(step_id) if name in steps), "")
        under.setdefault(parent, []).append(step_id)
    pending = [(name, "", 0) for name in reversed(under.get("", []))]
    while pending:
        step_id, parent, depth = pending.pop()
        own = step_id.removeprefix(f"{parent}/") if parent else step_id
        yield Row(f"{name} [{step_id}]" if (name := steps[step_id].name) else own, depth, steps[step_id])
        pending += [(name, step_id, depth + 1) for name in reversed(under.get(step_id, []))]


def _rank(row: Row) -> int:
    """Return the rank of a row for keeping it if not all fit: 0 first."""
    if (
        row.step.is_retried
        or row.step.state in ("running", "waiting_signal")
        or (row.step.items and row.step.state not in VIEW_OVER)
    ):
        return 0
    return {"failed": 1, "expanded": 2, "waiting": 4}.get(row.step.state, 3)


def _distance(row: Row, index: int) -> int:
    """Return a sort key that prefers the next of the waiting steps and the latest of all others."""
    return index if row.step.state == "waiting" else -index
