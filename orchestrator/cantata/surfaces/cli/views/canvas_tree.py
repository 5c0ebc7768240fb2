"""The canvases that dispatch a plan, as text. It loads Celery."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from celery import chain, chord, group

from cantata.flows import canvas
from cantata.flows.canvas import Canvas, MessageHead
from cantata.flows.graph import Graph, Step
from cantata.surfaces.cli.views.plan_tree import TreeLine, destination, waves


def canvases_of(graph: Graph, dispatch: MessageHead) -> Iterator[Canvas | Step]:
    """Yield the canvases in the order of their dispatch, if every edge is taken, and between them the steps that need no message.

    The planner has the graph, so it dispatches the first steps and those behind decisions with it; workers of other steps do not.
    """
    steps, followers = {step.id: step for step in graph.steps}, canvas.Followers(graph)
    sources: dict[str, set[str]] = {step_id: set() for step_id in steps}
    for edge in graph.edges:
        sources[edge.target].add(edge.source)
    carried: set[str] = set()
    decided: set[str] = set()
    for wave in waves(graph):
        ready = [steps[step_id] for step_id in wave if step_id not in carried]
        for has_graph in (True, False):
            alike = [step for step in ready if (sources[step.id] <= decided) == has_graph]
            unsent = [step for step in alike if step.decides or step.kind == "wait"]
            built = canvas.build(
                dispatch, [(step.id, step) for step in alike if step not in unsent], followers if has_graph else None
            )
            carried.update(canvas.carried_steps(built))
            yield from unsent
            yield from built
            decided.update(step.id for step in unsent if has_graph and step.decides)


def canvas_tree(found: Iterable[Canvas | Step]) -> list[TreeLine]:
    """Return the tree of what `canvases_of` yields."""
    return [
        TreeLine(f"{each.id}  {destination(each)}, without a message") if isinstance(each, Step) else _canvas(each)
        for each in found
    ]


def _canvas(each: Canvas) -> TreeLine:
    if isinstance(each, chord):
        return TreeLine("chord", [TreeLine("group", [_canvas(member) for member in each.tasks]), _canvas(each.body)])
    if isinstance(each, chain | group):
        return TreeLine(each.subtask_type, [_canvas(member) for member in each.tasks])
    queue = each.app.step_queue(each.options["queue"])  # type: ignore[attr-defined]  # our app
    return TreeLine(f"{each.task} {', '.join(canvas.steps_of(each))}  to queue {queue}")
