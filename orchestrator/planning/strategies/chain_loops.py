"""Finds the loops of a chain, and which of its links go back.

A loop is a branch one side of which points back to a node that leads to it. Its body is what lies between that node, the *first*, and the
branch, which comes last: whatever the branch decides, all else in the body is over. So a loop is drawn as rounds, each a copy of the body:

    do ... while    first → ... → branch → (side) first          round 1 is the whole body
    while           branch → (side) first → ... → branch         round 1 is the branch alone, and what leads to it

Loops nest: take away the side that points back, and the circles left in the body are the loops inside. What is left of a circle that has no
such side is a fault. A *recall* is a reference to the node itself or to one that comes later in the body: it means the round before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from orchestrator.planning.graphs import Dominance, Reachability, circles, reach, reversed_graph, shortest_circle
from orchestrator.planning.strategies.chain_links import Link

DEEPEST = 16  # loops in loops: each level is a number in the ids of its steps, and another pass over its body

SIDES = ("true", "false")


@dataclass(frozen=True, eq=False)
class Loop:
    """A branch that points back, and what it repeats."""

    link: Link
    """From the branch back to the first node."""
    body: frozenset[str]
    within: Loop | None

    @property
    def branch(self) -> str:
        """The node that decides on another round; the last of each."""
        return self.link.source

    @property
    def first(self) -> str:
        """The node that every round after the first begins with."""
        return self.link.target

    @cached_property
    def path(self) -> tuple[Loop, ...]:
        """The loops it is in, the outermost first, and itself."""
        return (*(self.within.path if self.within else ()), self)


@dataclass(frozen=True)
class Loops:
    """The loops of a chain, and what its links mean in them."""

    inside: Mapping[Loop | None, Sequence[Loop]] = field(default_factory=dict)
    """The loops right inside a loop, or inside none."""
    home: Mapping[str, Loop] = field(default_factory=dict)
    """Node → the innermost loop it is in."""
    backs: Mapping[Link, Loop] = field(default_factory=dict)
    """The link by which each loop goes back."""
    recalls: frozenset[Link] = frozenset()
    """The references to the round before."""
    led: frozenset[str] = frozenset()
    """The nodes that only control starts. The others start when their data are there."""
    circles: Sequence[Sequence[Link]] = ()
    """Faults: ways in a circle that no branch closes."""
    too_deep: Sequence[Loop] = ()
    """Faults: loops in more than DEEPEST others."""

    def path(self, node: str) -> tuple[Loop, ...]:
        """The loops a node is in, the outermost first."""
        home = self.home.get(node)
        return home.path if home else ()


def find(nodes: Sequence[str], entry: str, links: Sequence[Link]) -> Loops:
    """The loops among these nodes, and the circles that are none."""
    groups = circles(nodes, adjacency(links))
    led = _led(groups, entry, links)
    if not groups:
        return Loops(led=led)
    levels = [_Level(None, nodes, entry, links, led)]
    for level in levels:  # grows as loops are found in loops
        levels += level.inner_levels()
    loops = [loop for level in levels for loop in level.loops]
    return Loops(
        inside={level.loop: level.loops for level in levels},
        home={node: level.loop for level in levels if level.loop for node in level.nodes},
        backs={loop.link: loop for loop in loops},
        recalls=frozenset(link for level in levels for link in level.recalls),
        led=led,
        circles=[circle for level in levels for circle in level.circles],
        too_deep=[loop for loop in loops if len(loop.path) > DEEPEST],
    )


def adjacency(links: Iterable[Link], loop: Loop | None = None) -> dict[str, list[str]]:
    """The graph that links make; with a loop, its branch stands for all its body."""
    successors: dict[str, list[str]] = defaultdict(list)
    for link in links:
        source, target = _ends(link, loop)
        successors[source].append(target)
    return successors


def _ends(link: Link, loop: Loop | None) -> tuple[str, str]:
    if loop is None:
        return link.source, link.target
    source, target = (loop.branch if node in loop.body else node for node in (link.source, link.target))
    return source, target


class _Level:
    """The nodes of a whole chain or of a loop's body, and the loops right inside."""

    def __init__(self, loop: Loop | None, nodes: Sequence[str], start: str, links: Sequence[Link], led: Set[str]) -> None:
        self.loop = loop
        self.nodes = nodes
        self.loops: list[Loop] = []
        self.recalls: list[Link] = []
        self.circles: list[list[Link]] = []
        self._place = {node: place for place, node in enumerate(nodes)}
        self._start = start
        self._links = [link for link in links if not loop or link is not loop.link]
        self._led = led
        if loop:
            self._recall([link for link in self._links if _reads_past_the_end(link, loop)])
            self._recall(list(self._later()))
        self._out = _by(self._links, lambda link: link.source)
        self._in = _by(self._links, lambda link: link.target)
        self._find_loops()

    def inner_levels(self) -> list[_Level]:
        """The bodies of the loops found, to be searched in turn."""
        return [
            _Level(loop, self._sorted(loop.body), loop.first, self._between(loop.body), self._led)
            for loop in self.loops
            if len(loop.path) <= DEEPEST
        ]

    def _recall(self, links: Sequence[Link]) -> None:
        self.recalls += links
        gone = set(links)
        self._links = [link for link in self._links if link not in gone]

    def _later(self) -> Iterator[Link]:
        """The references to nodes that come later in the body."""
        order = Dominance([self._start], adjacency(self._links))
        unsettled = []
        for link in self._links:
            if link.sort == "reads" and not order.holds(link.source, link.target):
                if order.holds(link.target, link.source):
                    yield link
                else:
                    unsettled.append(link)
        fixed = {link.target for link in self._links if link.sort != "reads"} | self._led
        forward = [link for link in self._links if link.sort != "reads" or link.target not in fixed]
        way = Reachability(self.nodes, adjacency(link for link in forward if not order.holds(link.target, link.source)))
        yield from (link for link in unsettled if way.leads(link.target, link.source) and not way.leads(link.source, link.target))

    def _find_loops(self) -> None:
        todo = circles(self.nodes, adjacency(self._links))
        while todo:
            group = todo.pop()
            inner = self._between(group)
            loop = self._choose(group, inner)
            if loop is None:
                self.circles.append(_circle(self._sorted(group)[0], inner))
                continue
            self.loops.append(loop)
            beside = [link for link in inner if not {link.source, link.target} <= loop.body]
            for other in circles(set(group) - loop.body | {loop.branch}, adjacency(beside, loop)):
                if loop.branch in other:
                    self.circles.append(_circle(loop.branch, beside, loop))
                else:
                    todo.append(other)

    def _choose(self, group: Sequence[str], inner: Sequence[Link]) -> Loop | None:
        """The outermost loop of a circle: its branch has one side inside, and no other way on in the circle."""
        starting = adjacency(link for link in inner if self._wakes(link))
        way = Reachability(group, starting)
        candidates = [link for link in self._candidates(group, inner) if way.leads(link.target, link.source)]
        if not candidates:
            return None
        nodes = set(group)
        link = min(candidates, key=lambda link: self._rank(link, nodes))
        ahead = adjacency(other for other in inner if other is not link and self._wakes(other))
        back = reversed_graph(adjacency(other for other in inner if other is not link))
        return Loop(link, frozenset(reach([link.target], ahead) & reach([link.source], back)), self.loop)

    def _candidates(self, group: Sequence[str], inner: Sequence[Link]) -> Iterator[Link]:
        ways = _by((link for link in inner if link.sort != "reads"), lambda link: link.source)
        for node in group:
            if len(ways[node]) == 1 and ways[node][0].label in SIDES and ways[node][0].target != node and self._is_alone(ways[node][0]):
                yield ways[node][0]

    def _is_alone(self, back: Link) -> bool:
        """Whether a side of a branch leads to one node: one that goes back has no others, which would begin with each round."""
        return sum(link.label == back.label for link in self._out[back.source]) == 1

    def _rank(self, link: Link, group: Set[str]) -> tuple[int, int]:
        """First the branch that points back to where the circle is entered, then the one it is entered at."""
        at_first, at_branch = (self._is_entered(node, group) for node in (link.target, link.source))
        return (0 if at_first else 1 if at_branch else 2, self._place[link.source])

    def _is_entered(self, node: str, group: Set[str]) -> bool:
        return node == self._start or any(link.source not in group for link in self._in[node])

    def _wakes(self, link: Link) -> bool:
        return link.sort == "leads" or link.target not in self._led

    def _between(self, nodes: Iterable[str]) -> list[Link]:
        among = set(nodes)
        return [link for node in nodes for link in self._out[node] if link.target in among]

    def _sorted(self, nodes: Iterable[str]) -> list[str]:
        return sorted(nodes, key=self._place.__getitem__)


