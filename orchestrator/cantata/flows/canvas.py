"""Canvases of ready steps: Celery's chains, groups and chords, which also carry the steps that are certain to follow.

A canvas carries only steps whose place in the graph no outcome can change any more, except by ending the run. Whether a carried step really
starts, the ledger decides; the canvas only saves a round trip and shows the shape of the work.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from celery.canvas import Signature, chain, chord, group

from cantata.flows.graph import Graph, Spec, Step

MAX_CHAIN_LINKS = 16  # a chain's message holds all its later links: 1,000 links moved 281 MB
LIMIT_SPARE_S = 30.0  # Celery's own hard limit is a backstop behind the worker's time-out

Canvas = Signature[Any] | chain | group | chord


@dataclass(frozen=True, slots=True)
class MessageHead:
    """The common part of all messages of a run: its id and priority, and the Celery app that sends them."""

    app: Any
    """An `cantata.engine.dispatch.celery_app.App`."""
    run_id: str
    priority: int = 0

    def signature(
        self, kind: str, queue: str, steps: Sequence[str], limit_s: float | None = None, work: str = ""
    ) -> Signature[Any]:
        """Return the signature of one message: a task of this kind for these steps, one after the other, which all do this work."""
        shown = shown_args(self.run_id, kind, work, steps)
        options: dict[str, Any] = {"queue": self.app.broker_queue(queue), "argsrepr": shown, "kwargsrepr": ""}
        if self.priority:
            options["priority"] = self.priority
        if limit_s is not None:
            options["time_limit"] = limit_s + LIMIT_SPARE_S
        args = (self.run_id, list(steps))
        parts: Any = {
            "task": kind,
            "args": args,
            "kwargs": {},
            "options": options,
            "subtask_type": None,
            "immutable": True,
        }
        return Signature(parts, app=self.app)  # from a dict it takes 0.8 µs, from arguments 1.9


def shown_args(run_id: str, kind: str, work: str, steps: Sequence[str]) -> str:
    """Return the arguments of a task for display, in Flower for example: its run, its tool or agent, its first steps."""
    return f"{run_id}:{work.partition(':')[2] or kind}({','.join(steps[:8])}{'…' if len(steps) > 8 else ''})"


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The number of steps in one message by the cost of their work: more than one only for cheap work."""

    is_cheap: Callable[[Spec], bool] = field(default=lambda spec: False)
    batch: Callable[[Spec, int], int] = field(default=lambda spec, ready: 1)


def build(
    dispatch: MessageHead,
    ready: Sequence[tuple[str, Spec]],
    followers: Followers | None = None,
    policy: BatchPolicy | None = None,
) -> tuple[Canvas, ...]:
    """Return the canvases that send these ready steps, each exactly once.

    With `followers`, of the graph just planned or added, they also carry the steps that are certain to follow. Cheap steps are batched
    instead, several in one message: the worker runs their followers without a message.
    """
    policy = policy or BatchPolicy()
    members: dict[str | None, list[Canvas]] = defaultdict(list)  # by the step that joins them
    for alike in _alike(ready):
        first = alike[0][1]
        if policy.is_cheap(first):
            size = max(1, policy.batch(first, len(alike)))
            members[None] += [_signature(dispatch, alike[i : i + size]) for i in range(0, len(alike), size)]
        elif followers is None:
            members[None] += [_signature(dispatch, [step]) for step in alike]
        else:
            for step in alike:
                row = [step, *followers.row(*step)]
                signatures = [_signature(dispatch, [each]) for each in row]
                member = chain(*signatures, app=dispatch.app) if len(row) > 1 else signatures[0]
                members[followers.join(row[-1][0])].append(member)
    canvases: list[Canvas] = []
    others = members.pop(None, [])
    for join, meeting in members.items():
        if followers and join and followers.sources(join) == len(meeting) > 1:
            body = _signature(dispatch, [(join, followers.spec(join))])
            canvases.append(chord(group(meeting, app=dispatch.app), body, app=dispatch.app))
        else:
            others += meeting
    if others:
        canvases.append(group(others, app=dispatch.app) if len(others) > 1 else others[0])
    return tuple(canvases)


def carried_steps(canvases: Iterable[Canvas]) -> tuple[str, ...]:
    """Return the steps that canvases carry beyond those that were ready."""
    later: list[Signature[Any]] = []
    for canvas in canvases:
        for member in canvas.tasks if isinstance(canvas, group | chord) else (canvas,):
            later += member.tasks[1:] if isinstance(member, chain) else ()
        later += [canvas.body] if isinstance(canvas, chord) else ()
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


def _signature(dispatch: MessageHead, steps: Sequence[tuple[str, Spec]]) -> Signature[Any]:
    spec = steps[0][1]
    limits = [spec.timeout_s for _, spec in steps]
    limit_s = None if None in limits else sum(limit for limit in limits if limit is not None)
    return dispatch.signature(spec.kind, spec.queue, [step_id for step_id, _ in steps], limit_s, spec.work)


class Followers:
    """The successors of the steps of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def row(self, step_id: str, spec: Spec) -> list[tuple[str, Spec]]:
        """Return the sequence of steps that must follow a step. It ends at a step that may expand."""
        row: list[tuple[str, Spec]] = []
        while len(row) < MAX_CHAIN_LINKS - 1 and not spec.expands:
            following = self._only_one(step_id)
            if following is None or self.sources(following) != 1 or self.spec(following).decides:
                break
            step_id, spec = following, self.spec(following)
            row.append((step_id, spec))
        return row

    def join(self, step_id: str) -> str | None:
        """Return the step that joins this one with others.

        It may be a decision, which the last of them executes in place. If one of them expands, the ledger sends the join after the
        expansion."""
        following = self._only_one(step_id)
        return following if following is not None and self.sources(following) > 1 else None

    def spec(self, step_id: str) -> Spec:
        """Return the spec of a step."""
        return self._specs[step_id]

    def sources(self, step_id: str) -> int:
        """Return the number of steps that one waits for."""
        return self._edges[1][step_id]

    def _only_one(self, step_id: str) -> str | None:
        """Return the only step behind one, if its start depends on nothing but steps of the graph."""
        followers = self._edges[0].get(step_id) or []
        spec = self._specs.get(followers[0]) if len(followers) == 1 else None
        if spec is None or spec.kind == "wait" or spec.quorum is not None or spec.deadline_s is not None:
            return None
        return followers[0]

    @cached_property
    def _specs(self) -> dict[str, Step]:
        return {step.id: step for step in self._graph.steps}

    @cached_property
    def _edges(self) -> tuple[Mapping[str, list[str]], Counter[str]]:
        """Return the followers of each step, and the number of steps that each waits for."""
        followers: dict[str, list[str]] = defaultdict(list)
        pairs = {(edge.source, edge.target) for edge in self._graph.edges}
        for source, target in pairs:
            followers[source].append(target)
        return followers, Counter(target for _, target in pairs)
