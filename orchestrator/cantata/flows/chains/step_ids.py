"""Ids of a chain's steps, and the node that a step belongs to.

id          the step is
----------  ------------------------------------------------------------------
read        a node
read#2      its second round in a loop
read#2.1    the first round of a loop in the second round of another
m/0         an item of the map m; `m/*` is the common spec of its items
m/@gather   the gather of their outputs
g/read      a node of the chain that g runs
g/@7        a node of that chain whose id is all digits: `g/7` is an item
g/@end      the end of that chain
w/2.read    the command with the index 2 of the workflow in Python w
w/@3/@advance
            the execution of its code that follows three others
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

RESERVED = "/#@|=,*"
"""Characters that node ids must not contain: they separate the parts of step ids, leases and reads."""

MAX_NODE_ID = 128  # characters: a step's id is in every message, lease and event of it

GATHER = "@gather"
END = "@end"
ADVANCE = "@advance"

_ITEM = re.compile(r"/(\d+)(?=/|$)")


@dataclass(frozen=True, slots=True)
class NodeRef:
    """The node of a request that a step belongs to."""

    node_id: str
    iteration: int | None = None
    """Round of the loop that contains the node, from 1; of nested loops, the innermost."""
    index: int | None = None
    """Position of the map item; the node is then the map, and its `map_node` is what ran."""
    inner: bool = False
    """True if the node (or the item) added it in an expansion: it is not a step of the request itself."""


def node_of(step_id: str) -> NodeRef:
    """Return the node that a step of a chain run belongs to."""
    head, *added = step_id.split("/")
    node_id, _, rounds = head.partition("#")
    iteration = int(rounds.rpartition(".")[2]) if rounds else None
    index = int(added.pop(0)) if added and added[0].isdecimal() else None
    return NodeRef(node_id, iteration, index, inner=bool(added) or head.startswith("@"))


def name_of(node_id: str, parent: str) -> str:
    """Return the name of a node in a run: its id, behind the step that expanded to its chain, if one did."""
    if not parent:
        return node_id
    return f"{parent}/@{node_id}" if node_id.isdecimal() else f"{parent}/{node_id}"


def in_round(name: str, rounds: tuple[int, ...]) -> str:
    """Return the step of a node in these rounds of the loops that contain it, the outermost first."""
    return f"{name}#{'.'.join(map(str, rounds))}" if rounds else name


def ancestors(step_id: str) -> Iterator[str]:
    """Yield the ids that a step's id begins with, the nearest first."""
    while "/" in step_id:
        step_id = step_id.rpartition("/")[0]
        yield step_id


def maps_above(step_id: str) -> Iterator[tuple[str, str, int]]:
    """Yield the maps that a step may be in, the outermost first: the map, its item, the item's index: only items are digits alone."""
    if "/" in step_id:
        for match in _ITEM.finditer(step_id):
            yield step_id[: match.start()], step_id[: match.end()], int(match[1])


def split(step_id: str) -> tuple[str, tuple[int, ...]]:
    """Return the parent of a node's step, and its rounds."""
    parent, _, last = step_id.rpartition("/")
    rounds = last.partition("#")[2]
    return parent, tuple(map(int, rounds.split("."))) if rounds else ()