def _led(groups: Sequence[Sequence[str]], entry: str, links: Sequence[Link]) -> frozenset[str]:
    """The entry, and the nodes to which control leads that can be there before them.

    A first node that only its own loop leads to is not among them, if each way to the loop's branch goes through it: its data start it.
    """
    numbers = {node: number for number, group in enumerate(groups) for node in group}
    crossing = {link for link in links if numbers.get(link.source, -1) != numbers.get(link.target, -2)}
    entered = {entry, *(link.target for link in crossing)}
    order = Dominance([node for node in numbers if node in entered], adjacency(link for link in links if link not in crossing))
    control = (link for link in links if link.sort == "leads")
    return frozenset({entry, *(link.target for link in control if not order.holds(link.target, link.source))})


def _reads_past_the_end(link: Link, loop: Loop) -> bool:
    return link.sort == "reads" and (link.source == loop.branch or link.target == loop.first or link.source == link.target)


def _by(links: Iterable[Link], end: Callable[[Link], str]) -> dict[str, list[Link]]:
    groups: dict[str, list[Link]] = defaultdict(list)
    for link in links:
        groups[end(link)].append(link)
    return groups


def _circle(node: str, links: Sequence[Link], loop: Loop | None = None) -> list[Link]:
    """The links of a shortest circle through a node; with a loop, its branch stands for all its body."""
    stated = {_ends(link, loop): link for link in reversed(links)}
    return [stated[pair] for pair in pairwise(shortest_circle(node, adjacency(links, loop)))]
