"""What pages read of a run's log."""

from __future__ import annotations

import pytest

from cantata.state.ledger.ledger import Ledger
from cantata.state.runs import run_snapshot
from tests.integration.state.play import Play, work


def offset_of(ledger: Ledger, run_id: str) -> int:
    return run_snapshot.snapshot(ledger, run_id, None).offset


def test_what_was_read_of_a_log_is_kept_within_bounds(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_snapshot, "MAX_CACHED_STEPS", 5)
    timeline = run_snapshot.Timeline(ledger)
    plays = [Play(ledger, f"run-{number}") for number in range(3)]
    for play in plays:
        play.plan(work("a"), work("b"))

    first = {play.run_id: timeline.moments(play.run_id, offset_of(ledger, play.run_id), folded={}) for play in plays}
    for play in plays:
        play.do("a")
    second = {play.run_id: timeline.moments(play.run_id, offset_of(ledger, play.run_id), folded={}) for play in plays}

    assert all(list(found) == ["@start"] for found in first.values())
    assert all(list(found) == ["@start", "a"] and found["a"].ended_ms for found in second.values())
    assert sum(len(found) for _, found in timeline._kept.values()) == 4, "of the two runs that were asked for last"
