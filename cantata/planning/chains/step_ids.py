"""The ids of a chain's steps, and back from a step to its node.

id          the step is
----------  ------------------------------------------------------------------
read        a node
read#2      its second round in a loop
read#2.1    the first round of a loop in the second round of another
m/0         an item of the map m; `m/*` is the common spec of its items
m/@gather   what collects them
g/read      a node of the chain that g runs
g/@7        a node of that chain whose id is all digits: `g/7` is an item
g/@end      what ends that chain
"""

from __future__ import annotations

from dataclasses import dataclass

RESERVED = "/#@|=,*"
"""What no node id may hold: ids of steps, leases and the reads of a step are made with them."""

MAX_NODE_ID = 128  # characters: a step's id is in every message, lease and event of it

GATHER = "@gather"
END = "@end"


@dataclass(frozen=True, slots=True)
class NodeRef:
    """Which node of a request a step belongs to, and how."""

    node_id: str
    iteration: int | None = None
    """Round of the loop the node is in, from 1; of nested loops, the innermost."""
    index: int | None = None
    """Position of the map item; the node is then the map, and its `map_node` is what ran."""
    inner: bool = False
    """Whether the node (or the item) grew it: it is no step of the request's own."""


def node_of(step_id: str) -> NodeRef:
    """The node that a step of a chain run belongs to."""
    head, *grown = step_id.split("/")
    node_id, _, rounds = head.partition("#")
    iteration = int(rounds.rpartition(".")[2]) if rounds else None
    index = int(grown.pop(0)) if grown and grown[0].isdecimal() else None
    return NodeRef(node_id, iteration, index, inner=bool(grown) or head.startswith("@"))


def name_of(node_id: str, parent: str) -> str:
    """The name a node goes by in a run: its id, behind the step that grew its chain if one did."""
    if not parent:
        return node_id
    return f"{parent}/@{node_id}" if node_id.isdecimal() else f"{parent}/{node_id}"


def in_round(name: str, rounds: tuple[int, ...]) -> str:
    """The step of a node in these rounds of the loops that it is in, the outermost first."""
    return f"{name}#{'.'.join(map(str, rounds))}" if rounds else name


def split(step_id: str) -> tuple[str, tuple[int, ...]]:
    """The parent of a node's step, and its rounds."""
    parent, _, last = step_id.rpartition("/")
    rounds = last.partition("#")[2]
    return parent, tuple(map(int, rounds.split("."))) if rounds else ()
