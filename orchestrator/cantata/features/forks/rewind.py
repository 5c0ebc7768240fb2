"""Forks of ended runs: the steps that run again, and the graph as it was before they ran.

These steps run again: the step that is named or that a failed run left unfinished, every step behind it, and the exit of each expansion
that contains one of them. If such a step expanded, its expansion is undone, with the names and edges that it moved; it expands again.
Everything else is taken over, finished expansions too: if the last round of an agent with tools runs again, its finished rounds stay, as do
the finished items of a map."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property

from cantata.errors import ConfigError
from cantata.flows.forks import EndedRun, EndedStep, Fork, OutEdge, RestartedStep, Window
from cantata.flows.graph import START
from cantata.text.suggestions import hint, nearest


def fork(ended: EndedRun, from_step: str) -> Fork:
    """Return the fork that runs a step, all steps behind it, and the unfinished steps again.

    A step is named by its id, by a name that meant it when the run ended, or by the last part of either: 'ask' for 'flow/ask'. Raises
    ConfigError if there is no such step, if it was never due, or if the name is ambiguous.
    """
    step_id = _named(ended, from_step)
    if _was_never_due(ended.steps[step_id]):
        raise ConfigError(
            f"step {from_step!r} was skipped, since nothing led to it; fork from a step that decides that"
        )
    return _rewound(ended, {step_id, *_unfinished(ended)})


def _named(ended: EndedRun, name: str) -> str:
    step_id = name if name in ended.steps else ended.resolve(name)
    if step_id in ended.steps:
        return step_id
    ends = dict.fromkeys(ended.resolve(each) for each in (*ended.steps, *ended.names) if each.endswith(f"/{name}"))
    there = [each for each in ends if each in ended.steps]
    found = [each for each in there if not _was_never_due(ended.steps[each])] or there
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{name!r} may be any of several steps of run {ended.run_id}: {', '.join(map(repr, found))}")
    raise ConfigError(f"run {ended.run_id} has no step {name!r}{hint(nearest(name, [*ended.steps, *ended.names]))}")


def retry(ended: EndedRun) -> Fork:
    """Return the fork that runs the unfinished steps again. Raises ConfigError if there are none."""
    left = set(_unfinished(ended))
    if not left:
        raise ConfigError(
            f"run {ended.run_id} left nothing to retry: its status is {ended.status!r}; fork it from a step to run that step again"
        )
    return _rewound(ended, left)


def _rewound(ended: EndedRun, seeds: set[str]) -> Fork:
    return _whole(ended) if START in seeds else _Rewind(ended, seeds).fork()


def _whole(ended: EndedRun) -> Fork:
    """Return the fork that plans the run again."""
    return Fork(
        source=ended.run_id,
        restarted=(RestartedStep(step_id=START, pending=0, taken=1),),
        removed=tuple(step_id for step_id in ended.steps if step_id != START),
        forgotten=tuple(dict.fromkeys(ended.shared.values())),
        expand_again=tuple(ended.expansions),
        edges={START: []},
        names=dict.fromkeys(ended.names, False),
        windows={},
        terminals="[]",
        left=1,
        count=1,
    )


def _unfinished(ended: EndedRun) -> Iterator[str]:
    """Yield the steps that failed the run, were stopped or never started. A failure that the graph or a scope tolerated is finished."""
    for step_id, step_end in ended.steps.items():
        if not _is_finished(step_end) and not _is_tolerated(ended, step_id):
            yield step_id


def _is_finished(step_end: EndedStep) -> bool:
    return step_end.state == "done" or bool(step_end.takes) or _was_never_due(step_end)


def _was_never_due(step_end: EndedStep) -> bool:
    return step_end.state == "skipped" and step_end.pending == 0 and step_end.taken == 0


def _is_tolerated(ended: EndedRun, step_id: str) -> bool:
    """Return whether an expansion that contains the step finished all the same."""
    scope = ended.specs[step_id].scope
    while scope is not None:
        exit_id = ended.resolve(scope)
        if _is_finished(ended.steps[exit_id]):
            return True
        outer = ended.specs[exit_id].scope
        scope = outer if outer != scope else None
    return False


class _Rewind:
    """The graph of a run before some of its steps ran."""

    def __init__(self, ended: EndedRun, seeds: Iterable[str]) -> None:
        self._ended = ended
        self._parent = {
            step_id: parent for parent, expansion in ended.expansions.items() for step_id in expansion.steps
        }
        self._counted: dict[str, list[OutEdge]] = defaultdict(list)
        for expansion in ended.expansions.values():
            for edge in expansion.counted:
                self._counted[edge.source].append(OutEdge(*edge[1:]))
        self._invalidated = self._behind(seeds)
        expansions = [ended.expansions[step_id] for step_id in self._invalidated if step_id in ended.expansions]
        self._removed = {step_id for expansion in expansions for step_id in expansion.steps}
        self._restarted = [
            step_id for step_id in ended.steps if step_id in self._invalidated and step_id not in self._removed
        ]

    def fork(self) -> Fork:
        """Return the fork."""
        changed = {
            step_id: list(edges) for step_id, edges in self._edges.items() if edges != self._ended.edges_of(step_id)
        }
        expansions = [
            (step_id, expansion)
            for step_id, expansion in self._ended.expansions.items()
            if step_id in self._invalidated
        ]
        names: dict[str, str | bool] = {}
        terminals = self._ended.terminals
        for parent, expansion in reversed(expansions):
            names |= {parent: False, **expansion.names}
            terminals = terminals if expansion.terminals is None else expansion.terminals
        return Fork(
            source=self._ended.run_id,
            restarted=tuple(map(self._start_of, self._restarted)),
            removed=tuple(step_id for step_id in self._ended.steps if step_id in self._removed),
            forgotten=tuple(expansion.items.like for _, expansion in expansions if expansion.items),
            expand_again=tuple(parent for parent, _ in expansions),
            edges=changed,
            names=names,  # type: ignore[arg-type]  # False, never True
            windows=dict(self._windows()),
            terminals=terminals,
            left=len(self._restarted),
            count=len(self._ended.steps) - len(self._removed),
        )

    def _behind(self, seeds: Iterable[str]) -> set[str]:
        """Return the seeds, the steps behind them, the steps that they added, and the exits of the expansions that contain them."""
        found: set[str] = set()
        pending = list(seeds)
        while pending:
            step_id = pending.pop()
            if step_id in found or step_id not in self._ended.steps:
                continue
            found.add(step_id)
            pending += [edge[0] for edge in (*self._ended.edges_of(step_id), *self._counted.get(step_id, ()))]
            if step_id in self._ended.expansions:
                pending += self._ended.expansions[step_id].steps
            exit_id = self._ended.expansions[self._parent[step_id]].exit if step_id in self._parent else None
            pending += [exit_id] if exit_id else []
        return found

    # --- edges ------------------------------------------------------------------------------------------------------

    @cached_property
    def _edges(self) -> dict[str, tuple[OutEdge, ...]]:
        """Return the out-edges of the steps that stay."""
        edges = {step_id: self._edges_before(step_id) for step_id in self._ended.steps if step_id not in self._removed}
        for source, counted in self._counted.items():
            at = self._stays_for(source)
            if at in edges and at in self._invalidated:  # its end is to come, so it is not counted any more
                edges[at] += tuple(edge for edge in counted if edge[0] not in self._removed)
        return edges

    def _edges_before(self, step_id: str) -> tuple[OutEdge, ...]:
        """Return a step's out-edges to steps that stay. If its expansion is undone, they are those that its exit has from it."""
        last, own = step_id, Counter[OutEdge]()
        while step_id in self._invalidated and (expansion := self._ended.expansions.get(last)) and expansion.exit:
            last = expansion.exit
            own += Counter(expansion.own)
        kept = []
        for edge in self._ended.edges_of(last):
            if own[edge]:
                own[edge] -= 1
            elif edge[0] not in self._removed:
                kept.append(edge)
        return tuple(kept)

    def _stays_for(self, step_id: str) -> str:
        """Return the step itself; of the exit of an undone expansion, the parent."""
        while step_id in self._removed and self._ended.expansions[self._parent[step_id]].exit == step_id:
            step_id = self._parent[step_id]
        return step_id

    # --- steps ------------------------------------------------------------------------------------------------------

    @cached_property
    def _into(self) -> dict[str, list[tuple[str, OutEdge]]]:
        """Return the edges into each restarted step, with their sources."""
        into: dict[str, list[tuple[str, OutEdge]]] = defaultdict(list)
        for source, edges in self._edges.items():
            for edge in edges:
                into[edge.target].append((source, edge))
        for source, counted in self._counted.items():
            if source in self._ended.steps and source not in self._invalidated:
                for edge in counted:
                    into[edge.target].append((source, edge))
        return into

    def _start_of(self, step_id: str) -> RestartedStep:
        spec, into = self._ended.specs[step_id], self._into[step_id]
        open_sources = [source for source, _ in into if source in self._invalidated]
        over = [(self._ended.steps[source], edge) for source, edge in into if source not in self._invalidated]
        taken = sum(edge.wakes and edge.label in step_end.takes for step_end, edge in over)
        has_waking = any(edge.wakes for _, edge in into)
        missing = max(0, (spec.quorum or 0) - sum(step_end.state == "done" for step_end, _ in over))
        waits_no_more = any(edge.alone for _, edge in over)
        return RestartedStep(
            step_id=step_id,
            pending=0 if waits_no_more else len(open_sources),
            taken=taken if has_waking else 1,
            quorum=missing,
            is_quorum_met=bool(spec.quorum) and missing == 0,
            deadline_s=spec.deadline_s,
            waits=spec.kind == "wait",
            joins=[*open_sources] if spec.quorum or spec.deadline_s else None,
        )

    # --- maps --------------------------------------------------------------------------------------------------------

    def _windows(self) -> Iterator[tuple[str, Window]]:
        restarted = set(self._restarted)
        under_way = Counter(self._ended.specs[step_id].window for step_id in self._restarted)
        for parent, expansion in self._ended.expansions.items():
            if expansion.items and under_way[parent]:
                items = tuple(step_id for step_id in expansion.items.ids if step_id in restarted)
                yield parent, Window(size=expansion.items.window, busy=under_way[parent] - len(items), items=items)
