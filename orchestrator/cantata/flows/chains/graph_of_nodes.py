"""The nodes of a chain request as a graph: the links between them, and a key by which what is found out about them is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, cast
from weakref import ref

from cantata.flows.definitions import Definitions
from cantata.flows.expressions.expressions import Expression, ExpressionError, parse
from cantata.flows.wire import ChainNode, ChainRequest
from cantata.values import stored

MAX_LINKS = 200_000
"""Links in one chain; with one more it is rejected. A link of 7 characters, such as `"n123",` in `deps`, takes 25 µs and 1 kB to plan."""
ON_ERROR_WORDS = ("abort", "skip")

ITEM_NAMES = frozenset({"_item", "item", "index"})
"""Further names that the expressions of a map's node may read."""

Sort = Literal["leads", "awaits", "reads"]


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A link from one node to another, and the field that states it."""

    source: str
    target: str
    sort: Sort
    label: str
    """The outcome of the source that takes it: done, true, false, failed."""
    owner: str
    """The node that states it."""
    field: str


@dataclass(frozen=True)
class Nodes:
    """The nodes of a chain, with their links and expressions."""

    all: Mapping[str, ChainNode]
    bodies: Mapping[str, str]
    """map_node → the map that runs it, which is itself a map_node if maps are nested."""
    links: Sequence[Link]
    """Links between nodes that are steps; a map replaces its map_node."""
    roots: Mapping[str, frozenset[str]]
    """Node → the names its expressions read from their root."""
    readable: Mapping[str, Expression]
    """Text → the parsed expression."""
    unreadable: Mapping[str, str]
    """Text → the reason why it cannot be parsed."""

    @property
    def steps(self) -> list[str]:
        """Return the ids of the nodes that are steps of their own, in order."""
        return [node_id for node_id in self.all if node_id not in self.bodies]

    def owner_of(self, node_id: str) -> str:
        """Return the step that runs a node: the node itself, or the map that it is the map_node of."""
        return outermost(node_id, self.bodies)


def outermost(node_id: str, bodies: Mapping[str, str]) -> str:
    """Return the outermost map that runs a node; the node itself if none does, or if maps run each other in a cycle."""
    seen = set()
    while node_id in bodies and node_id not in seen:
        seen.add(node_id)
        node_id = bodies[node_id]
    return node_id


def leads(node: ChainNode) -> Iterator[tuple[str, str, str]]:
    """Yield the field, target and label of each link that a node leads along. A branch's `next_node` is the default of both sides."""
    if node.kind == "branch":
        for side, target in (("true", node.true_node), ("false", node.false_node)):
            field, targets = (f"{side}_node", target) if target else ("next_node", node.next_node)
            yield from ((field, each, side) for each in _each(targets))
    else:
        yield from (("next_node", each, "done") for each in _each(node.next_node))
    if node.on_error not in ON_ERROR_WORDS:
        yield "on_error", node.on_error, "failed"


def _each(targets: str | list[str] | None) -> Sequence[str]:
    return targets if isinstance(targets, list) else [targets] if targets else ()


def expressions(node: ChainNode) -> Iterator[tuple[str, str]]:
    """Yield the field and text of each expression that has an effect on the node's kind."""
    if node.kind == "branch":
        yield "condition", node.condition
    elif node.kind == "map":
        yield "items_path", node.items_path
    elif node.kind != "wait":
        yield from ((f"input_map.{key}", text) for key, text in node.input_map.items())


def roots(texts: Iterable[str], node_ids: Collection[str]) -> frozenset[str]:
    """Return the names that expressions read from their root. Raises ExpressionError."""
    names = frozenset(node_ids)
    return frozenset().union(*(parse(text, names).roots for text in texts))


def read(nodes: Iterable[ChainNode], correct: Callable[[str], str | None] = lambda node_id: node_id) -> Nodes:
    """Return the nodes with their links; of several with one id, the first.

    `correct` maps an id to the id that is meant, or None, so that a check can continue behind a misspelt id.
    """
    return _Reader(list(nodes), correct).read()


