"""Rewinds a run that is over: which of its steps are done anew, and what its graph was before they were.

Done anew is a step that is named, or that a failed run left unfinished; all behind it; and what ends the growth it stands in. What such
a step grew is taken back, with the names and edges that it moved: it grows again. All else is taken over, growth within it too. So of an
agent with tools its finished rounds stand when its last is done anew, and of a map its finished items.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import cast

from cantata.errors import ConfigError
from cantata.models.forks import Cell, Drawn, Fork, Past, Redone, Window
from cantata.models.graph import START
from cantata.models.values import JsonValue


def fork(past: Past, from_step: str) -> Fork:
    """A run that does a step anew and all behind it, and what the source left unfinished.

    A step is named by its id, by a name it answered to in the end, or by the end of either: 'ask' for 'flow/ask'. Raises ConfigError for
    one that is not there or was not asked for, and for what may be several.
    """
    step_id = _named(past, from_step)
    if _was_not_asked_for(past.cells[step_id]):
        raise _refused(f"step {from_step!r} was skipped, since nothing led to it; fork from a step that decides that")
    return _rewound(past, {step_id, *_unfinished(past)})


def _named(past: Past, name: str) -> str:
    step_id = name if name in past.cells else past.answering(name)
    if step_id in past.cells:
        return step_id
    ends = dict.fromkeys(past.answering(each) for each in (*past.cells, *past.names) if each.endswith(f"/{name}"))
    there = [each for each in ends if each in past.cells]
    found = [each for each in there if not _was_not_asked_for(past.cells[each])] or there
    if len(found) == 1:
        return found[0]
    if found:
        raise _refused(f"{name!r} may be any of several steps of run {past.run_id}: {', '.join(map(repr, found))}")
    near = difflib.get_close_matches(name, [*past.cells, *past.names], n=1)
    raise _refused(f"run {past.run_id} has no step {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def retry(past: Past) -> Fork:
    """A run that does anew what the source left unfinished. Raises ConfigError if it left nothing."""
    left = set(_unfinished(past))
    if not left:
        raise _refused(
            f"run {past.run_id} left nothing to retry: its status is {past.status!r}; fork it from a step to run that step again"
        )
    return _rewound(past, left)


def _rewound(past: Past, seeds: set[str]) -> Fork:
    return _whole(past) if START in seeds else _Rewind(past, seeds).fork()


def _whole(past: Past) -> Fork:
    """A run that is planned anew."""
    return Fork(
        source=past.run_id,
        redone=(Redone(step_id=START, pending=0, taken=1),),
        removed=tuple(step_id for step_id in past.cells if step_id != START),
        forgotten=tuple(dict.fromkeys(past.shared.values())),
        regrow=tuple(past.growths),
        edges={START: []},
        names=dict.fromkeys(past.names, False),
        windows={},
        terminals="[]",
        left=1,
        count=1,
    )


def _refused(message: str) -> ConfigError:
    return ConfigError(message)


def _unfinished(past: Past) -> Iterator[str]:
    """The steps that failed the run, that it stopped or that it never came to. A failure that its graph or a scope bore is an outcome."""
    for step_id, cell in past.cells.items():
        if not _is_finished(cell) and not _is_borne(past, step_id):
            yield step_id


def _is_finished(cell: Cell) -> bool:
    return cell.word == "done" or bool(cell.takes) or _was_not_asked_for(cell)


def _was_not_asked_for(cell: Cell) -> bool:
    return cell.word == "skipped" and cell.pending == 0 and cell.taken == 0


def _is_borne(past: Past, step_id: str) -> bool:
    """Whether the growth that a step stands in came to its end all the same."""
    scope = past.duties[step_id].scope
    while scope is not None:
        exit_id = past.answering(scope)
        if _is_finished(past.cells[exit_id]):
            return True
        outer = past.duties[exit_id].scope
        scope = outer if outer != scope else None
    return False


class _Rewind:
    """The graph of a run before some of its steps were done."""

    def __init__(self, past: Past, seeds: Iterable[str]) -> None:
        self._past = past
        self._grower = {step_id: grower for grower, growth in past.growths.items() for step_id in growth.steps}
        self._counted: dict[str, list[Drawn]] = defaultdict(list)
        for growth in past.growths.values():
            for source, *edge in growth.counted:
                self._counted[source].append(cast(Drawn, tuple(edge)))
        self._anew = self._behind(seeds)
        growths = [past.growths[step_id] for step_id in self._anew if step_id in past.growths]
        self._removed = {step_id for growth in growths for step_id in growth.steps}
        self._redone = [step_id for step_id in past.cells if step_id in self._anew and step_id not in self._removed]

    def fork(self) -> Fork:
        """What is made of the run."""
        changed = {step_id: list(edges) for step_id, edges in self._edges.items() if edges != self._past.edges_of(step_id)}
        growths = [(step_id, growth) for step_id, growth in self._past.growths.items() if step_id in self._anew]
        names: dict[str, str | bool] = {}
        terminals = self._past.terminals
        for grower, growth in reversed(growths):
            names |= {grower: False, **growth.names}
            terminals = terminals if growth.terminals is None else growth.terminals
        return Fork(
            source=self._past.run_id,
            redone=tuple(map(self._start_of, self._redone)),
            removed=tuple(step_id for step_id in self._past.cells if step_id in self._removed),
            forgotten=tuple(growth.items.like for _, growth in growths if growth.items),
            regrow=tuple(grower for grower, _ in growths),
            edges=changed,
            names=names,  # type: ignore[arg-type]  # False, never True
            windows=dict(self._windows()),
            terminals=terminals,
            left=len(self._redone),
            count=len(self._past.cells) - len(self._removed),
        )

    def _behind(self, seeds: Iterable[str]) -> set[str]:
        """The seeds, what lies behind them, what they grew, and what ends the growth they stand in."""
        anew: set[str] = set()
        pending = list(seeds)
        while pending:
            step_id = pending.pop()
            if step_id in anew or step_id not in self._past.cells:
                continue
            anew.add(step_id)
            pending += [edge[0] for edge in (*self._past.edges_of(step_id), *self._counted.get(step_id, ()))]
            if step_id in self._past.growths:
                pending += self._past.growths[step_id].steps
            exit_id = self._past.growths[self._grower[step_id]].exit if step_id in self._grower else None
            pending += [exit_id] if exit_id else []
        return anew

    # --- edges ------------------------------------------------------------------------------------------------------

    @cached_property
    def _edges(self) -> dict[str, tuple[Drawn, ...]]:
        """The out-edges of the steps that stay."""
        edges = {step_id: self._edges_before(step_id) for step_id in self._past.cells if step_id not in self._removed}
        for source, counted in self._counted.items():
            at = self._stays_for(source)
            if at in edges and at in self._anew:  # its end is to come, so it is not counted any more
                edges[at] = (*edges[at], *(edge for edge in counted if edge[0] not in self._removed))
        return edges

    def _edges_before(self, step_id: str) -> tuple[Drawn, ...]:
        """A step's out-edges to what stays; of one whose growth is taken back, those that its exit has for it."""
        last, own = step_id, Counter[Drawn]()
        while step_id in self._anew and (growth := self._past.growths.get(last)) and growth.exit:
            last = growth.exit
            own += Counter(growth.own)
        kept = []
        for edge in self._past.edges_of(last):
            if own[edge]:
                own[edge] -= 1
            elif edge[0] not in self._removed:
                kept.append(edge)
        return tuple(kept)

    def _stays_for(self, step_id: str) -> str:
        """The step itself, or the one that grew it as the exit and whose growth is taken back."""
        while step_id in self._removed and self._past.growths[self._grower[step_id]].exit == step_id:
            step_id = self._grower[step_id]
        return step_id

    # --- steps ------------------------------------------------------------------------------------------------------

    @cached_property
    def _into(self) -> dict[str, list[tuple[str, str, bool]]]:
        """Of what is done anew, the edges into it: source, label, whether it wakes."""
        into: dict[str, list[tuple[str, str, bool]]] = defaultdict(list)
        for source, edges in self._edges.items():
            for target, label, wakes in edges:
                into[target].append((source, label, wakes))
        for source, counted in self._counted.items():
            if source in self._past.cells and source not in self._anew:
                for target, label, wakes in counted:
                    into[target].append((source, label, wakes))
        return into

    def _start_of(self, step_id: str) -> Redone:
        duty, into = self._past.duties[step_id], self._into[step_id]
        open_ones = [source for source, _, _ in into if source in self._anew]
        over = [(self._past.cells[source], label, wakes) for source, label, wakes in into if source not in self._anew]
        taken = sum(wakes and label in cell.takes for cell, label, wakes in over)
        is_asked = any(wakes for _, _, wakes in into)
        missing = max(0, (duty.quorum or 0) - sum(cell.word == "done" for cell, _, _ in over))
        joins = cast("list[JsonValue]", open_ones) if duty.quorum or duty.deadline_s else None
        return Redone(
            step_id=step_id, pending=len(open_ones), taken=taken if is_asked else 1, quorum=missing,
            is_enough=bool(duty.quorum) and missing == 0, joins=joins, deadline_s=duty.deadline_s,
            waits=duty.kind == "wait",
        )  # fmt: skip

    # --- maps --------------------------------------------------------------------------------------------------------

    def _windows(self) -> Iterator[tuple[str, Window]]:
        redone = set(self._redone)
        under_way = Counter(self._past.duties[step_id].window for step_id in self._redone)
        for grower, growth in self._past.growths.items():
            if growth.items and under_way[grower]:
                items = tuple(step_id for step_id in growth.items.ids if step_id in redone)
                yield grower, Window(size=growth.items.window, busy=under_way[grower] - len(items), items=items)
