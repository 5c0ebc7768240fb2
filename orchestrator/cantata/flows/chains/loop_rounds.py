"""Steps and edges of a whole chain with the first round of each loop, or of a further round of one loop.

A round has the nodes that its start leads to without going back in a loop; the rest of a body comes with a later round. Where a link
leaves a loop, the step behind it must wait until the loop is left, whichever round takes it:

    control   an edge from each round's copy, and a guard from the branch, which no outcome takes
    data      an edge from the branch, for what is read is the last round's; and one from each round's copy, since the branch may be skipped

The branch's edges move from round to round, since each round's branch expands to the next round with that round's branch as the exit. A
further round has no edges from outside its body: their sources are over when the first round is, since the branch waits for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from cantata.flows.chains import specs
from cantata.flows.chains.links import Link
from cantata.flows.chains.loops import Loop, adjacency
from cantata.flows.chains.outline import Outline
from cantata.flows.chains.references import References
from cantata.flows.chains.step_ids import in_round
from cantata.flows.definitions import Definitions
from cantata.flows.graph import Edge, Spec, Step
from cantata.flows.graphs import reach
from cantata.values import JsonValue

GUARD = "never"
"""A label that no outcome takes: the edge makes its target wait, and never starts it."""


class LoopRound:
    """A whole chain with the first round of each loop, or a further round of `loop`: the last of `rounds`."""

    def __init__(
        self, outline: Outline, definitions: Definitions, *, parent: str = "", chain: str = "", loop: Loop | None = None,
        rounds: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self._outline = outline
        self._definitions = definitions
        self._chain = chain
        self._loop = loop
        self._depth = max(len(rounds) - 1, 0)
        self._nodes = outline.nodes.all
        self._inside = [node_id for node_id in outline.nodes.steps if loop is None or node_id in loop.body]
        self._live = _live(outline, loop)
        self.at = References(outline, parent, dict(zip(loop.path, rounds, strict=True)) if loop else {})

    def steps(self) -> list[Step]:
        """Return the steps, in the order of their nodes."""
        live = [self._nodes[node_id] for node_id in self._inside if node_id in self._live]
        return [Step(id=self.at.step_id(node.node_id), given=node.default, **vars(self._spec(node.node_id))) for node in live]

    def edges(self) -> list[Edge]:
        """Return the edges among the steps, and from them to older ones that lie behind the loop."""
        edges = _Edges()
        loops, inside = self._outline.loops, set(self._inside)
        for link in self._outline.nodes.links:
            if link.source in inside and link not in loops.backs and link not in loops.recalls:
                self._add(link, edges)
        for node_id in self._inside:
            body = self._body_of(node_id)
            if body and node_id in self._live and not edges.targets[node_id] & body.body:
                edges.add(node_id, body.branch, wakes=False)  # else the next round could begin while it runs
        step_id = self.at.step_id
        return [
            Edge(source=step_id(source), target=step_id(target), label=label, wakes=wakes)
            for source, target, label, wakes in edges.needed()
        ]

    def names(self) -> dict[str, str]:
        """Return name → the step, or the name within a round, that answers to it from now on."""
        names = {}
        for node_id in self._inside:
            name, numbers = self.at.name(node_id), self.at.numbers(node_id)
            names.update({in_round(name, numbers[:i]): in_round(name, numbers[: i + 1]) for i in range(self._depth, len(numbers))})
        return names

    # --- edges ------------------------------------------------------------------------------------------------------

    def _add(self, link: Link, edges: _Edges) -> None:
        """Add the edges of a link."""
        source, target, wakes = link.source, link.target, self._outline.loops.wakes(link)
        left = next((loop for loop in self._loops_at(source) if target not in loop.body), None)
        if self._loop and target not in self._loop.body:
            if wakes and source in self._live and source != self._loop.branch:  # what leaves from the branch came with the first round
                edges.add(source, target, link.label)
        elif target in self._live:
            if source in self._live and (wakes or not left):
                edges.add(source, target, link.label, wakes=wakes)
            if left and link.sort != "leads":
                edges.add(left.branch, target, wakes=wakes)
            elif left and left.branch != source:
                edges.add(left.branch, target, GUARD)
        elif left or source in self._live:  # the branch that may begin the target's round waits for what this will need
            entered = next((loop for loop in reversed(self._loops_at(target)) if source not in loop.body), None)
            if entered:
                edges.add(left.branch if left else source, entered.branch, wakes=False)

    def _body_of(self, node_id: str) -> Loop | None:
        """Return the innermost loop whose branch is still to come behind a node."""
        return next((loop for loop in reversed(self._loops_at(node_id)) if loop.branch != node_id), None)

    def _loops_at(self, node_id: str) -> list[Loop]:
        """Return the loops that a node is in and that can go round from here, the outermost first."""
        return [loop for loop in self._outline.loops.path(node_id)[self._depth :] if loop.branch in self._live]

    # --- steps ------------------------------------------------------------------------------------------------------

    def _spec(self, node_id: str) -> Spec:
        """Return the spec of a node's step, or of each item of the map that it is the map_node of."""
        node = self._nodes[node_id]
        if node.kind == "wait":
            return specs.wait(node)
        reads = self.at.reads(node_id)
        if node.kind == "branch":
            return specs.branch(node, reads, self._turn(node_id))
        if node.kind == "map":
            return specs.mapping(node, reads, self._spec(node.map_node or ""), self._definitions)
        return specs.call(node, reads, self._definitions)

    def _turn(self, node_id: str) -> dict[str, JsonValue] | None:
        """Return the parameters with which a branch begins another round of its loop."""
        loop = self._outline.loops.home.get(node_id)
        if loop is None or loop.branch != node_id:
            return None
        turn: dict[str, JsonValue] = {"chain": self._chain, "entry": self._outline.entry, "branch": node_id, "side": loop.link.label}
        return {**turn, "max_iterations": self._nodes[node_id].max_iterations}


