"""Graphs at random, such as a step of a run may grow where the run stands."""

from __future__ import annotations

from collections.abc import Iterable
from string import ascii_lowercase
from typing import Literal

from hypothesis import strategies as st

from cantata.flows.graph import START, Edge, Graph, ItemSteps, Step, adopt
from tests.integration.state.reference import Reference

LATER_S = 3600.0

labels = st.sampled_from(["done", "done", "done", "left", "failed"])
on_errors: st.SearchStrategy[Literal["skip", "jump", "abort"]] = st.sampled_from(["skip", "jump", "abort"])
seldom = st.integers(0, 5).map(lambda n: n == 5)
rarely = st.integers(0, 19).map(lambda n: n == 19)


@st.composite
def fragments(draw: st.DrawFn, run: Reference, parent: str, number: int) -> Graph:
    """A fragment for a step that runs; `number` makes its ids unique."""
    ids = [f"{number}{letter}" for letter in ascii_lowercase[: draw(st.integers(1, 6))]]
    exit = draw(st.sampled_from(ids)) if parent != START and draw(st.booleans()) else None
    edges = [*draw(_inner(ids)), *draw(_outer(run, parent, ids, exit))]
    steps = [draw(_step(step_id, sum(edge.target == step_id for edge in edges))) for step_id in ids]
    items = None
    if draw(seldom):
        like = f"{number}item"
        count = draw(st.integers(0, 6))
        items = ItemSteps(like=like, prefix=str(number), given=tuple(range(count)), window=draw(st.integers(1, 3)))
        edges += [
            Edge(source=like, target=target) for target in draw(st.lists(st.sampled_from(ids), unique=True, max_size=2))
        ]
        steps.append(draw(_step(like, 0)))
    scoped = draw(st.booleans())
    movable = _movable(run)
    names = {draw(st.sampled_from(movable)): ids[0]} if movable and not scoped and draw(seldom) else {}
    graph = Graph(steps=tuple(steps), edges=tuple(edges), items=items, exit=exit, names=names, scoped=scoped)
    return adopt(graph, parent, run.cells[parent].spec)


@st.composite
def _step(draw: st.DrawFn, step_id: str, in_edges: int) -> Step:
    if draw(rarely):
        return Step(
            id=step_id, kind="wait", timeout_s=LATER_S if draw(st.booleans()) else None, on_error=draw(on_errors)
        )
    return Step(
        id=step_id,
        kind="work",
        queue=draw(st.sampled_from(["tools", "tools", "agents"])),
        decides=draw(seldom),
        cheap=draw(st.sampled_from([None, True, False])),
        on_error=draw(on_errors),
        quorum=draw(st.integers(1, in_edges)) if in_edges > 1 and draw(st.booleans()) else None,
        deadline_s=LATER_S if in_edges and draw(seldom) else None,
    )


@st.composite
def _inner(draw: st.DrawFn, ids: list[str]) -> list[Edge]:
    """Edges among the new steps: each hangs on some of those before it, or on none."""
    edges = []
    for at, target in enumerate(ids[1:], start=1):
        for source in draw(st.lists(st.sampled_from(ids[:at]), unique=True, max_size=3)):
            edges.append(Edge(source=source, target=target, label=draw(labels), wakes=not draw(seldom)))
    return edges


@st.composite
def _outer(draw: st.DrawFn, run: Reference, parent: str, ids: list[str], exit: str | None) -> list[Edge]:
    """Edges between new steps and older ones, such that no circle arises; nor one through a window, where steps wait in line."""
    edges: list[Edge] = []
    if exit is None and draw(seldom):
        edges.append(Edge(source=parent, target=draw(st.sampled_from(ids)), label=draw(labels)))
    older = [step_id for step_id, cell in run.cells.items() if cell.is_open]
    targets = [draw(st.sampled_from(older))] if draw(seldom) and older else []
    inherited = {way.target for way in run.ways if way.source == parent} if exit else set()
    for target in targets:  # one edge leads from a step to another, and `exit` takes over those of `parent`
        if sources := [each for each in ids if each != exit or target not in inherited]:
            edges.append(Edge(source=draw(st.sampled_from(sources)), target=target, label=draw(labels)))
    queued = [step_id for step_id, cell in run.cells.items() if cell.word == "ready"]
    behind = _behind(run, [*targets, *queued, *(way.target for way in run.ways if way.source == parent)])
    before = [step_id for step_id in run.cells if step_id != parent and run.answering(step_id) not in {*behind, parent}]
    if draw(seldom) and before:
        source, target = draw(st.sampled_from(before)), draw(st.sampled_from(ids))
        edges.append(Edge(source=source, target=target, label=draw(labels), wakes=draw(st.booleans())))
    return edges


def _behind(run: Reference, step_ids: Iterable[str]) -> set[str]:
    """These steps and all that hang on them."""
    found, todo = set(), list(step_ids)
    while todo:
        step_id = todo.pop()
        if step_id not in found:
            found.add(step_id)
            todo += [way.target for way in run.ways if way.source == step_id]
    return found


def _movable(run: Reference) -> list[str]:
    """Steps whose name a loop may move: over, and neither parents nor sources of a join that may still fire."""
    fixed = {*run.members, *run.names, *(way.drawn_from for way in run.ways if run.cells[way.target].is_open)}
    return [step_id for step_id, cell in run.cells.items() if cell.is_over and step_id not in fixed]
