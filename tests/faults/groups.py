"""What must hold of several runs together: the turns of a session, the turns that agents take, a fork and its source.

Pure: each rule reads pasts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from urllib.parse import unquote

from cantata.features.sessions.sessions import Sessions
from cantata.flows.graph import START
from cantata.flows.wire import HistoryEntry
from cantata.ledger.ledger import Ledger
from tests.faults.past import Past, Violation
from tests.faults.rules import CLOCK_S
from tests.integration.state.invariants import ENDINGS

Said = tuple[str, str]
"""A role, and what it said."""


@dataclass(frozen=True)
class Talk:
    """A session, none of whose turns is under way."""

    turns: Sequence[Past]
    """In the order they were accepted."""
    entries: Sequence[HistoryEntry]
    waiting: Sequence[str]


def talks(pasts: Iterable[Past], ledger: Ledger) -> Iterator[Talk]:
    """The sessions that runs belong to."""
    by_session: dict[str, list[Past]] = defaultdict(list)
    for past in pasts:
        session = past.picture.meta.get("session")
        if session and not past.source:  # a fork reads what was said, and is not written down
            by_session[session].append(past)
    for scoped, turns in by_session.items():
        tenant, session = map(unquote, scoped.split("/"))
        sessions = Sessions(ledger, tenant)
        yield Talk(turns, sessions.history(session), sessions.waiting(session))


def check_talk(talk: Talk) -> Iterator[Violation]:
    """What is wrong with a session."""
    yield from _had_one_turn_at_a_time(talk)
    yield from _was_written_down(talk)
    for run_id in talk.waiting:
        yield Violation(run_id, "", "nobody in the queue of a session when its turns are over", "it there")


def _had_one_turn_at_a_time(talk: Talk) -> Iterator[Violation]:
    """No step of a turn starts, and no model is asked for it, before the turn before it is closed."""
    for before, after in pairwise(talk.turns):
        closed_at = max((event.at for event in before.of("", "closed")), default=float("inf"))
        starts = [event for step in after.picture.cells for event in after.of(step, "started")]
        for early in [event for event in starts if event.at < closed_at][:1]:
            yield after.violation(
                early.step, f"no start before {before.name} is closed", f"one {closed_at - early.at:.3f} s before"
            )
        for line in [line for line in after.told.asked if line.at < closed_at - CLOCK_S][:1]:
            yield after.violation(
                "", f"no model asked before {before.name} is closed", f"{line.agent} {closed_at - line.at:.3f} s before"
            )


def _was_written_down(talk: Talk) -> Iterator[Violation]:
    """What was said is kept in the order of the turns: once what the user said, and once what was answered."""
    expected = [(turn, said) for turn in talk.turns for said in _said_in(turn)]
    found = [(entry.role, entry.content) for entry in talk.entries]
    for number, (wanted, said) in enumerate(zip_longest(expected, found), 1):
        if wanted is None or wanted[1] != said:
            turn, words = wanted or (talk.turns[-1], None)
            yield turn.violation(
                "", f"{words or 'nothing more'} as entry {number} of its session", f"{said or 'nothing more'}"
            )
            return


def _said_in(turn: Past) -> list[Said]:
    user = ("user", str(json.loads(turn.picture.meta["request"])["text"]))
    if turn.picture.status == "succeeded":
        return [user, ("assistant", str(turn.told.accepted.expected))]
    return [user, ("system_error", str(json.loads(turn.picture.meta["error"])["error"]["message"]))]


def check_rotations(pasts: Iterable[Past]) -> Iterator[Violation]:
    """Agents that take turns: each place is taken once, none is left out."""
    taken: dict[tuple[str, str], dict[int, Past]] = defaultdict(dict)
    for past in pasts:
        for step in sorted(past.done.intersection(past.of_kind("team.next")) - past.taken_over):
            counter = str(past.picture.spec(step)["work"]), past.picture.meta.get("session", "")
            place = int(json.loads(past.picture.infos[step])["index"])
            if other := taken[counter].get(place):
                yield past.violation(
                    step, "a place in the rotation of its own", f"place {place}, which {other.name} has"
                )
            taken[counter][place] = past
    for (work, session), places in taken.items():
        left_out = sorted(set(range(max(places) + 1)).difference(places))
        if left_out:
            yield places[max(places)].violation(
                "", f"each place of {work} {session} taken", f"none by a run in {left_out}"
            )


def check_forks(pasts: Iterable[Past]) -> Iterator[Violation]:
    """A fork has all steps of its source; what it took over ended as it did there."""
    known = {past.picture.run_id: past for past in pasts}
    for fork in known.values():
        if fork.source not in known:
            continue
        source = known[fork.source]
        if missing := sorted(source.picture.specs.items() - fork.picture.specs.items()):
            yield fork.violation(
                "", f"the steps of {source.name}", f"none like {', '.join(step for step, _ in missing)}"
            )
        for step in sorted(fork.taken_over - {START}):  # which gives the fork's own input
            ours, theirs = (
                (past.picture.outs.get(step), [each.type for each in past.of(step, *ENDINGS)])
                for past in (fork, source)
            )
            if ours != theirs:
                yield fork.violation(step, f"the outcome that it had in {source.name}, {theirs}", str(ours))
        if not fork.taken_over:
            yield fork.violation("", f"steps taken over of {source.name}", "none")
