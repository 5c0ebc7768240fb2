"""The measured shapes, each as a chain request and as a plain Celery canvas of the same steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import Celery, chain, chord, group
from celery.canvas import Signature

from orchestrator.models.values import JsonValue

Node = dict[str, JsonValue]


@dataclass(frozen=True)
class Shape:
    """One shape of work."""

    name: str
    steps: int
    nodes: Callable[[str], list[Node]]
    canvas: Callable[[Callable[[], Signature]], Any]
    at_once: int = 1
    repeats: int = 7
    initial: dict[str, JsonValue] | None = None


def shapes(app: Celery, *, quick: bool = False) -> list[Shape]:
    """All of them, as the issue lists them; `quick` leaves out the largest."""
    rows = [
        Shape("row of 10", 10, lambda tool: row(tool, 10), lambda step: chain(*(step() for _ in range(10)))),
        Shape("row of 100", 100, lambda tool: row(tool, 100), lambda step: chain(*(step() for _ in range(100)))),
        Shape("1 → 100 → 1", 102, lambda tool: diamonds(tool, 100, 1), lambda step: _diamonds(step, 100, 1)),
        Shape("ten diamonds of 9", 101, lambda tool: diamonds(tool, 9, 10), lambda step: _diamonds(step, 9, 10)),
        Shape("1,000 wide", 1001, wide, lambda step: _wide(app, step, 1000), repeats=5, initial={"items": list(range(1000))}),
        Shape("10,000 wide", 10_001, wide, lambda step: _wide(app, step, 10_000), repeats=5, initial={"items": list(range(10_000))}),
        Shape("50 rows of 10 at once", 500, lambda tool: row(tool, 10), lambda step: chain(*(step() for _ in range(10))), at_once=50),
    ]
    return [shape for shape in rows if not quick or shape.steps < 10_000]


def row(tool: str, length: int) -> list[Node]:
    """Steps one after the other."""
    nodes: list[Node] = [{"node_id": f"s{i}", "kind": "tool", "name": tool, "next_node": f"s{i + 1}"} for i in range(length)]
    del nodes[-1]["next_node"]
    return nodes


def diamonds(tool: str, width: int, layers: int) -> list[Node]:
    """A step, then layers of parallel steps that meet in one."""
    nodes: list[Node] = [{"node_id": "s", "kind": "tool", "name": tool}]
    before = "s"
    for layer in range(layers):
        middle = [f"m{layer}-{i}" for i in range(width)]
        nodes += [{"node_id": name, "kind": "tool", "name": tool, "deps": [before]} for name in middle]
        before = f"j{layer}"
        nodes.append({"node_id": before, "kind": "tool", "name": tool, "deps": list(middle)})
    return nodes


def wide(tool: str) -> list[Node]:
    """One step an item, and what gathers them."""
    return [
        {"node_id": "all", "kind": "map", "items_path": "input.items", "map_node": "one"},
        {"node_id": "one", "kind": "tool", "name": tool, "input_map": {"item": "_item"}},
    ]


def _diamonds(step: Callable[[], Signature], width: int, layers: int) -> Any:
    steps: list[Any] = [step()]
    for _ in range(layers):
        steps += [group(*(step() for _ in range(width))), step()]
    return chain(*steps)


def _wide(app: Celery, step: Callable[[], Signature], width: int) -> Any:
    return chord(group(*(step() for _ in range(width)), app=app), step(), app=app)