def _live(outline: Outline, loop: Loop | None) -> set[str]:
    """Return the nodes that have a step in a round."""
    into: dict[str, list[Link]] = defaultdict(list)
    for link in outline.waking:
        into[link.target].append(link)
    start = loop.first if loop else outline.entry
    return _begun(outline, loop, {start}, into)


def _begun(outline: Outline, loop: Loop | None, starts: Iterable[str], into: Mapping[str, list[Link]]) -> set[str]:
    """Return the nodes of a body, or of the whole chain, that its starts lead to without going back in a loop.

    A loop inside may be left from any of its rounds, so all behind it counts; of itself only what is in its first.
    """
    body = loop.body if loop else outline.nodes.steps
    if loop:
        into = {node: [link for link in into.get(node, ()) if link.source in loop.body and link is not loop.link] for node in body}
    reached = reach(starts, adjacency(link for node in body for link in into.get(node, ())))
    begun = {node for node in reached if outline.loops.home.get(node) is loop}
    for within in outline.loops.inside[loop]:
        inwards = [link for node in within.body for link in into.get(node, ()) if link.source not in within.body]
        entered = {link.target for link in inwards if link.source in reached}
        begun |= _begun(outline, within, entered | (within.body & set(starts)), into)
    return begun


class _Edges:
    """Edges between nodes, each pair's labels together."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, str], dict[str, bool]] = {}
        self.targets: dict[str, set[str]] = defaultdict(set)

    def add(self, source: str, target: str, label: str = "done", *, wakes: bool = True) -> None:
        labels = self._labels.setdefault((source, target), {})
        labels[label] = labels.get(label, False) or wakes
        self.targets[source].add(target)

    def needed(self) -> Iterator[tuple[str, str, str, bool]]:
        """Yield source, target, label, wakes. An edge that only orders is left out beside one that wakes, and a guard beside either."""
        for (source, target), labels in self._labels.items():
            waking = [label for label, wakes in labels.items() if wakes and label != GUARD]
            for label in waking or labels.keys() & {GUARD} or labels:
                yield source, target, label, labels[label]
