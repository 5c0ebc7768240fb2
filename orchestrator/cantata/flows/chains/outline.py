"""The outline of a chain: its nodes with their links and loops, the reachable nodes, the terminals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cantata.flows.chains import links
from cantata.flows.chains.links import Link, Nodes
from cantata.flows.chains.loops import Loop, Loops, adjacency
from cantata.flows.graphs import reach
from cantata.flows.wire import ChainNode

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


def outline(nodes: Iterable[ChainNode], entry: str, correct: Callable[[str], str | None] = lambda node_id: node_id) -> Outline:
    """Return the outline of a chain. `correct` maps an id to the id that is meant, or None; without it each id must be a node's."""
    read = links.read(nodes, correct)
    entry = read.owner_of(entry)
    return Outline(read, entry, Loops(read.steps, entry, read.links))