class _Reader:
    def __init__(self, nodes: Sequence[ChainNode], correct: Callable[[str], str | None]) -> None:
        self._nodes = {node.node_id: node for node in reversed(nodes)}
        self._correct = correct
        self._bodies: dict[str, str] = {}
        self._readable: dict[str, Expression] = {}
        self._unreadable: dict[str, str] = {}
        names = frozenset(self._nodes)
        for text in (text for node in nodes for _, text in expressions(node)):
            self._parse(text, names)

    def read(self) -> Nodes:
        nodes = dict(reversed(self._nodes.items()))
        for node in nodes.values():
            body = self._correct(node.map_node) if node.kind == "map" and node.map_node else None
            if body is not None:
                self._bodies.setdefault(body, node.node_id)
        steps = nodes.keys() - self._bodies.keys()  # of maps that run each other in a cycle, none
        stated = (link for node in nodes.values() for link in self._links(node))
        links = list(islice((link for link in stated if link.source in steps and link.target in steps), MAX_LINKS + 1))
        roots = {
            node.node_id: frozenset().union(*(self._roots_of(text) for _, text in expressions(node)))
            for node in nodes.values()
        }
        return Nodes(nodes, self._bodies, links, roots, self._readable, self._unreadable)

    def _parse(self, text: str, names: frozenset[str]) -> None:
        if text not in self._readable and text not in self._unreadable:
            try:
                self._readable[text] = parse(text, names)
            except ExpressionError as error:
                self._unreadable[text] = str(error)

    def _roots_of(self, text: str) -> frozenset[str]:
        return self._readable[text].roots if text in self._readable else frozenset()

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
                target = self._correct(stated)
                if target is not None:
                    yield Link(me, outermost(target, self._bodies), "leads", label, node.node_id, field)
            for source in filter(None, map(self._correct, node.deps)):
                yield Link(outermost(source, self._bodies), me, "awaits", "done", node.node_id, "deps")
        for field, text in expressions(node):
            for root in sorted(self._roots_of(text) & self._nodes.keys()):
                yield Link(outermost(root, self._bodies), me, "reads", "done", node.node_id, field)


# --- what is found out about the same nodes is kept -----------------------------------------------------------------

MAX_KNOWN = 64
"""Results that a process keeps of each kind."""
MAX_KNOWN_CHARS = 100_000
"""Length of the largest text of nodes, with the names of inputs, whose results are kept; a plan takes about five times as much memory."""


class ChainKey:
    """Equal for equal nodes, entry, declared inputs and names of inputs, with the same object of definitions."""

    def __init__(self, request: ChainRequest, definitions: Definitions, inputs: Iterable[str] = ()) -> None:
        try:
            self.text = request.model_dump_json(include={"nodes", "entry_node", "inputs"}, exclude_defaults=True)
        except ValueError:  # half of a surrogate pair
            self.text = ""
        self._definitions = ref(definitions)  # those of a fork are parsed for it alone
        self.inputs = tuple(inputs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChainKey) and self._parts == other._parts and self.definitions is other.definitions

    def __hash__(self) -> int:
        return hash(self._parts)

    @property
    def _parts(self) -> tuple[str, tuple[str, ...]]:
        return self.text, self.inputs

    @property
    def definitions(self) -> Definitions:
        """The definitions, for as long as the caller has them."""
        return cast(Definitions, self._definitions())

    @property
    def is_small(self) -> bool:
        """True if its results are kept."""
        return self.text != "" and len(self.text) + sum(map(len, self.inputs)) <= MAX_KNOWN_CHARS

    def request(self) -> ChainRequest:
        """Return a request with these nodes, and null for each input."""
        nodes = json.loads(self.text)  # pydantic's parser refuses deep values
        return stored(ChainRequest, nodes).model_copy(update={"initial_input": dict.fromkeys(self.inputs)})
