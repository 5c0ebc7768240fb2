"""What the nodes of a chain say about order: who leads to whom, who waits for whom, who reads whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.models.wire import ChainNode
from orchestrator.planning.expressions import ExpressionError, parse

ON_ERROR_WORDS = ("abort", "skip")

ITEM_NAMES = frozenset({"_item", "item", "index"})
"""What the expressions of a map's node may read besides."""

Sort = Literal["leads", "awaits", "reads"]


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """One node before another, and where that is said."""

    source: str
    target: str
    sort: Sort
    label: str
    """Which outcome of the source takes it: done, true, false, failed."""
    owner: str
    """The node that says it."""
    field: str


@dataclass(frozen=True)
class Nodes:
    """The nodes of a chain, with what they say read."""

    all: Mapping[str, ChainNode]
    bodies: Mapping[str, str]
    """map_node → the map that runs it: another map_node where maps are nested."""
    links: Sequence[Link]
    """Between nodes that are steps: a map stands for its map_node."""
    roots: Mapping[str, frozenset[str]]
    """Node → the names its expressions read from their root."""

    @property
    def steps(self) -> list[str]:
        """The nodes that are steps of their own, in order."""
        return [node_id for node_id in self.all if node_id not in self.bodies]

    def owner_of(self, node_id: str) -> str:
        """The step that runs a node: itself, or the map it is the map_node of."""
        return outermost(node_id, self.bodies)


def outermost(node_id: str, bodies: Mapping[str, str]) -> str:
    """The map that in the end runs a node; the node itself if none does, or maps run each other in a circle."""
    seen = set()
    while node_id in bodies and node_id not in seen:
        seen.add(node_id)
        node_id = bodies[node_id]
    return node_id


def leads(node: ChainNode) -> Iterator[tuple[str, str, str]]:
    """Field, target and label of each way on. A branch's `next_node` is the default of a side that names none."""
    if node.kind == "branch":
        for side, target in (("true", node.true_node), ("false", node.false_node)):
            if target:
                yield f"{side}_node", target, side
            elif node.next_node:
                yield "next_node", node.next_node, side
    elif node.next_node:
        yield "next_node", node.next_node, "done"
    if node.on_error not in ON_ERROR_WORDS:
        yield "on_error", node.on_error, "failed"


def expressions(node: ChainNode) -> Iterator[tuple[str, str]]:
    """Field and text of each expression that counts for the node's kind."""
    if node.kind == "branch":
        yield "condition", node.condition
    elif node.kind == "map":
        yield "items_path", node.items_path
    elif node.kind != "wait":
        yield from ((f"input_map.{key}", text) for key, text in node.input_map.items())


def read(nodes: Iterable[ChainNode], mend: Callable[[str], str | None] = lambda node_id: node_id) -> Nodes:
    """The nodes with their links; of several with one id, the first.

    `mend` gives the node that is meant by an id, or None: a check goes on behind a misspelt one.
    """
    by_id: dict[str, ChainNode] = {}
    for node in nodes:
        by_id.setdefault(node.node_id, node)
    return _Reader(by_id, mend).read()


class _Reader:
    def __init__(self, nodes: Mapping[str, ChainNode], mend: Callable[[str], str | None]) -> None:
        self._nodes = nodes
        self._mend = mend
        self._names = frozenset(nodes)
        self._bodies: dict[str, str] = {}
        self._read: dict[str, frozenset[str]] = {}

    def read(self) -> Nodes:
        for node in self._nodes.values():
            body = self._mend(node.map_node) if node.kind == "map" and node.map_node else None
            if body is not None:
                self._bodies.setdefault(body, node.node_id)
        roots = {node.node_id: self._roots(node) for node in self._nodes.values()}
        steps = {node_id for node_id in self._nodes if node_id not in self._bodies}  # maps that run each other in a circle are none
        links = [link for node in self._nodes.values() for link in self._links(node) if {link.source, link.target} <= steps]
        return Nodes(self._nodes, self._bodies, links, roots)

    def _roots(self, node: ChainNode) -> frozenset[str]:
        return frozenset(root for _, text in expressions(node) for root in self._roots_of(text))

    def _roots_of(self, text: str) -> frozenset[str]:
        if text not in self._read:
            try:
                self._read[text] = parse(text, self._names).roots
            except ExpressionError:  # a fault, which the check reports
                self._read[text] = frozenset()
        return self._read[text]

    def _links(self, node: ChainNode) -> Iterator[Link]:
        seen = set()
        for link in self._stated(node):
            key = (link.source, link.target, link.sort, link.label)
            if key not in seen:
                seen.add(key)
                yield link

    def _stated(self, node: ChainNode) -> Iterator[Link]:
        me = outermost(node.node_id, self._bodies)
        if me == node.node_id:
            for field, stated, label in leads(node):
                target = self._mend(stated)
                if target is not None:
                    yield Link(me, outermost(target, self._bodies), "leads", label, node.node_id, field)
            for source in filter(None, map(self._mend, node.deps)):
                yield Link(outermost(source, self._bodies), me, "awaits", "done", node.node_id, "deps")
        for field, text in expressions(node):
            for root in sorted(self._roots_of(text) & self._names):
                yield Link(outermost(root, self._bodies), me, "reads", "done", node.node_id, field)
