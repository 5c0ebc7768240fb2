"""Loops of a chain: the branches that close them, the nodes that they repeat, and the references to the round before.

A loop is a branch with one side that points back, to a node that leads to the branch. Its body is a whole strongly connected component of
the chain: the branch comes last in it, so when the branch decides, all else in the body is over. A loop runs as rounds of its body:

    do ... while    first → ... → branch → (side) first          the first round is the whole body
    while           branch → (side) first → ... → branch         the first round is the branch alone, and what leads to it

Without the link that points back, the components that are left in the body are the loops inside. A component that no branch closes is an
error. A *recall* is a reference to the node itself, or to one that comes later in the body: it means the round before, and orders nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from cantata.flows.chains import graph_of_nodes
from cantata.flows.chains.graph_of_nodes import Link, Nodes
from cantata.flows.graphs import Reachability, cycles, postorder, reach, shortest_cycle
from cantata.flows.wire import ChainNode

MAX_LOOP_DEPTH = 16  # loops in loops: each level is a number in the ids of its steps, and another pass over its body

SIDES = ("true", "false")


@dataclass(frozen=True, eq=False)
class Loop:
    """A branch that points back, and the nodes that it repeats."""

    link: Link
    """From the branch back to the first node."""
    body: frozenset[str]
    links: Sequence[Link]
    """The links within the body, without the one back."""
    within: Loop | None

    @property
    def branch(self) -> str:
        """Return the node that decides on another round; it is the last of each round."""
        return self.link.source

    @property
    def first(self) -> str:
        """Return the node that every round after the first begins with."""
        return self.link.target

    @cached_property
    def path(self) -> tuple[Loop, ...]:
        """Return the loops that contain it, the outermost first, and the loop itself."""
        return (*(self.within.path if self.within else ()), self)


class Loops:
    """The loops of a chain, and what its links mean in them."""

    def __init__(self, nodes: Sequence[str], entry: str, links: Sequence[Link]) -> None:
        self._places = {node: place for place, node in enumerate(nodes)}
        components = cycles(nodes, adjacency(links))
        self.led = _led(components, entry, links)
        """The nodes that only control starts. The others start when their data exist."""
        self.inside: dict[Loop | None, list[Loop]] = defaultdict(list)
        """The loops right inside a loop, or inside none."""
        self.home: dict[str, Loop] = {}
        """Node → the innermost loop it is in."""
        self.recalls: set[Link] = set()
        """The references to the round before."""
        self.cycles: list[Sequence[Link]] = []
        """Errors: cycles that no branch closes."""
        self.too_deep: list[Link] = []
        """Errors: links that close loops inside MAX_LOOP_DEPTH others."""
        levels: list[Loop | None] = [None] if components else []
        for loop in levels:  # appended to as inner loops are found
            self._search(loop, loop.first if loop else entry, loop.links if loop else links)
            levels += self.inside[loop]
        self.backs = {loop.link: loop for loops in self.inside.values() for loop in loops}
        """The link by which each loop goes back."""

    def path(self, node: str) -> tuple[Loop, ...]:
        """Return the loops a node is in, the outermost first."""
        home = self.home.get(node)
        return home.path if home else ()

    def wakes(self, link: Link) -> bool:
        """Return whether a link starts its target: control links do, and data links where no control leads."""
        return (link.sort == "leads" or link.target not in self.led) and link not in self.recalls

    def strays(self) -> Iterator[tuple[Loop, Set[str]]]:
        """Give the errors in rounds: loops, and the nodes of their bodies that their first nodes do not lead to."""
        for loop in self.backs.values():
            strays = loop.body - reach([loop.first], adjacency(filter(self.wakes, loop.links)))
            if strays:
                yield loop, strays

    def _search(self, within: Loop | None, start: str, links: Sequence[Link]) -> None:
        """Find the loops right inside a loop, or in the whole chain, which begins with `start`."""
        if within:
            self.recalls.update(self._recalls(within))
            self.home.update(dict.fromkeys(within.body, within))
        links = [link for link in links if link not in self.recalls]
        groups = cycles(sorted(within.body, key=self._places.__getitem__) if within else self._places, adjacency(links))
        number = {node: i for i, group in enumerate(groups) for node in group}
        among: list[list[Link]] = [[] for _ in groups]
        entered = {start}
        sides = Counter((link.source, link.label) for link in links)
        for link in links:
            if number.get(link.source, -1) == number.get(link.target, -2):
                among[number[link.source]].append(link)
            elif self.wakes(link):
                entered.add(link.target)
        for group, inner in zip(groups, among, strict=True):
            back = self._back(inner, sides, entered)
            if back is None:
                self.cycles.append(shortest_links(min(group, key=self._places.__getitem__), inner))
            elif within is None or len(within.path) < MAX_LOOP_DEPTH:
                self.inside[within].append(
                    Loop(back, frozenset(group), [link for link in inner if link is not back], within)
                )
            else:
                self.too_deep.append(back)

    def _back(self, inner: Sequence[Link], sides: Mapping[tuple[str, str], int], entered: Set[str]) -> Link | None:
        """Return the link that closes a component: the only way on in it from a branch, and the only one of the branch's side.

        One to a node where the component is entered comes first, then one from such a node.
        """
        control = [link for link in inner if link.sort != "reads"]
        ways = Counter(link.source for link in control)
        closing = [
            link
            for link in control
            if link.label in SIDES
            and ways[link.source] == sides[link.source, link.label] == 1
            and link.source != link.target
        ]
        rank = {link: 0 if link.target in entered else 1 if link.source in entered else 2 for link in closing}
        return min(closing, key=lambda link: (rank[link], self._places[link.source]), default=None)

    def _recalls(self, loop: Loop) -> Iterator[Link]:
        """Give the references in a body to nodes that come later in it, or to the reader itself."""
        reads = [link for link in loop.links if link.sort == "reads"]
        past = {link for link in reads if link.source == loop.branch or link.target in (loop.first, link.source)}
        yield from past
        reads = [link for link in reads if link not in past]
        starting = [link for link in reads if link.target not in self.led]
        ordering = [link for link in reads if link.target in self.led]
        ahead = adjacency([*(link for link in loop.links if link.sort != "reads"), *starting])
        order = {node: i for i, node in enumerate(postorder([loop.first], ahead))}
        yield from (link for link in starting if order.get(link.target, -1) > order.get(link.source, len(order)))
        if ordering:
            way = Reachability(loop.body, ahead)
            yield from (
                link
                for link in ordering
                if way.leads(link.target, link.source) and not way.leads(link.source, link.target)
            )


def adjacency(links: Iterable[Link]) -> dict[str, list[str]]:
    """Return the graph that links make."""
    successors: dict[str, list[str]] = defaultdict(list)
    for link in links:
        successors[link.source].append(link.target)
    return successors


def _led(components: Sequence[Sequence[str]], entry: str, links: Sequence[Link]) -> frozenset[str]:
    """Return the entry, and the nodes to which control leads.

    But for the first node of a loop to which only its own branch leads, and behind which that branch is: its data start it.
    """
    number = {node: i for i, group in enumerate(components) for node in group}
    control = [link for link in links if link.sort == "leads"]
    asked = {entry, *(link.target for link in control)}
    only_from_behind = (
        asked
        - {entry}
        - {link.target for link in control if number.get(link.source, -1) != number.get(link.target, -2)}
    )
    if not only_from_behind:
        return frozenset(asked)
    ahead: dict[str, list[Link]] = defaultdict(list)
    for link in links:
        ahead[link.source].append(link)
    seen: set[str] = set()
    by_data: set[str] = set()
    todo = deque([(entry, False)])  # all that control starts comes before what only data do
    while todo:
        node, has_data = todo.popleft()
        if node in seen:
            continue
        seen.add(node)
        if has_data:
            by_data.add(node)
        for link in ahead.get(node, ()):
            if link.sort == "leads" or link.target not in asked:
                todo.appendleft((link.target, False))
            elif link.target in only_from_behind:
                todo.append((link.target, True))
    return frozenset(asked - by_data)


def shortest_links(node: str, links: Sequence[Link]) -> list[Link]:
    """Return the links of a shortest cycle through a node."""
    stated = {(link.source, link.target): link for link in reversed(links)}
    return [stated[pair] for pair in pairwise(shortest_cycle(node, adjacency(links)))]


# --- the outline of a chain: its nodes, links and loops -------------------------------------------------------------

Before = tuple[str, tuple[Loop, ...]]
"""A node before another, and the loops whose back links the path between them uses."""


@dataclass(frozen=True)
class Outline:
    """The nodes of a chain, its entry, and its loops."""

    nodes: Nodes
    entry: str
    loops: Loops

    @cached_property
    def into(self) -> Mapping[str, Sequence[Link]]:
        """Return the links into each node, in the order in which nodes state them."""
        into: dict[str, list[Link]] = defaultdict(list)
        for link in self.nodes.links:
            into[link.target].append(link)
        return into

    @cached_property
    def terminals(self) -> tuple[str, ...]:
        """Return the nodes without links to others, apart from links that go back in a loop."""
        back = self.loops.backs.keys() | self.loops.recalls
        sources = {link.source for link in self.nodes.links if link not in back}
        return tuple(node_id for node_id in self.nodes.steps if node_id not in sources)

    @cached_property
    def waking(self) -> Sequence[Link]:
        """Return the links that start their targets: control links, and data links where no control leads."""
        return [link for link in self.nodes.links if self.loops.wakes(link)]

    def reached(self) -> set[str]:
        """Return the nodes that can ever start."""
        return reach([self.entry], adjacency(self.waking))

    def before(self, node_id: str) -> list[Before]:
        """Return the nodes whose output `output` may be for a node: those with data that lead to it, else its deps.

        Branches are followed to the nodes before them. Nodes of the same loop come first: in its later rounds they are the ones before.
        """
        found: dict[Before, None] = {}
        passed = {node_id}
        ways: list[Before] = [(node_id, ())]
        while ways:
            target, backs = ways.pop()
            for link in self._ways_in(target):
                through = (*backs, self.loops.backs[link]) if link in self.loops.backs else backs
                if self.nodes.all[link.source].kind != "branch":
                    found[link.source, through] = None
                elif link.source not in passed:
                    passed.add(link.source)
                    ways.append((link.source, through))
        return sorted(found, key=lambda before: -sum(before[0] in loop.body for loop in self.loops.path(node_id)))

    def _ways_in(self, node_id: str) -> list[Link]:
        into = self.into.get(node_id, ())
        return [link for link in into if link.sort == "leads"] or [link for link in into if link.sort == "awaits"]


def outline(
    nodes: Iterable[ChainNode], entry: str, correct: Callable[[str], str | None] = lambda node_id: node_id
) -> Outline:
    """Return the outline of a chain. `correct` maps an id to the id that is meant, or None; without it each id must be a node's."""
    read = graph_of_nodes.read(nodes, correct)
    entry = read.owner_of(entry)
    return Outline(read, entry, Loops(read.steps, entry, read.links))
