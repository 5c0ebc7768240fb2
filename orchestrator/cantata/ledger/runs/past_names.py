"""The graph of a run as its earlier steps saw it: the steps that names meant then, and the steps that each expansion added."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

from cantata.flows.forks import ExpandedItems
from cantata.flows.graph import RAW, START
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import run_key
from cantata.ledger.redis.pieces import scan


class PastNames:
    """Names and expansions of a run."""

    def __init__(self, ledger: Ledger, run_id: str, expanded: Iterable[tuple[int, str]]) -> None:
        """Read them; `expanded` has the offset and the step of each expansion, in order."""
        key = run_key(ledger.redis, run_id)
        self._now, expansions = (
            scan(ledger.redis, ledger.with_retries, f"{key}{part}") for part in (":names", ":expansions")
        )
        self._changes: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self._added: dict[str, list[str]] = {}
        for offset, parent in expanded:
            if parent == START:
                continue
            expansion = json.loads(expansions.get(parent, "{}"))
            for name, before in {parent: parent, **(expansion.get("names") or {})}.items():
                self._changes[name].append((offset, before or name))  # false: it was the step of that id
            items = ExpandedItems.model_validate(expansion["items"]) if "items" in expansion else None
            ids = [step_id for step_id in expansion.get("ids") or () if items is None or step_id != items.like]
            self._added[parent] = ids + (items.ids if items else [])

    def added_by(self, step_id: str) -> list[str]:
        """Return the steps that a step's expansion added; none for the first step, whose expansion is the plan."""
        return self._added.get(step_id, [])

    def source_of(self, reference: str, offset: int) -> str:
        """Return the step whose output a reference of a spec meant at an offset of the event log."""
        if reference.startswith(RAW):
            return reference.removeprefix(RAW)
        while (meant := self._meaning(reference, offset)) != reference:
            reference = meant
        return reference

    def _meaning(self, name: str, offset: int) -> str:
        return next((before for at, before in self._changes.get(name, ()) if at > offset), self._now.get(name, name))
