"""The ledger's promises about joins: branches not taken, quorums, deadlines, signals."""

from __future__ import annotations

import pytest

from cantata.flows.graph import START, Edge, Graph, Outcome
from cantata.ledger.ledger import Ledger
from tests.examples import thorough
from tests.integration.state.play import Play, fan_in, row, sent, wait, work
from tests.integration.state.test_ledger_expansion import mapped

LONG = 10_000

# edges taken and not taken


@pytest.mark.parametrize("how", ["not taken", "taken"])
def test_a_row_of_ten_thousand_is_no_burden(ledger: Ledger, how: str) -> None:
    play = Play(ledger)
    ids = tuple(f"s{n}" for n in range(LONG))
    first = Edge(source="branch", target="s0", label="never")
    play.plan(
        work("branch"),
        *(work(step_id) for step_id in ids),
        work("join"),
        edges=(first, *row(*ids, "join"), *row("branch", "join")),
    )

    if how == "not taken":
        assert sent(play.do("branch")) == ["join"]
        assert play.words("s0", f"s{LONG - 1}") == "skipped skipped"
    else:
        assert sent(play.do("branch", takes=("never",))) == ["s0"]
        assert play.fail("s0").run_status == "failed"
        assert play.words("branch", f"s{LONG - 1}") == "done skipped"


