"""A plan as text: the graph with the known expansions of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from cantata.flows.chains import expand
from cantata.flows.definitions import Definitions
from cantata.flows.graph import Edge, Graph, Spec, Step
from cantata.flows.turns import agent_steps, turn_plan

MAX_DEPTH = 5  # shown levels of expansion: chains may run each other


@dataclass(frozen=True)
class TreeLine:
    """A line of a tree, and the lines under it."""

    text: str
    children: Sequence[TreeLine] = field(default=())


def draw_tree(lines: Sequence[TreeLine], indent: str = "") -> Iterator[str]:
    """Yield the lines of a tree."""
    for line in lines:
        is_last = line is lines[-1]
        yield f"{indent}{'└─ ' if is_last else '├─ '}{line.text}"
        yield from draw_tree(line.children, f"{indent}{'   ' if is_last else '│  '}")


def graph_tree(graph: Graph, definitions: Definitions, *, depth: int = 0) -> list[TreeLine]:
    """Return the steps of a graph with their queues, dependencies and known expansions."""
    before: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        before.setdefault(edge.target, []).append(edge)
    steps = {step.id: step for step in graph.steps}
    width = max((len(step.id) for step in graph.steps), default=0)
    return [
        TreeLine(
            f"{step.id:{width}}  {_describe(step)}{_dependencies(before.get(step.id, ()))}",
            _expansion(step, definitions, depth),
        )
        for step in (steps[step_id] for wave in waves(graph) for step_id in wave)
    ]


def waves(graph: Graph) -> Iterator[list[str]]:
    """Yield the ids of steps in waves, each step in a later wave than its dependencies."""
    order = {step.id: number for number, step in enumerate(graph.steps)}
    sorter = TopologicalSorter(dict.fromkeys(order, ()))
    for edge in graph.edges:
        if edge.source in order and edge.target in order:
            sorter.add(edge.target, edge.source)
    sorter.prepare()
    while sorter.is_active():
        wave = sorter.get_ready()
        yield sorted(wave, key=order.__getitem__)
        sorter.done(*wave)


def _describe(step: Step) -> str:
    work = step.work.replace(":", " ", 1) if step.work else ""
    return "  ".join(part for part in (step.kind, work, destination(step)) if part)


def destination(spec: Spec) -> str:
    """Return where a step is executed, for people."""
    if spec.kind == "wait":
        return "parked until its signal"
    return "in place" if spec.decides else f"queue {spec.queue}"


def _dependencies(edges: Iterable[Edge]) -> str:
    names = [edge.source + (f" [{edge.label}]" if edge.label != "done" else "") for edge in edges]
    return f"  after {', '.join(names)}" if names else ""


def _expansion(step: Step, definitions: Definitions, depth: int) -> list[TreeLine]:
    """Return the steps that a step will expand to, as far as they are known now."""
    expand = _EXPANSIONS.get(step.kind)
    return graph_tree(expand(step, definitions), definitions, depth=depth + 1) if expand and depth < MAX_DEPTH else []


def _expand_chain(step: Step, definitions: Definitions) -> Graph:
    name = str(step.params["chain"])
    chain = definitions.chains[name]
    return expand.expand_chain(chain.nodes, chain.entry_node, definitions, parent=step.id, chain=name)


_EXPANSIONS: Mapping[str, Callable[[Step, Definitions], Graph]] = {
    "chain.map": lambda step, _: expand.expand_map(step.id, step, [None]),
    "chain.run": _expand_chain,
    "agent.run": lambda step, definitions: agent_steps.expand_agent(
        str(step.params["agent"]), definitions, parent=step.id, spec=step
    ),
    "team.run": lambda step, definitions: turn_plan.expand_team(str(step.params["team"]), definitions, parent=step.id),
}
