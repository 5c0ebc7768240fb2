"""Names and steps of a chain's nodes in a run, in the rounds of its loops, and the references of a node to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from cantata.flows.chains.links import ITEM_NAMES
from cantata.flows.chains.loops import Loop
from cantata.flows.chains.outline import Outline
from cantata.flows.chains.step_ids import in_round, name_of
from cantata.flows.graph import RAW, START


@dataclass(frozen=True)
class References:
    """A chain in the run that requested it, or nested under the step `parent`."""

    outline: Outline
    parent: str
    rounds: Mapping[Loop, int]
    """Loop → its current round; loops that are missing are in their first round."""

    def name(self, node_id: str) -> str:
        """Return the name of a node, which does not depend on the round."""
        return name_of(node_id, self.parent)

    def numbers(self, node_id: str) -> tuple[int, ...]:
        """Return the rounds of the loops that contain a node, the outermost first."""
        return tuple([self.rounds.get(loop, 1) for loop in self.outline.loops.path(node_id)])

    def step_id(self, node_id: str) -> str:
        """Return the step of a node in this round."""
        return in_round(self.name(node_id), self.numbers(node_id))

    def reads(self, node_id: str) -> dict[str, str]:
        """Return the reads of a node's expressions: node ids, and if they need them `@input`, and `@before/0` ... for `output`."""
        nodes = self.outline.nodes
        me, roots = nodes.owner_of(node_id), nodes.roots[node_id]
        reads = {root: self._reference(me, nodes.owner_of(root)) for root in sorted(roots) if root in nodes.all}
        others = roots - reads.keys() - (ITEM_NAMES if me != node_id else frozenset())
        if others - {"output"}:
            reads["@input"] = f"{RAW}{self.parent or START}"
        if "output" in others:
            reads.update({f"@before/{i}": before for i, before in enumerate(dict.fromkeys(self._before(me)))})
        return reads

    def reads_of(self, roots: Collection[str]) -> dict[str, str]:
        """Return the reads of expressions behind the whole chain: node ids, each in its last round, and if they need it `@input`."""
        nodes = self.outline.nodes
        reads = {root: self.name(nodes.owner_of(root)) for root in sorted(roots) if root in nodes.all}
        return reads if reads.keys() >= set(roots) else {**reads, "@input": f"{RAW}{self.parent or START}"}

    @cached_property
    def _recalled(self) -> set[tuple[str, str]]:
        return {(link.source, link.target) for link in self.outline.loops.recalls}

    def _reference(self, reader: str, source: str) -> str:
        if (source, reader) in self._recalled:
            return self._recall(reader, source) or RAW + in_round(self.name(source), (0,))  # no such step: null
        return self.name(source)

    def _before(self, node_id: str) -> Iterator[str]:
        for source, backs in self.outline.before(node_id):
            if any(source in loop.body for loop in backs):
                before = self._recall(node_id, source)
                if before:
                    yield before
            elif all(self.rounds.get(loop, 1) > 1 for loop in backs):
                yield self.name(source)

    def _recall(self, reader: str, source: str) -> str | None:
        """Return the step of a node in the round before of the same loop; None in the first round.

        The name of a branch that expanded to its next round means that round, so its own output is read instead. Loops with the same first
        node are one loop to their reader: the first round of the inner one follows the last round of the one before.
        """
        shared = [loop for loop in self.outline.loops.path(reader) if source in loop.body]
        for depth in range(len(shared), 0, -1):
            loop, numbers = shared[depth - 1], self.numbers(reader)[:depth]
            if numbers[-1] > 1:
                before = in_round(self.name(source), (*numbers[:-1], numbers[-1] - 1))
                return RAW + before if source == loop.branch else before
            if depth == 1 or shared[depth - 2].first != loop.first:
                return None
        return None
