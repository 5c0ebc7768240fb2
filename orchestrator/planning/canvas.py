"""Ready steps → canvases: Celery's own chains, groups and chords, with what follows the steps that are ready and is fixed.

A canvas carries only what is fixed: steps whose place in the graph no outcome can change any more, save by ending the run. Whether a
carried step really starts is still the ledger's word; the canvas only saves a round trip and shows the shape of the work.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery.canvas import Signature, chain, chord, group

from orchestrator.models.graph import Graph, Spec

MOST_LINKS = 16  # a chain's message holds all its later links: 1,000 links moved 281 MB
LIMIT_SPARE_S = 30.0  # Celery's own hard limit is a backstop behind the worker's time-out

Canvas = Signature[Any] | chain | group | chord


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What all messages of one run have in common: its id and priority, and the Celery app that sends them."""

    app: Any
    """An `orchestrator.celeryapp.App`."""
    run_id: str
    priority: int = 0

    def signature(self, kind: str, queue: str, steps: Sequence[str], limit_s: float | None = None) -> Signature[Any]:
        """Return the signature of one message: a task of this kind for these steps, one after the other."""
        shown = f"{self.run_id}:{','.join(steps[:8])}{'…' if len(steps) > 8 else ''}"
        options: dict[str, Any] = {"queue": self.app.broker_queue(queue), "argsrepr": shown, "kwargsrepr": ""}
        if self.priority:
            options["priority"] = self.priority
        if limit_s is not None:
            options["time_limit"] = limit_s + LIMIT_SPARE_S
        args = (self.run_id, list(steps))
        parts: Any = {"task": kind, "args": args, "kwargs": {}, "options": options, "subtask_type": None, "immutable": True}
        return Signature(parts, app=self.app)  # made of its parts it takes 0.8 µs, of arguments 1.9


@dataclass(frozen=True, slots=True)
class Pace:
    """What is known of the cost of work: how many steps of it go into one message; more than one only if it is cheap."""

    is_cheap: Callable[[Spec], bool] = field(default=lambda spec: False)
    batch: Callable[[Spec, int], int] = field(default=lambda spec, ready: 1)


def build(
    dispatch: Dispatch, ready: Sequence[tuple[str, Spec]], graph: Graph | None = None, pace: Pace | None = None
) -> tuple[Canvas, ...]:  # fmt: skip
    """Return the canvases that send these ready steps, each exactly once.

    With `graph`, the part of the run's graph just planned or grown, they also carry what follows in it and is fixed. Cheap steps go
    several to a message instead: their followers run ahead without a message.
    """
    ahead = _Ahead(graph) if graph else None
    pace = pace or Pace()
    canvases: list[Canvas] = []
    members: list[Canvas] = []
    heads: list[str] = []
    for alike in _alike(ready):
        first = alike[0][1]
        if pace.is_cheap(first):
            size = max(1, pace.batch(first, len(alike)))
            members += [_signature(dispatch, alike[i : i + size]) for i in range(0, len(alike), size)]
            continue
        for step_id, spec in alike:
            row = [(step_id, spec), *(ahead.row(step_id, spec) if ahead else ())]
            if len(row) > 1:
                canvases.append(chain(*(_signature(dispatch, [each]) for each in row), app=dispatch.app))
            else:
                members.append(_signature(dispatch, row))
                heads.append(step_id)
    join = ahead.join(heads) if ahead and len(heads) == len(members) > 1 else None
    if join:
        canvases.append(chord(group(members), _signature(dispatch, [join]), app=dispatch.app))
    elif members:
        canvases.append(group(members, app=dispatch.app) if len(members) > 1 else members[0])
    return tuple(canvases)


def carried(canvases: Iterable[Canvas]) -> tuple[str, ...]:
    """Return the steps that canvases carry beyond those that were ready."""
    later: list[Signature[Any]] = []
    for canvas in canvases:
        if isinstance(canvas, chain):
            later += canvas.tasks[1:]
        elif isinstance(canvas, chord):
            later.append(canvas.body)
    return tuple(step for signature in later for step in steps_of(signature))


def steps_of(signature: Signature[Any]) -> list[str]:
    """Return the steps that one message is for."""
    steps: list[str] = signature["args"][1]
    return steps


def _alike(ready: Sequence[tuple[str, Spec]]) -> Iterable[list[tuple[str, Spec]]]:
    groups: dict[tuple[str, str, str], list[tuple[str, Spec]]] = defaultdict(list)
    for step_id, spec in ready:
        groups[spec.kind, spec.queue, spec.work].append((step_id, spec))
    return groups.values()


def _signature(dispatch: Dispatch, steps: Sequence[tuple[str, Spec]]) -> Signature[Any]:
    spec = steps[0][1]
    limits = [spec.timeout_s for _, spec in steps]
    limit_s = None if None in limits else sum(limit for limit in limits if limit is not None)
    return dispatch.signature(spec.kind, spec.queue, [step_id for step_id, _ in steps], limit_s)


class _Ahead:
    """What a graph says of the steps behind those that are ready."""

    def __init__(self, graph: Graph) -> None:
        self._specs = {step.id: step for step in graph.steps}
        self._followers: dict[str, set[str]] = defaultdict(set)
        self._sources: Counter[str] = Counter()
        pairs = {(edge.source, edge.target) for edge in graph.edges}
        for source, target in pairs:
            self._followers[source].add(target)
            self._sources[target] += 1

    def row(self, step_id: str, spec: Spec) -> tuple[tuple[str, Spec], ...]:
        """Return the steps that must follow a step, one after the other."""
        row: list[tuple[str, Spec]] = []
        while len(row) < MOST_LINKS - 1 and not spec.grows:
            following = self._only_follower(step_id)
            if following is None or self._sources[following] != 1 or not self._can_be_carried(following):
                break
            step_id, spec = following, self._specs[following]
            row.append((step_id, spec))
        return tuple(row)

    def join(self, heads: Sequence[str]) -> tuple[str, Spec] | None:
        """Return the step in which these, and only these, meet."""
        if any(self._specs[head].grows for head in heads if head in self._specs):
            return None
        followers = {self._only_follower(head) for head in heads}
        join = followers.pop() if len(followers) == 1 else None
        if join is None or self._sources[join] != len(heads) or not self._can_be_carried(join):
            return None
        return join, self._specs[join]

    def _only_follower(self, step_id: str) -> str | None:
        followers = self._followers.get(step_id, set())
        return next(iter(followers)) if len(followers) == 1 else None

    def _can_be_carried(self, step_id: str) -> bool:
        spec = self._specs.get(step_id)
        return spec is not None and not spec.decides and spec.kind != "wait" and spec.quorum is None and spec.deadline_s is None
