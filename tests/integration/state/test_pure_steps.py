"""The ledger's promises about pure steps: one call begins those of a message, one records them, and each is recorded once."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from cantata.flows.graph import Outcome, Step
from cantata.ledger.encoding import to_json
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Ahead, AttemptRecord, Begun, Committed
from cantata.values import Usage
from tests.integration.state.play import Play, failed, fan_in, row, sent, wait, work
from tests.integration.state.test_ledger import lose_one_reply

NAMES = ("a", "b", "c")


def planned(ledger: Ledger, *more: Step, **spec: object) -> Play:
    """A run of three pure steps, and one behind them all."""
    play = Play(ledger)
    steps = [work(name, pure=True, **spec) for name in NAMES]
    play.plan(*steps, *more, work("end"), edges=fan_in((*NAMES, *(each.id for each in more)), "end"))
    return play


def begun(play: Play, *names: str, owner: str = "worker") -> list[Begun]:
    """The steps of a message that one call begins."""
    answer = play.ledger.steps.begin_together(play.run_id, names or NAMES, owner)
    assert not isinstance(answer, str), answer
    return answer


def commit(play: Play, steps: list[Begun], *, last: Outcome | None = None, ahead: Ahead | None = None) -> Committed:
    """Commit steps by one call; their outputs are their names."""
    *before, end = steps
    records = [
        (each, AttemptRecord(Outcome(output=each.step_id), to_json(each.step_id), {"by": "worker"})) for each in before
    ]
    outcome = last or Outcome(output=end.step_id)
    info = {} if outcome.error is None else {"error": outcome.error.model_dump()}
    return play.ledger.steps.commit(
        end, outcome, output=to_json(outcome.output), info=info, before=records, ahead=ahead
    )


def test_one_call_begins_and_one_records_them(ledger: Ledger) -> None:
    play = planned(ledger)

    committed = commit(play, begun(play))

    assert (committed.result, committed.results_before, sent(committed)) == ("ok", ("ok", "ok"), ["end"])
    assert [play.events(name) for name in NAMES] == [["started", "done"]] * 3
    assert {name: ledger.reader.read("run").steps[name].output for name in NAMES} == {name: name for name in NAMES}
    assert play.do("end").run_status == "succeeded"


def test_what_is_behind_them_is_begun_by_the_same_call(ledger: Ledger) -> None:
    play = planned(ledger)

    committed = commit(play, begun(play), ahead=Ahead("tools", "\nquick\n", next_step=""))
    assert sent(committed) == ["end"], "it is not known to be cheap"

    other = Play(ledger, "other")
    other.plan(work("a", pure=True), work("b", pure=True), work("end", cheap=True), edges=fan_in(("a", "b"), "end"))
    committed = commit(other, begun(other, "a", "b"), ahead=Ahead("tools"))
    assert committed.begun is not None
    assert (committed.begun.step_id, sent(committed)) == ("end", [])


@pytest.mark.parametrize("script", ["begin", "commit"])
def test_a_lost_reply_changes_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    play = planned(ledger)
    if script == "begin":
        lose_one_reply(monkeypatch, script)

    steps = begun(play)
    assert [each.step_id for each in steps] == [*NAMES]
    assert [each.attempt for each in steps] == [1, 1, 1]

    if script == "commit":
        lose_one_reply(monkeypatch, script)
    committed = commit(play, steps)

    assert (committed.result, *committed.results_before) == (("ok",) * 3 if script == "begin" else ("again",) * 3)
    assert [play.events(name) for name in NAMES] == [["started", "done"]] * 3


def test_only_pure_steps_that_were_never_begun_are_begun_with_others(ledger: Ledger) -> None:
    play = planned(ledger, work("x"), work("y", pure=True), work("z", pure=True))
    play.lose_lease(play.begin("y"))
    taken = play.begin("z", owner="another")

    assert [each.step_id for each in begun(play, "a", "x", "y", "z", "b", "end", "nobody")] == ["a", "b"]
    assert [each.step_id for each in begun(play, "x", "c")] == ["x"], "the first one is not pure"
    assert [each.step_id for each in begun(play, "y", "c")] == ["y"], "it was lost before"
    assert play.commit(taken).result == "ok"


def test_lost_steps_are_begun_one_by_one(ledger: Ledger) -> None:
    play = planned(ledger)
    lost = begun(play)

    swept = play.lose_lease(*lost)

    assert swept.lost == 3
    assert [each.attempt for each in begun(play)] == [2]
    assert commit(play, lost).results_before == ("stale", "stale"), (
        "another attempt of `a` is under way, `b` and `c` wait for one"
    )


def test_a_failure_among_them_is_of_that_step(ledger: Ledger) -> None:
    play = planned(ledger, on_error="skip")

    committed = commit(play, begun(play), last=failed("broke", "c"))

    assert (committed.result, committed.results_before, sent(committed)) == ("ok", ("ok", "ok"), ["end"])
    assert [ledger.reader.read("run").steps[name].state for name in NAMES] == ["done", "done", "failed"]


def test_a_run_that_ended_meanwhile_takes_none(ledger: Ledger) -> None:
    play = planned(ledger)
    steps = begun(play)
    ledger.runs.cancel("run")

    committed = commit(play, steps)

    assert (committed.result, committed.results_before, committed.run_status) == (
        "closed",
        ("closed", "closed"),
        "cancelled",
    )


def test_one_that_runs_at_most_once_is_not_begun_with_others(ledger: Ledger) -> None:
    play = planned(ledger, at_most_once=True)

    assert [each.step_id for each in begun(play)] == ["a"]


def test_one_call_replies_a_bounded_number_of_bytes(ledger: Ledger) -> None:
    play = Play(ledger)
    steps = [work(f"s{number}", pure=True, reads={"text": "first"}) for number in range(10)]
    play.plan(work("first"), *steps, edges=tuple(edge for step in steps for edge in fan_in(("first",), step.id)))
    play.do("first", "x" * 150_000)

    assert [each.step_id for each in begun(play, *(step.id for step in steps))] == ["s0", "s1", "s2", "s3"]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_an_error_in_one_outcome_loses_none_before_it(ledger: Ledger) -> None:
    play = planned(ledger)
    steps = begun(play)

    broken = Outcome(output="c").model_copy(update={"usage": Usage.model_construct(input_tokens=0.5)})  # type: ignore[arg-type]  # no whole number

    with pytest.raises(ResponseError, match="not an integer"):
        commit(play, steps, last=broken)
    committed = commit(play, steps)

    assert (committed.result, committed.results_before, sent(committed)) == ("ok", ("again", "again"), ["end"])
    assert [play.events(name) for name in ("a", "b")] == [["started", "done"]] * 2
    assert play.do("end").run_status == "succeeded"


def test_a_sleep_is_not_ended_by_a_signal_that_came_before_it(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), wait("sleep", timeout_s=60, params={"sleeps": True}), edges=row("a", "sleep"))

    assert ledger.steps.signal("run", "sleep", 1)[0] == "unknown"
    play.do("a")

    assert (play.words("sleep"), play.events("sleep")) == ("waiting_signal", ["sleeping"])
    assert ledger.steps.signal("run", "sleep", 1)[0] == "unknown"
    play.come_due("wait", "sleep")
    assert (play.words("sleep"), ledger.reader.read("run").status) == ("done", "succeeded")
