"""Algorithms on directed graphs: reachability, components, cycles.

A graph is a mapping from each node to its successors; a node without any may be missing. Nothing recurses: a path may have 10,000 nodes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

Successors = Mapping[str, Sequence[str]]


def reversed_graph(successors: Successors) -> dict[str, list[str]]:
    """Return the graph with all edges reversed."""
    sources: dict[str, list[str]] = defaultdict(list)
    for node, targets in successors.items():
        for target in targets:
            sources[target].append(node)
    return sources


def reach(starts: Iterable[str], successors: Successors) -> set[str]:
    """Return the starts and all that can be reached from them."""
    seen = set(starts)
    todo = list(seen)
    while todo:
        following = [target for target in successors.get(todo.pop(), ()) if target not in seen]
        seen.update(following)
        todo += following
    return seen


def postorder(starts: Iterable[str], successors: Successors) -> list[str]:
    """Return the nodes reachable from the starts in depth-first postorder: each after its successors, edges that close a cycle aside."""
    order: list[str] = []
    seen: set[str] = set()
    for start in starts:
        if start not in seen:
            seen.add(start)
            order += _descend(start, successors, seen)
    return order


def _descend(start: str, successors: Successors, seen: set[str]) -> Iterator[str]:
    way = [(start, iter(successors.get(start, ())))]
    while way:
        node, ahead = way[-1]
        for target in ahead:
            if target not in seen:
                seen.add(target)
                way.append((target, iter(successors.get(target, ()))))
                break
        else:
            way.pop()
            yield node


def components(nodes: Iterable[str], successors: Successors) -> list[list[str]]:
    """Return the strongly connected components in topological order; a node in no cycle is a component by itself.

    The successors of the nodes must be among the nodes. Source: Kosaraju.
    """
    sources = reversed_graph(successors)
    grouped: set[str] = set()
    groups = []
    for node in reversed(postorder(nodes, successors)):
        if node not in grouped:
            grouped.add(node)
            group = [node]
            for member in group:  # appended to below
                more = dict.fromkeys(source for source in sources.get(member, ()) if source not in grouped)
                grouped.update(more)
                group += more
            groups.append(group)
    return groups


def cycles(nodes: Iterable[str], successors: Successors) -> list[list[str]]:
    """Return the components that contain a cycle."""
    return [
        group for group in components(nodes, successors) if len(group) > 1 or group[0] in successors.get(group[0], ())
    ]


def shortest_cycle(start: str, successors: Successors) -> list[str]:
    """Return a shortest path from a node back to itself, with the node first and last; empty if there is none."""
    before: dict[str, str] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for target in successors.get(node, ()):
            if target == start:
                return [start, *_way_back(node, start, before), start]
            if target not in before:
                before[target] = node
                queue.append(target)
    return []


def _way_back(node: str, start: str, before: Mapping[str, str]) -> list[str]:
    way = []
    while node != start:
        way.append(node)
        node = before[node]
    return way[::-1]


class Reachability:
    """An index of whether one node leads to another, for all pairs."""

    def __init__(self, nodes: Iterable[str], successors: Successors) -> None:
        self._bits: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        for bit, group in enumerate(reversed(components(nodes, successors))):
            reached = 1 << bit
            for node in group:
                self._bits[node] = bit
                for target in successors.get(node, ()):
                    reached |= self._reached.get(target, 0)
            self._reached.update(dict.fromkeys(group, reached))

    def leads(self, source: str, target: str) -> bool:
        """Return whether there is a path from source to target; a path of no edges counts."""
        return bool(self._reached[source] >> self._bits[target] & 1)
