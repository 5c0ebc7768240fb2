"""Pages read when steps began and ended from the log of their run, and its plan from its steps."""

from __future__ import annotations

import pytest

from cantata.flows.graph import Edge, Graph, ItemSteps
from cantata.ledger.ledger import Ledger
from cantata.ledger.runs import timeline
from tests.integration.state.play import Play, row, work


def offset_of(ledger: Ledger, run_id: str) -> int:
    return ledger.reader.snapshot(run_id).offset


def test_what_was_read_of_a_log_is_kept_within_bounds(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_CACHED_STEPS", 5)
    moments = timeline.Timeline(ledger)
    plays = [Play(ledger, f"run-{number}") for number in range(3)]
    for play in plays:
        play.plan(work("a"), work("b"))

    first = {play.run_id: moments.moments(play.run_id, offset_of(ledger, play.run_id), folded={}) for play in plays}
    for play in plays:
        play.do("a")
    second = {play.run_id: moments.moments(play.run_id, offset_of(ledger, play.run_id), folded={}) for play in plays}

    assert all(list(found) == ["@start"] for found in first.values())
    assert all(list(found) == ["@start", "a"] and found["a"].ended_ms for found in second.values())
    assert sum(len(found) for _, found in moments._kept.values()) == 4, "of the two runs that were asked for last"


def test_the_plan_of_a_run_is_read_from_its_steps_whatever_they_expanded_to(ledger: Ledger) -> None:
    play = Play(ledger)
    assert ledger.reader.planned(play.run_id) == []
    play.plan(work("z"), work("m"), work("b"), work("a"), edges=row("z", "m", "b", "a"))
    planned = ledger.reader.planned(play.run_id)

    play.do("z", fragment=Graph(steps=(work("other"), work("z/@end")), edges=row("other", "z/@end"), exit="z/@end"))
    play.do("other")
    play.do("z/@end")
    items = ItemSteps(like="m/*", prefix="m", given=(1, 2, 3), window=2)
    gather = Edge(source="m/*", target="m/@gather", wakes=False)
    play.do("m", fragment=Graph(steps=(work("m/*"), work("m/@gather")), edges=(gather,), items=items, exit="m/@gather"))
    play.do("m/0", fragment=Graph(steps=(work("m/0/r1"),), exit="m/0/r1"))

    assert planned == ledger.reader.planned(play.run_id) == ["z", "m", "b", "a"]
