"""A plan as text: the graph as a tree of what grows out of what, and the canvases that will send it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from orchestrator.models.definitions import Definitions
from orchestrator.models.graph import Edge, Graph, Spec, Step
from orchestrator.planning import canvas
from orchestrator.planning.canvas import Canvas, Message, Row
from orchestrator.planning.strategies import agents, chains, turns

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


def canvas_tree(graph: Graph) -> list[Branch]:
    """The canvases in the order in which they go out, if every edge is taken."""
    specs: dict[str, Spec] = {step.id: step for step in graph.steps}
    carried: set[str] = set()
    branches: list[Branch] = []
    for wave in _waves(graph):
        ready = [step_id for step_id in wave if step_id not in carried]
        unsent = [step_id for step_id in ready if specs[step_id].decides or specs[step_id].kind == "wait"]
        canvases = canvas.build([(step_id, specs[step_id]) for step_id in ready if step_id not in unsent], graph)
        carried.update(canvas.carried(canvases))
        branches += [Branch(f"{step_id}  {_place(specs[step_id])}, without a message") for step_id in unsent]
        branches += map(_canvas, canvases)
    return branches


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
    return chains.fragment(chain.nodes, chain.entry_node, definitions, grower=step.id, chain=name)


_GROWTH: Mapping[str, Callable[[Step, Definitions], Graph]] = {
    "chain.map": lambda step, _: chains.grow_map(step.id, step, [None]),
    "chain.run": _chain,
    "agent.run": lambda step, definitions: agents.agent_fragment(str(step.params["agent"]), definitions, grower=step.id, spec=step),
    "team.run": lambda step, definitions: turns.team_fragment(str(step.params["team"]), definitions, grower=step.id),
}


def _canvas(each: Canvas) -> Branch:
    if isinstance(each, Row):
        return Branch("chain", [_message(message) for message in each.messages])
    members = [_message(message) for message in each.members]
    if each.join is not None:
        return Branch("chord", [Branch("group", members), _message(each.join)])
    return Branch("group", members) if len(members) > 1 else members[0]


def _message(message: Message) -> Branch:
    return Branch(f"{message.kind} {', '.join(message.steps)}  to queue {message.queue}")