@pytest.mark.slow("ten thousand calls")
def test_a_row_of_many_signals_that_came_first_is_no_burden(ledger: Ledger) -> None:
    play = Play(ledger)
    ids = tuple(f"w{n}" for n in range(thorough(LONG, plain=LONG // 5)))
    for step_id in ids[1:]:
        ledger.steps.signal("run", step_id, step_id)
    play.plan(*(wait(step_id) for step_id in ids), work("end", reads={"last": ids[-1]}), edges=row(*ids, "end"))

    word, ready = ledger.steps.signal("run", "w0", "go")

    assert (word, [one.step_id for one in ready]) == ("taken", ["end"])
    assert play.begin("end").inputs == {"last": ids[-1]}


# quorums and deadlines


def test_a_quorum_goes_on_without_those_who_are_late(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(
        work("a"),
        work("b", on_error="skip"),
        work("c"),
        work("d"),
        work("join", quorum=2, reads={"c": "c", "d": "d"}),
        work("after_d"),
        edges=(*fan_in(("a", "b", "c", "d"), "join"), *row("d", "after_d")),
    )
    late = play.begin("d")
    play.do("a")
    play.fail("b")

    committed = play.do("c", "in time")

    assert sent(committed) == ["join", "after_d"]
    assert play.begin("join").inputs == {"c": "in time", "d": None}
    error = play.step("d").error
    assert error is not None
    assert error.code == "missed_deadline"
    assert play.events("d") == ["started", "missed_deadline"]
    assert ledger.leases.renew([late.lease]) == {late.lease}
    assert play.commit(late, "too late").result == "stale"
    assert play.output("d") is None


def test_a_quorum_that_cannot_be_reached_waits_for_all(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(
        work("a", on_error="skip"), work("b", on_error="skip"), work("join", quorum=2), edges=fan_in(("a", "b"), "join")
    )

    assert sent(play.fail("a")) == []
    assert sent(play.do("b")) == ["join"]


def test_a_quorum_that_is_reached_as_its_join_is_added_fires_it_once(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("g"), work("h"))
    play.do("a")

    by_growth = play.do("g", fragment=Graph(steps=(work("join", quorum=1),), edges=fan_in(("g", "a"), "join")))
    late = play.do(
        "h",
        fragment=Graph(
            steps=(work("other", quorum=1), wait("w")), edges=(*fan_in(("a", "w"), "other"), *row("a", "w"))
        ),
    )

    assert sent(by_growth) == ["join"]
    assert sent(late) == ["other"]
    assert play.words("w") == "failed"


def test_what_a_late_one_grew_is_stopped(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), work("join", quorum=1, reads={"b": "b"}), edges=fan_in(("a", "b"), "join"))
    play.do(
        "b",
        fragment=Graph(
            steps=(work("x", scope="b"), work("y", scope="b"), work("e")), edges=row("x", "y", "e"), exit="e"
        ),
    )
    play.do(
        "x",
        fragment=Graph(
            steps=(work("deep", scope="x"), work("x_end", scope="b")), edges=row("deep", "x_end"), exit="x_end"
        ),
    )
    held = play.begin("deep")

    committed = play.do("a")

    assert sent(committed) == ["join"]
    assert play.words("x", "deep", "x_end", "y", "e") == "done skipped skipped skipped failed"
    assert ledger.leases.renew([held.lease]) == {held.lease}
    assert play.begin("join").inputs == {"b": None}


@pytest.mark.parametrize("how", ["quorum", "deadline"])
def test_late_items_of_a_map_are_stopped_and_those_not_sent_never_are(ledger: Ledger, how: str) -> None:
    play = Play(ledger)
    play.plan(work("map"))
    play.do("map", fragment=mapped("map", tuple(range(8)), window=2, gather={"quorum": 2, "deadline_s": 60}))
    late = play.begin("map/1")
    assert sent(play.do("map/0")) == ["map/2"]

    answer = play.do("map/2") if how == "quorum" else play.come_due("join", "map/gather")

    assert sent(answer) == ["map/gather"]
    assert play.words(*(f"map/{n}" for n in range(3, 8))) == " ".join(["failed"] * 5)
    assert play.commit(late).result == "stale"
    assert play.do("map/gather").run_status == "succeeded"


def test_an_edge_from_one_who_was_late_goes_on_with_null(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), work("g"), work("join", quorum=1), edges=fan_in(("a", "b"), "join"))
    play.do("a")

    expanded = play.do(
        "g",
        fragment=Graph(
            steps=(work("x"), work("y")), edges=(*row("b", "x"), Edge(source="b", target="y", label="failed"))
        ),
    )

    assert sent(expanded) == ["x"]
    assert play.words("b", "y") == "failed skipped"


def test_an_edge_from_one_who_aborted_is_never_taken(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a", on_error="skip"), work("g"))
    play.do(
        "a", fragment=Graph(steps=(work("x", scope="a"), work("e", on_error="skip")), edges=row("x", "e"), exit="e")
    )
    play.fail("x")

    play.do(
        "g",
        fragment=Graph(
            steps=(work("y"), work("z")), edges=(*row("x", "y"), Edge(source="x", target="z", label="failed"))
        ),
    )

    assert play.words("y", "z") == "skipped skipped"


# signals


def test_a_step_that_waits_holds_no_worker_and_goes_on_with_its_signal(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), wait("w"), work("b", reads={"said": "w"}), edges=row("a", "w", "b"))

    assert sent(play.do("a")) == []
    assert play.words("w") == "waiting_signal"
    word, ready = ledger.steps.signal("run", "w", {"ok": True})

    assert (word, [one.step_id for one in ready]) == ("taken", ["b"])
    assert play.begin("b").inputs == {"said": {"ok": True}}
    assert play.events("w") == ["waiting", "signal", "done"]


def test_a_signal_counts_once(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), wait("w"), wait("v"), edges=row("a", "w"))

    assert [ledger.steps.signal("run", "w", n)[0] for n in range(2)] == ["kept", "over"]
    assert [ledger.steps.signal("run", "v", n)[0] for n in range(2)] == ["taken", "over"]
    play.do("a")

    assert (play.output("w"), play.output("v")) == (0, 0)
    assert ledger.steps.signal("run", "w", 3) == ("closed", ())


def test_a_signal_that_comes_before_its_step_is_kept(ledger: Ledger) -> None:
    play = Play(ledger)
    assert ledger.steps.signal("run", "w", "early") == ("kept", ())

    committed = play.plan(wait("w", timeout_s=60), work("b"), edges=row("w", "b"))

    assert sent(committed) == ["b"]
    assert play.output("w") == "early"


def test_a_signal_finds_what_answers_to_its_name(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("ask"), work("b"), edges=row("ask", "b"))
    play.do("ask", fragment=Graph(steps=(wait("reply"),), exit="reply"))

    word, ready = ledger.steps.signal("run", "ask", 1)

    assert (word, [one.step_id for one in ready]) == ("taken", ["b"])


def grown_waits(ledger: Ledger, *ids: str) -> Play:
    """A run whose step `flow` grew these steps."""
    play = Play(ledger)
    play.plan(work("flow"))
    play.do("flow", fragment=Graph(steps=tuple(wait(step_id) for step_id in ids), exit=ids[-1]))
    return play


def test_a_signal_finds_the_one_step_whose_id_ends_so(ledger: Ledger) -> None:
    play = grown_waits(ledger, "flow/ask", "flow/mask")

    assert ledger.steps.signal("run", "ask", 1)[0] == "taken"
    assert ledger.steps.signal("run", "ask", 2)[0] == "over"

    assert (play.output("flow/ask"), play.words("flow/mask")) == (1, "waiting_signal")


def test_a_signal_that_may_be_for_several_steps_is_for_none(ledger: Ledger) -> None:
    play = grown_waits(ledger, "flow/one/ask", "flow/two/ask")

    assert ledger.steps.signal("run", "ask", 1) == ("unclear", ())
    assert ledger.steps.signal("run", "one/ask", 1)[0] == "taken"
    assert ledger.steps.signal("run", "ask", 2)[0] == "taken"

    assert play.output("flow/two/ask") == 2


def test_a_signal_by_the_end_of_an_id_is_kept_for_one_step(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("flow"))
    assert [ledger.steps.signal("run", "ask", n)[0] for n in range(2)] == ["kept", "over"]

    play.do("flow", fragment=Graph(steps=(wait("flow/one/ask"), wait("flow/two/ask")), exit="flow/two/ask"))

    assert play.output("flow/one/ask") == 0
    assert play.words("flow/two/ask") == "waiting_signal"


def test_a_signal_for_the_end_of_an_id_that_waits_for_none_is_refused(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("flow"))
    play.do("flow", fragment=Graph(steps=(work("flow/a"),), exit="flow/a"))

    assert ledger.steps.signal("run", "a", 1) == ("unknown", ())


def test_a_signal_for_a_step_that_the_run_does_not_have_is_refused_while_others_wait(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), wait("flow/approval"), wait("flow/later"), edges=row("a", "flow/approval", "flow/later"))
    assert ledger.steps.signal("run", "early", 1)[0] == "kept"
    play.do("a")

    assert ledger.steps.signal("run", "approva", 1) == ("unknown", ())
    assert ledger.steps.signal("run", "later", 1)[0] == "kept"
    assert ledger.steps.signal("run", "approval", 1)[0] == "taken"


def test_a_step_that_waits_for_no_signal_refuses_one(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), wait("w"))

    assert ledger.steps.signal("run", "a", 1) == ("unknown", ())
    play.do("a")
    assert ledger.steps.signal("run", "a", 1) == ("unknown", ())
    ledger.runs.cancel("run")
    assert ledger.steps.signal("run", "w", 1) == ("closed", ())


@pytest.mark.parametrize("given", [None, "the default"])
def test_a_wait_that_takes_too_long_ends_with_its_default(ledger: Ledger, given: str | None) -> None:
    play = Play(ledger)
    play.plan(wait("w", timeout_s=60, given=given), work("b", reads={"said": "w"}), edges=row("w", "b"))

    assert sent(play.come_due("wait", "w")) == ["b"]
    assert play.begin("b").inputs == {"said": given}
    assert ledger.steps.signal("run", "w", 1) == ("over", ())


def test_a_join_counts_a_signal(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(wait("w"), work("a"), work("join", quorum=1), edges=fan_in(("w", "a"), "join"))

    word, ready = ledger.steps.signal("run", "w", 1)

    assert (word, [one.step_id for one in ready]) == ("taken", ["join"])
    assert play.words("a") == "failed"


def test_the_outcome_of_the_first_step_may_be_read(ledger: Ledger) -> None:
    play = Play(ledger)
    play.commit(
        play.begin(START),
        outcome=Outcome(output="the request", fragment=Graph(steps=(work("a", reads={"asked": f"={START}"}),))),
    )

    assert play.begin("a").inputs == {"asked": "the request"}
