"""Questions about any directed graph: what can be reached, what goes in circles, what every way leads through.

A graph is a mapping from each node to its successors; a node without any may be missing. Nothing here recurses: a row may be 10,000 long.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

Successors = Mapping[str, Sequence[str]]


def reversed_graph(successors: Successors) -> dict[str, list[str]]:
    """The graph with each edge turned round."""
    sources: dict[str, list[str]] = defaultdict(list)
    for node, targets in successors.items():
        for target in targets:
            sources[target].append(node)
    return sources


def reach(starts: Iterable[str], successors: Successors) -> set[str]:
    """The starts and all that can be reached from them."""
    return set(postorder(starts, successors))


def postorder(starts: Iterable[str], successors: Successors) -> list[str]:
    """What can be reached from the starts, depth first: each node after all that it leads to, but for the edges that close a circle."""
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
        following = next((target for target in ahead if target not in seen), None)
        if following is None:
            way.pop()
            yield node
        else:
            seen.add(following)
            way.append((following, iter(successors.get(following, ()))))


def components(nodes: Iterable[str], successors: Successors) -> list[list[str]]:
    """The strongly connected components, in an order in which edges lead forward; a node in no circle is one by itself.

    The successors of the nodes are to be among them. Source: Kosaraju.
    """
    sources = reversed_graph(successors)
    grouped: set[str] = set()
    groups = []
    for node in reversed(postorder(nodes, successors)):
        if node not in grouped:
            grouped.add(node)
            groups.append(list(_descend(node, sources, grouped)))
    return groups


def circles(nodes: Iterable[str], successors: Successors) -> list[list[str]]:
    """The components that hold a circle."""
    return [group for group in components(nodes, successors) if len(group) > 1 or group[0] in successors.get(group[0], ())]


def shortest_circle(start: str, successors: Successors) -> list[str]:
    """A shortest way from a node back to itself, the node first and last; empty if there is none."""
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
    """Answers whether one node leads to another, for all pairs at once."""

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
        """Whether there is a way; of no steps too."""
        return bool(self._reached[source] >> self._bits[target] & 1)


class Dominance:
    """Answers whether every way from the starts to one node leads through another."""

    def __init__(self, starts: Sequence[str], successors: Successors) -> None:
        nodes, above = _first_ways(starts, successors)
        self._numbers = {node: number for number, node in enumerate(nodes, 1)}  # 0 stands before all starts
        sources: list[list[int]] = [[] for _ in range(len(nodes) + 1)]
        for start in starts:
            sources[self._numbers[start]].append(0)
        for number, node in enumerate(nodes, 1):
            for target in successors.get(node, ()):
                sources[self._numbers[target]].append(number)
        self._enter, self._size = _intervals(_immediate(above, sources))

    def holds(self, node: str, other: str) -> bool:
        """Whether `node` is `other` or stands on every way to it; False where one of them cannot be reached."""
        a, b = self._numbers.get(node), self._numbers.get(other)
        return a is not None and b is not None and self._enter[a] <= self._enter[b] < self._enter[a] + self._size[a]


def _first_ways(starts: Iterable[str], successors: Successors) -> tuple[list[str], list[int]]:
    """The nodes in the order in which a search depth first comes to them, from 1, and of each the number of the one it is come to from."""
    nodes: list[str] = []
    above = [0]
    seen: set[str] = set()
    ways = [(0, start) for start in reversed(list(starts))]
    while ways:
        number, node = ways.pop()
        if node not in seen:
            seen.add(node)
            nodes.append(node)
            above.append(number)
            ways += [(len(nodes), target) for target in reversed(successors.get(node, ())) if target not in seen]
    return nodes, above


def _immediate(above: Sequence[int], sources: Sequence[Sequence[int]]) -> list[int]:
    """Of each node, the last that every way to it leads through. Source: Georgiadis, the semi-NCA algorithm."""
    semi, best, jump = list(range(len(above))), list(range(len(above))), list(above)
    for number in range(len(above) - 1, 0, -1):
        semi[number] = min(semi[_least(source, number, semi, best, jump)] for source in sources[number])
    immediate = list(above)
    for number in range(1, len(above)):
        while immediate[number] > semi[number]:
            immediate[number] = immediate[immediate[number]]
    return immediate


def _least(node: int, number: int, semi: Sequence[int], best: list[int], jump: list[int]) -> int:
    """Of the nodes above `node` that are done, those behind `number`, the one that is come to from furthest up."""
    way = []
    while jump[node] > number:
        way.append(node)
        node = jump[node]
    while way:
        below = way.pop()
        if semi[best[node]] < semi[best[below]]:
            best[below] = best[node]
        jump[below] = jump[node]
        node = below
    return best[node]


def _intervals(above: Sequence[int]) -> tuple[list[int], list[int]]:
    """Of a tree whose parents have lower numbers: when a walk enters each node, and how many it holds."""
    size = [1] * len(above)
    for number in range(len(above) - 1, 0, -1):
        size[above[number]] += size[number]
    enter, free = [0] * len(above), [1] * len(above)
    for number in range(1, len(above)):
        enter[number] = free[above[number]]
        free[above[number]] += size[number]
        free[number] = enter[number] + 1
    return enter, size
