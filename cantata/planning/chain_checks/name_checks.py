"""Checks of the names that expressions of a chain read: each must be a node or an input."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from cantata.models.values import JsonValue
from cantata.planning.chain_checks.declared_inputs import DeclaredInputs
from cantata.planning.chain_checks.node_checks import Nearest
from cantata.planning.chains.links import ITEM_NAMES, Nodes
from cantata.planning.expressions import Expression

EVERYWHERE = frozenset({"input", "output"})


def read_from_input(nodes: Nodes) -> list[str]:
    """Return the names that a chain's expressions read and that are not nodes."""
    names: set[str] = set()
    for node_id, roots in nodes.roots.items():
        names |= roots - EVERYWHERE - nodes.all.keys() - (ITEM_NAMES if node_id in nodes.bodies else frozenset())
    return sorted(names.union(*(expression.inputs for expression in nodes.readable.values())))


@dataclass(frozen=True)
class ReadableNames:
    """The names that the expressions of a chain may read."""

    nodes: Collection[str]
    declared: DeclaredInputs | None
    """The inputs that the chain declares."""
    given: Mapping[str, JsonValue] | None
    """The given input; None if it is not known yet."""

    def faults(self, expression: Expression, *, in_map: bool = False) -> Iterator[str]:
        """Yield the faults of the names that an expression reads; in a map's node it may read the item too."""
        known = self._inputs
        if known is None:
            return
        item_names = ITEM_NAMES if in_map else frozenset()
        for name in sorted(expression.roots - EVERYWHERE - item_names - known):
            if name not in self.nodes:
                yield f"{name!r} is neither a node of the chain nor an input{self._nearest.hint(name) or self._remedy(name)}"
        for name in sorted(expression.inputs - known) if self.declared else ():
            yield f"the chain declares no input {name!r}{self._nearest_input.hint(name)}"

    @property
    def _inputs(self) -> frozenset[str] | None:
        if self.declared is not None:
            return None if self.declared.is_open else frozenset(self.declared.schemas)
        return None if self.given is None else frozenset(self.given)

    def _remedy(self, name: str) -> str:
        if name in ITEM_NAMES:
            return "; only the map_node of a map has an item"
        return "; declare it under 'inputs'" if self.declared else f"; of an input that may be absent, write 'input.{name}'"

    @cached_property
    def _nearest(self) -> Nearest:
        return Nearest([*self.nodes, *(self._inputs or ())])

    @cached_property
    def _nearest_input(self) -> Nearest:
        return Nearest(self._inputs or ())
