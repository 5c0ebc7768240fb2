"""Ready steps → canvas: which messages to send, and what each carries beyond the steps that are ready.

A canvas carries only what is fixed: steps whose place in the graph no outcome can change any more, save by ending the run. Whether a
carried step really starts is still the ledger's word; the canvas only saves a round trip and shows the shape of the work.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from orchestrator.models.graph import Graph, Spec

MOST_LINKS = 16  # a chain's message holds all its later links: 1,000 links moved 281 MB


@dataclass(frozen=True, slots=True)
class Message:
    """One Celery message: a task of this kind for these steps, one after the other."""

    kind: str
    queue: str
    steps: tuple[str, ...]
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Messages sent one when the other is done: a Celery chain."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Fan:
    """Messages sent at once, a Celery group; with a join sent when the last of them is done, a chord."""

    members: tuple[Message, ...]
    join: Message | None = None


Canvas = Row | Fan


@dataclass(frozen=True, slots=True)
class Pace:
    """What is known of the cost of work: how many steps of it go into one message; more than one only if it is cheap."""

    is_cheap: Callable[[Spec], bool] = field(default=lambda spec: False)
    batch: Callable[[Spec, int], int] = field(default=lambda spec, ready: 1)


def build(ready: Sequence[tuple[str, Spec]], graph: Graph | None = None, pace: Pace | None = None) -> tuple[Canvas, ...]:
    """The canvases that send these ready steps, each exactly once.

    With `graph`, the part of the run's graph just planned or grown, they also carry what follows in it and is fixed. Cheap steps go
    several to a message instead: their followers run ahead without a message.
    """
    ahead = _Ahead(graph) if graph else None
    pace = pace or Pace()
    rows: list[Canvas] = []
    fan: list[Message] = []
    heads: list[str] = []
    for alike in _alike(ready):
        first = alike[0][1]
        if pace.is_cheap(first):
            size = max(1, pace.batch(first, len(alike)))
            fan += [_message(alike[i : i + size]) for i in range(0, len(alike), size)]
            continue
        for step_id, spec in alike:
            followers = ahead.row(step_id, spec) if ahead else ()
            if followers:
                rows.append(Row((_message([(step_id, spec)]), *followers)))
            else:
                fan.append(_message([(step_id, spec)]))
                heads.append(step_id)
    if fan:
        join = ahead.join(heads) if ahead and len(heads) == len(fan) and len(fan) > 1 else None
        rows.append(Fan(tuple(fan), join))
    return tuple(rows)


def carried(canvases: Iterable[Canvas]) -> tuple[str, ...]:
    """The steps that canvases carry beyond those that were ready."""
    steps: list[str] = []
    for canvas in canvases:
        later = canvas.messages[1:] if isinstance(canvas, Row) else ((canvas.join,) if canvas.join else ())
        steps += [step for message in later for step in message.steps]
    return tuple(steps)


def _alike(ready: Sequence[tuple[str, Spec]]) -> Iterable[list[tuple[str, Spec]]]:
    groups: dict[tuple[str, str, str], list[tuple[str, Spec]]] = defaultdict(list)
    for step_id, spec in ready:
        groups[spec.kind, spec.queue, spec.work].append((step_id, spec))
    return groups.values()


def _message(steps: Sequence[tuple[str, Spec]]) -> Message:
    spec = steps[0][1]
    limits = [spec.timeout_s for _, spec in steps]
    limit_s = None if None in limits else sum(limit for limit in limits if limit is not None)
    return Message(spec.kind, spec.queue, tuple(step_id for step_id, _ in steps), limit_s)


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

    def row(self, step_id: str, spec: Spec) -> tuple[Message, ...]:
        """The messages that must follow a step, one after the other."""
        messages: list[Message] = []
        while len(messages) < MOST_LINKS - 1 and not spec.grows:
            following = self._only_follower(step_id)
            if following is None or self._sources[following] != 1 or not self._can_be_carried(following):
                break
            step_id, spec = following, self._specs[following]
            messages.append(_message([(step_id, spec)]))
        return tuple(messages)

    def join(self, heads: Sequence[str]) -> Message | None:
        """The step in which these, and only these, meet."""
        if any(self._specs[head].grows for head in heads if head in self._specs):
            return None
        followers = {self._only_follower(head) for head in heads}
        join = followers.pop() if len(followers) == 1 else None
        if join is None or self._sources[join] != len(heads) or not self._can_be_carried(join):
            return None
        return _message([(join, self._specs[join])])

    def _only_follower(self, step_id: str) -> str | None:
        followers = self._followers.get(step_id, set())
        return next(iter(followers)) if len(followers) == 1 else None

    def _can_be_carried(self, step_id: str) -> bool:
        spec = self._specs.get(step_id)
        return spec is not None and not spec.decides and spec.kind != "wait" and spec.quorum is None and spec.deadline_s is None
