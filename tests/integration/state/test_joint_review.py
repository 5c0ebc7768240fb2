"""Histories in which one call records a step and the advance behind it, and something goes wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cantata.models.graph import Edge, Graph, Outcome
from cantata.state.ledger.ledger import Ledger
from cantata.state.ledger.records import Ahead, AttemptRecord, Begun, Committed
from tests.integration.state.play import Play, sent, work
from tests.integration.state.test_advances import command, expansion
from tests.integration.state.test_cancelling import advance
from tests.integration.state.test_ledger import lose_one_reply


def batch(ledger: Ledger, **other: object) -> tuple[Play, Begun]:
    """A run with two workflows in one message: the first waits for its command, which has begun; the second is next in the message."""
    play = Play(ledger)
    play.plan(advance("w"), advance("x").model_copy(update=other))
    begun = play.do("w", fragment=expansion(0), ahead=Ahead("tools", next_step="x")).begun
    assert begun is not None
    assert begun.step_id == "w/0.call"
    return play, begun


def both(play: Play, ended: Begun, *, next_step: str = "", code: tuple[list[str], list[str]] = ([], []), fragment: Graph | None = None) -> Committed:
    behind = replace(ended, step_id="w/@1/advance", attempt=1)
    record = AttemptRecord(Outcome(fragment=fragment or expansion(1), output={"at": 1.0}), '{"at":1.0}', {"ms": 1, "code": [*code[1]]})
    ahead = Ahead("tools", advance=(behind, record), next_step=next_step)
    return play.ledger.steps.commit(ended, Outcome(output=5), output="5", info={"code": [*code[0]]}, ahead=ahead, next_owner="worker")


@pytest.mark.parametrize("once", [False, True])
def test_a_lost_reply_leases_no_further_step_of_the_message(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, once: bool) -> None:
    play, begun = batch(ledger, at_most_once=once)
    lose_one_reply(monkeypatch, "commit")

    committed = both(play, begun, next_step="x")

    assert committed.begun is not None
    assert committed.begun.step_id == "w/1.call"
    assert play.words("x") == "sent", "nobody knows a lease of it"
    assert play.begin("x").attempt == 1


def test_code_of_both_is_recorded(ledger: Ledger) -> None:
    play, begun = batch(ledger)

    both(play, begun, code=(["tools@1"], ["desk@2"]))

    assert set(ledger.reader.read("run").code) == {"tools@1", "desk@2"}


def test_an_advance_that_another_process_recorded_meanwhile_is_not_taken_for_this_ones(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    play, begun = batch(ledger)
    behind = replace(begun, step_id="w/@1/advance", attempt=1)
    record = AttemptRecord(Outcome(fragment=expansion(1), output={"at": 1.0}), '{"at":1.0}', {"ms": 1})
    ahead = Ahead("agents", advance=(behind, record), next_step="x")
    calls = []

    from cantata import fault_points

    def at(label: str) -> bool:
        if label != "commit-replied" or calls:
            return False
        calls.append(label)
        play.do("w/@1/advance", {"at": 2.0}, fragment=expansion(1))  # by another process
        return True

    monkeypatch.setattr(fault_points, "at", at)
    committed = ledger.steps.commit(begun, Outcome(output=5), output="5", info={}, ahead=ahead, next_owner="worker")

    assert committed.result == "again"
    assert not committed.has_advanced
    assert committed.begun is not None
    assert committed.begun.step_id == "x"


def slowest_ms(ledger: Ledger, call: object) -> float:
    redis = ledger.redis
    redis.config_set("slowlog-max-len", 10_000)
    redis.config_set("slowlog-log-slower-than", 0)
    redis.slowlog_reset()
    call()  # type: ignore[operator]
    times = [float(each["duration"]) / 1000 for each in redis.slowlog_get(10_000)]
    redis.config_set("slowlog-log-slower-than", 10_000)
    return max(times)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("what", ["specs", "signals"])
def test_reading_a_run_of_few_large_steps_delays_nobody(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, small: bool, what: str) -> None:
    from cantata.state.ledger import run_reader
    from tests.integration.state.play import wait

    play = Play(ledger)
    large = "x" * 500_000
    if what == "specs":
        play.plan(*(work(f"a{number}", params={"args": [large]}) for number in range(80)))
    else:
        play.plan(*(wait(f"a{number}") for number in range(80)))
        for number in range(80):
            ledger.steps.signal("run", f"a{number}", large) if number else None
    if not small:
        monkeypatch.setattr(run_reader, "SMALL_RUN_STEPS", 0)
    took = min(slowest_ms(ledger, lambda: ledger.reader.read("run")) for _ in range(3))
    print("slowest call", what, small, took)
    assert took < 5
