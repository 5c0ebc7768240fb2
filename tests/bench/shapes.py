"""The measured shapes, each as a chain request and as a plain Celery canvas of the same steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from celery import chain, chord, group
from celery.canvas import Signature

from cantata.values import JsonValue

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
    fans_out: bool = True


def shapes(*, quick: bool = False) -> list[Shape]:
    """All that are measured against others; `quick` leaves out the largest."""
    rows = [
        long_shape(10),
        long_shape(100),
        Shape("1 → 100 → 1", 102, lambda tool: diamonds(tool, 100, 1), lambda step: _diamonds(step, 100, 1)),
        Shape("ten diamonds of 9", 101, lambda tool: diamonds(tool, 9, 10), lambda step: _diamonds(step, 9, 10)),
        wide_shape(1000),
        wide_shape(10_000),
        replace(long_shape(10), name="50 rows of 10 at once", at_once=50),
    ]
    return [shape for shape in rows if not quick or shape.steps < 10_000]


def long_shape(length: int) -> Shape:
    """Steps one after the other."""
    return Shape(
        f"row of {length:,}",
        length,
        lambda tool: row(tool, length),
        lambda step: chain(*(step() for _ in range(length))),
        fans_out=False,
    )


def wide_shape(width: int) -> Shape:
    """A map of so many items."""
    canvas = partial(_wide, width=width)
    return Shape(f"{width:,} wide", width + 1, wide, canvas, repeats=5, initial={"items": list(range(width))})


def row(tool: str, length: int) -> list[Node]:
    """Steps one after the other."""
    nodes: list[Node] = [
        {"node_id": f"s{i}", "kind": "tool", "name": tool, "next_node": f"s{i + 1}"} for i in range(length)
    ]
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


def _wide(step: Callable[[], Signature], width: int) -> Any:
    body = step()
    return chord(group(*(step() for _ in range(width)), app=body.app), body, app=body.app)
