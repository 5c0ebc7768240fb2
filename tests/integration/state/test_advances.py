"""The ledger's promises about an advance that is executed before the step in front of it is recorded: one call records both or none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cantata.flows.graph import Edge, Graph, Outcome, Step
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Ahead, AttemptRecord, Begun, Committed
from cantata.operation import fault_points
from tests.integration.state.play import Play, sent, work
from tests.integration.state.test_cancelling import advance
from tests.integration.state.test_ledger import lose_one_reply


def command(number: int) -> Step:
    return work(f"w/{number}.call", cheap=True, on_error="skip")


def expansion(number: int) -> Graph:
    """What an advance adds: a command and the next advance, which waits for it."""
    behind = advance(f"w/@{number + 1}/advance", "w", advance=number + 1).model_copy(update={"cheap": True})
    called = command(number)
    return Graph(steps=(called, behind), edges=(Edge(source=called.id, target=behind.id, wakes=False),), exit=behind.id)


def called(ledger: Ledger, **other: object) -> tuple[Play, Begun]:
    """A run whose workflow waits for its first command, which has begun; another one, `x`, is next in the message."""
    play = Play(ledger)
    play.plan(advance("w"), advance("x").model_copy(update=other))
    begun = play.do("w", fragment=expansion(0), ahead=Ahead("tools", next_step="x")).begun
    assert begun is not None
    assert begun.step_id == "w/0.call"
    return play, begun


def both(
    play: Play,
    ended: Begun,
    outcome: Outcome | None = None,
    *,
    queue: str = "tools",
    next_step: str = "",
    step_id: str = "w/@1/advance",
) -> Committed:
    """Commit a command together with the advance behind it."""
    outcome = outcome or Outcome(fragment=expansion(1), output={"at": 1.0})
    behind = replace(ended, step_id=step_id, attempt=1)
    record = AttemptRecord(outcome, '{"at":1.0}', {"code": ["desk@2"]})
    ahead = Ahead(queue, advance=(behind, record), next_step=next_step)
    return play.ledger.steps.commit(ended, Outcome(output=5), output="5", info={"code": ["tools@1"]}, ahead=ahead)


def test_one_call_records_both_and_begins_what_follows(ledger: Ledger) -> None:
    play, begun = called(ledger)

    committed = both(play, begun)

    assert (committed.result, committed.has_advanced, sent(committed)) == ("ok", True, [])
    assert committed.begun is not None
    assert (committed.begun.step_id, committed.begun.attempt) == ("w/1.call", 1)
    assert [play.events(step) for step in ("w/0.call", "w/@1/advance", "w/1.call")] == [
        ["started", "done"],
        ["expanded"],
        ["started"],
    ]
    record = ledger.reader.read("run")
    assert (record.steps["w/0.call"].output, record.steps["w/@1/advance"].output) == (5, {"at": 1.0})
    play.commit(committed.begun)
    play.do("w/@2/advance", "over")
    assert play.do("x", "over").run_status == "succeeded"
    assert set(record.code) == {"tools@1", "desk@2"}


def test_the_last_advance_ends_the_run(ledger: Ledger) -> None:
    play, begun = called(ledger)
    play.do("x", "over")

    committed = both(play, begun, Outcome(output="over"))

    assert (committed.result, committed.has_advanced, committed.begun, committed.run_status) == (
        "ok",
        True,
        None,
        "succeeded",
    )


def test_nothing_is_recorded_twice_when_the_reply_is_lost(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    play, begun = called(ledger)
    lose_one_reply(monkeypatch, "commit")

    committed = both(play, begun)

    assert (committed.result, committed.has_advanced) == ("again", True)
    assert committed.begun is not None
    assert committed.begun.step_id == "w/1.call"
    assert play.events("w/@1/advance") == ["expanded"]
    assert play.commit(committed.begun).result == "ok", "its lease is known"


def test_in_a_cancelled_run_the_advance_is_leased_and_a_repetition_finds_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, _ = called(ledger)
    ledger.runs.cancel("run")
    cleaning = play.do("w/@1/advance", fragment=expansion(1), ahead=Ahead("tools")).begun
    assert cleaning is not None
    lose_one_reply(monkeypatch, "commit")

    committed = both(play, cleaning, Outcome(output="over"), step_id="w/@2/advance")

    assert (committed.result, committed.has_advanced) == ("again", False)
    assert committed.begun is not None
    assert committed.begun.step_id == "w/@2/advance"
    assert play.events("w/@2/advance") == ["started"]
    assert play.commit(committed.begun).result == "ok", "its lease is known"


def test_an_advance_that_the_call_may_not_begin_is_not_recorded(ledger: Ledger) -> None:
    play, begun = called(ledger)

    committed = both(play, begun, queue="agents")

    assert (committed.result, committed.has_advanced, sent(committed)) == ("ok", False, ["w/@1/advance"])
    assert play.events("w/@1/advance") == []


def test_an_outcome_that_comes_too_late_records_no_advance(ledger: Ledger) -> None:
    play, begun = called(ledger)
    play.lose_lease(begun)

    committed = both(play, begun)

    assert (committed.result, committed.has_advanced) == ("stale", False)
    assert play.events("w/@1/advance") == []


def test_an_advance_that_was_to_get_a_cancellation_is_executed_again_with_it(ledger: Ledger) -> None:
    play, begun = called(ledger)
    assert ledger.runs.cancel("run") == "cancelling"

    committed = both(play, begun)

    assert not committed.has_advanced
    assert play.events("w/@1/advance") == []
    assert play.begin("w/@1/advance").inputs["@cancelled"] is True


@pytest.mark.parametrize("once", [False, True])
def test_a_lost_reply_leases_no_further_step_of_the_message(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    play, begun = called(ledger, at_most_once=once)
    lose_one_reply(monkeypatch, "commit")

    committed = both(play, begun, next_step="x")

    assert committed.begun is not None
    assert committed.begun.step_id == "w/1.call"
    assert play.words("x") == "sent", "nobody would know of a lease"
    assert play.begin("x").attempt == 1


def test_an_advance_that_another_process_recorded_meanwhile_is_not_taken_for_this_one(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, begun = called(ledger)
    calls: list[str] = []

    def at(label: str) -> bool:
        if label != "commit-replied" or calls:
            return False
        calls.append(label)
        play.do("w/@1/advance", {"at": 2.0}, fragment=expansion(1))  # by another process; this one's reply is lost
        return True

    monkeypatch.setattr(fault_points, "at", at)
    committed = both(play, begun, queue="agents", next_step="x")

    assert (committed.result, committed.has_advanced) == ("again", False)
