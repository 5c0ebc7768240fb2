"""A plan as text: the graph as a tree of what grows out of what, and the canvases that will send it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from celery import chain, chord, group

from cantata.models.definitions import Definitions
from cantata.models.graph import Edge, Graph, Spec, Step
from cantata.planning import canvas
from cantata.planning.canvas import Canvas, Dispatch
from cantata.planning.chains import expansion
from cantata.planning.turns import agent_steps, turn_plan

DEEPEST = 5  # levels of growth that are shown: chains may run each other


@dataclass(frozen=True)
class Branch:
    """A line of a tree, and those under it."""

    text: str
    under: Sequence[Branch] = field(default=())


def drawn(branches: Sequence[Branch], indent: str = "") -> Iterator[str]:
    """The lines of a tree."""
    for branch in branches:
        is_last = branch is branches[-1]
        yield f"{indent}{'└─ ' if is_last else '├─ '}{branch.text}"
        yield from drawn(branch.under, f"{indent}{'   ' if is_last else '│  '}")


def graph_tree(graph: Graph, definitions: Definitions, *, depth: int = 0) -> list[Branch]:
    """Each step with its queue, what it waits for, and what is known to grow out of it."""
    before: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        before.setdefault(edge.target, []).append(edge)
    steps = {step.id: step for step in graph.steps}
    width = max((len(step.id) for step in graph.steps), default=0)
    return [
        Branch(f"{step.id:{width}}  {_describe(step)}{_after(before.get(step.id, ()))}", _growth(step, definitions, depth))
        for step in (steps[step_id] for wave in _waves(graph) for step_id in wave)
    ]


def canvases_of(graph: Graph, dispatch: Dispatch) -> Iterator[Canvas | Step]:
    """Return the canvases in the order in which they go out, if every edge is taken, and between them the steps that need no message.

    Who plans has the graph at hand, and sends with it what is ready at first and behind decisions; who does another step has none.
    """
    steps, followers = {step.id: step for step in graph.steps}, canvas.Followers(graph)
    sources: dict[str, set[str]] = {step_id: set() for step_id in steps}
    for edge in graph.edges:
        sources[edge.target].add(edge.source)
    carried: set[str] = set()
    decided: set[str] = set()
    for wave in _waves(graph):
        ready = [steps[step_id] for step_id in wave if step_id not in carried]
        for has_graph in (True, False):
            alike = [step for step in ready if (sources[step.id] <= decided) == has_graph]
            unsent = [step for step in alike if step.decides or step.kind == "wait"]
            built = canvas.build(dispatch, [(step.id, step) for step in alike if step not in unsent], followers if has_graph else None)
            carried.update(canvas.carried(built))
            yield from unsent
            yield from built
            decided.update(step.id for step in unsent if has_graph and step.decides)


def canvas_tree(found: Iterable[Canvas | Step]) -> list[Branch]:
    """Return what `canvases_of` found, as text."""
    return [Branch(f"{each.id}  {_place(each)}, without a message") if isinstance(each, Step) else _canvas(each) for each in found]


def _waves(graph: Graph) -> Iterator[list[str]]:
    """The steps, each in a later wave than those it waits for."""
    place = {step.id: number for number, step in enumerate(graph.steps)}
    sorter = TopologicalSorter(dict.fromkeys(place, ()))
    for edge in graph.edges:
        if edge.source in place and edge.target in place:
            sorter.add(edge.target, edge.source)
    sorter.prepare()
    while sorter.is_active():
        wave = sorter.get_ready()
        yield sorted(wave, key=place.__getitem__)
        sorter.done(*wave)


def _describe(step: Step) -> str:
    what = step.work.replace(":", " ", 1) if step.work else ""
    return "  ".join(part for part in (step.kind, what, _place(step)) if part)


def _place(spec: Spec) -> str:
    if spec.kind == "wait":
        return "parked until its signal"
    return "in place" if spec.decides else f"queue {spec.queue}"


def _after(edges: Iterable[Edge]) -> str:
    names = [edge.source + (f" [{edge.label}]" if edge.label != "done" else "") for edge in edges]
    return f"  after {', '.join(names)}" if names else ""


def _growth(step: Step, definitions: Definitions, depth: int) -> list[Branch]:
    """What a step will grow, as far as it is known now."""
    grow = _GROWTH.get(step.kind)
    return graph_tree(grow(step, definitions), definitions, depth=depth + 1) if grow and depth < DEEPEST else []


def _chain(step: Step, definitions: Definitions) -> Graph:
    name = str(step.params["chain"])
    chain = definitions.chains[name]
    return expansion.expand_chain(chain.nodes, chain.entry_node, definitions, parent=step.id, chain=name)


_GROWTH: Mapping[str, Callable[[Step, Definitions], Graph]] = {
    "chain.map": lambda step, _: expansion.expand_map(step.id, step, [None]),
    "chain.run": _chain,
    "agent.run": lambda step, definitions: agent_steps.agent_fragment(str(step.params["agent"]), definitions, parent=step.id, spec=step),
    "team.run": lambda step, definitions: turn_plan.team_fragment(str(step.params["team"]), definitions, parent=step.id),
}


def _canvas(each: Canvas) -> Branch:
    if isinstance(each, chord):
        return Branch("chord", [Branch("group", [_canvas(member) for member in each.tasks]), _canvas(each.body)])
    if isinstance(each, chain | group):
        return Branch(each.subtask_type, [_canvas(member) for member in each.tasks])
    queue = each.app.step_queue(each.options["queue"])  # type: ignore[attr-defined]  # our app
    return Branch(f"{each.task} {', '.join(canvas.steps_of(each))}  to queue {queue}")
