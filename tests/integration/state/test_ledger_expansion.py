"""The ledger's promises about growth: fragments, exits, scopes, loops, and maps with windows."""

from __future__ import annotations

import pytest

from cantata.flows.graph import START, Edge, Graph, ItemSteps, Outcome, Step
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Ahead
from cantata.values import JsonValue
from tests.integration.state.play import Play, failed, fan_in, row, sent, wait, work
from tests.waiting import until


def fragment(*steps: Step, edges: tuple[Edge, ...] = (), exit: str | None = None) -> Graph:
    """A fragment in few words."""
    return Graph(steps=steps, edges=edges, exit=exit)


def mapped(
    parent: str,
    given: tuple[JsonValue, ...],
    *,
    window: int = 2,
    gather: dict[str, object] | None = None,
    **spec: object,
) -> Graph:
    """A map as the chains grow it: a step an item, and a gather that takes the map's place."""
    return Graph(
        steps=(
            work(f"{parent}/item", **{"window": parent, "scope": parent, **spec}),
            work(f"{parent}/gather", reads={"first": f"{parent}/0"}, **(gather or {})),
        ),
        edges=row(f"{parent}/item", f"{parent}/gather"),
        items=ItemSteps(like=f"{parent}/item", prefix=parent, given=given, window=window),
        exit=f"{parent}/gather",
    )


# exits


def test_what_a_step_grows_comes_between_it_and_its_successors(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b", reads={"a": "a", "raw": "=a"}), edges=row("a", "b"))

    expanded = play.do("a", "asked", fragment=fragment(work("x"), work("y"), edges=row("x", "y"), exit="y"))

    assert sent(expanded) == ["x"]
    assert play.words("a", "x", "y", "b") == "done sent waiting waiting"
    assert sent(play.do("x")) == ["y"]
    assert sent(play.do("y", "answered")) == ["b"]
    assert play.begin("b").inputs == {"a": "answered", "raw": "asked"}
    assert (play.events("a"), play.events("y")) == (["started", "expanded"], ["started", "done"])


def test_an_exit_may_grow_in_turn(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("turn"), work("after", reads={"answer": "turn", "first": "=turn"}), edges=row("turn", "after"))
    for n in range(20):
        before = f"turn{n}" if n else "turn"
        tool, turn = f"tool{n}", f"turn{n + 1}"
        play.do(before, n, fragment=fragment(work(tool), work(turn), edges=row(tool, turn), exit=turn))
        play.do(f"tool{n}")

    assert sent(play.do("turn20", "the answer")) == ["after"]
    assert play.begin("after").inputs == {"answer": "the answer", "first": 0}
    record = ledger.reader.read("run").answering("turn")
    assert record is not None
    assert record.step_id == "turn20"
    assert ledger.reader.answering("run", ["turn", "tool3", "nobody"]) == ["turn20", "tool3", "nobody"]


def test_growth_without_an_exit_stands_beside_its_grower(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b", reads={"a": "a"}), edges=row("a", "b"))

    expanded = play.do("a", 1, fragment=fragment(work("x"), work("y"), edges=(*row("a", "x"), *row("x", "y"))))

    assert sorted(sent(expanded)) == ["b", "x"]
    assert play.begin("b").inputs == {"a": 1}
    assert play.words("y") == "waiting"


def test_growth_told_twice_grows_once(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), edges=row("a", "b"))
    begun = play.begin("a")
    outcome = Outcome(fragment=mapped("a", (1, 2, 3)))
    first = play.commit(begun, outcome=outcome)
    play.do("a/0")

    again = play.commit(begun, outcome=outcome)

    assert sent(first) == ["a/0", "a/1"]
    assert (again.result, sent(again)) == ("again", [])
    assert ledger.reader.read("run").count == 7


def test_an_edge_from_a_step_that_is_over_is_resolved_at_once(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(
        work("done"),
        work("g"),
        work("failed", on_error="jump"),
        work("skipped"),
        work("left"),
        edges=row("failed", "skipped"),
    )
    play.do("done")
    play.fail("failed")
    play.do("left", takes=("left",))

    expanded = play.do(
        "g",
        fragment=fragment(
            *(work(f"x{n}") for n in range(5)),
            edges=(
                Edge(source="done", target="x0"),
                Edge(source="failed", target="x1"),
                Edge(source="failed", target="x2", label="failed"),
                Edge(source="skipped", target="x3"),
                Edge(source="left", target="x4", label="left"),
            ),
        ),
    )

    assert sorted(sent(expanded)) == ["x0", "x2", "x4"]
    assert play.words("x1", "x3") == "skipped skipped"


def test_an_edge_from_a_step_that_grew_waits_for_what_answers_for_it(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("g"))
    play.do("a", fragment=fragment(work("exit"), exit="exit"))

    expanded = play.do("g", fragment=fragment(work("x", reads={"a": "a"}), edges=row("a", "x")))

    assert (sent(expanded), play.words("x")) == ([], "waiting")
    assert sent(play.do("exit", "answer")) == ["x"]
    assert play.begin("x").inputs == {"a": "answer"}


def test_a_new_edge_to_a_step_that_has_begun_is_too_late(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("retrying"), work("running"), work("done"), work("g"))
    play.commit(play.begin("retrying"), outcome=Outcome(status="retry", retry_in_s=9))
    play.begin("running")
    play.do("done")

    expanded = play.do(
        "g", fragment=fragment(work("x"), edges=(*row("done", "retrying"), *row("x", "retrying"), *row("x", "running")))
    )

    assert sent(expanded) == ["x"]
    assert play.words("retrying") == "waiting"
    assert sent(play.do("x")) == []
    assert sent(play.come_due("retry", "retrying")) == ["retrying"]


def test_a_run_may_not_grow_past_its_limit(ledger: Ledger) -> None:
    play = Play(ledger, max_steps=4)
    play.plan(work("a"), work("b"))
    play.do("a", fragment=fragment(work("x"), exit="x"))

    committed = play.do("b", fragment=fragment(work("y"), exit="y"))

    assert committed.run_status == "failed"
    record = ledger.reader.read("run")
    assert record.count == 4
    assert record.steps.keys() == {START, "a", "b", "x"}
    assert record.error is not None
    assert (record.error.code, record.error.step) == ("too_many_steps", "b")


def test_items_count_toward_the_limit(ledger: Ledger) -> None:
    play = Play(ledger, max_steps=7)
    play.plan(work("fits"), work("over", on_error="skip"), work("next"), edges=row("over", "next"))
    play.do("fits", fragment=mapped("fits", (1, 2)))

    committed = play.do("over", fragment=mapped("over", (1,)))

    assert sent(committed) == ["next"]
    error = play.step("over").error
    assert error is not None
    assert error.code == "too_many_steps"


# scopes


def grown_team(play: Play, on_error: str = "abort") -> None:
    """`a` grows x → y → exit beside z; all in its scope, and the exit fails as `a` would."""
    play.plan(work("a", on_error=on_error), work("b", reads={"a": "a"}), work("other"), edges=row("a", "b"))
    team = (work("x", scope="a"), work("y", scope="a"), work("z", scope="a"), work("exit", on_error=on_error))
    play.do("a", fragment=fragment(*team, edges=(*row("x", "y", "exit"), *row("z", "exit")), exit="exit"))


def test_a_failure_inside_a_scope_fails_its_exit_as_the_grower_would(ledger: Ledger) -> None:
    play = Play(ledger)
    grown_team(play, "skip")
    held = play.begin("z")

    committed = play.fail("x")

    assert sent(committed) == ["b"]
    assert play.words("x", "y", "z", "exit", "other") == "failed skipped skipped failed sent"
    error = play.step("exit").error
    assert error is not None
    assert (error.code, error.step) == ("broke", "x")
    assert ledger.leases.renew([held.lease]) == {held.lease}
    assert play.commit(held, "too late").result == "stale"
    assert play.begin("b").inputs == {"a": None}


def test_a_failure_inside_a_scope_that_aborts_ends_the_run(ledger: Ledger) -> None:
    play = Play(ledger)
    grown_team(play)

    assert play.fail("x").run_status == "failed"
    assert play.words("x", "exit", "b", "other") == "failed failed skipped skipped"


def test_a_failure_passes_through_scopes_until_one_feels_it(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(
        work("a", on_error="jump"),
        work("b"),
        work("mend"),
        edges=(*row("a", "b"), Edge(source="a", target="mend", label="failed")),
    )
    play.do(
        "a",
        fragment=fragment(
            work("in", scope="a"), work("a_exit", on_error="jump"), edges=row("in", "a_exit"), exit="a_exit"
        ),
    )
    play.do(
        "in",
        fragment=fragment(
            work("deep", scope="in"), work("in_exit", scope="a"), edges=row("deep", "in_exit"), exit="in_exit"
        ),
    )

    committed = play.fail("deep")

    assert sent(committed) == ["mend"]
    assert play.words("deep", "in_exit", "a_exit", "b") == "failed failed failed skipped"


def test_a_failure_beside_an_exit_that_is_over_is_felt_around_the_scope(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"), edges=row("a", "b"))
    play.do("a", fragment=fragment(work("exit"), work("straggler", scope="a"), exit="exit"))
    play.do("exit")

    committed = play.fail("straggler")

    assert (committed.result, committed.run_status) == ("ok", "failed")
    assert play.words("exit", "straggler", "b") == "done failed skipped"


def test_a_failure_in_a_scope_without_an_exit_is_felt_around_it(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a"), work("b"))
    play.do("a", fragment=fragment(work("x", scope="a"), work("y", scope="a")))

    assert play.fail("x").run_status == "failed"
    assert play.words("x", "y", "b") == "failed skipped skipped"


def test_what_leads_out_of_a_stopped_scope_does_not_hold_others_up(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(
        work("a", on_error="skip"),
        work("b"),
        work("join"),
        work("other"),
        edges=(*row("a", "b"), *row("other", "join")),
    )
    team = work("x", scope="a"), work("y", scope="a"), work("exit", on_error="skip")
    play.do("a", fragment=fragment(*team, edges=(*row("x", "exit"), *row("x", "join"), *row("y", "join")), exit="exit"))
    play.do("other")
    assert play.words("join") == "waiting"

    committed = play.fail("x")

    assert sorted(sent(committed)) == ["b", "join"]


def test_an_exit_inside_a_scope_is_stopped_with_it(ledger: Ledger) -> None:
    play = Play(ledger)
    grown_team(play, "skip")
    play.do(
        "z",
        fragment=fragment(work("in", scope="z"), work("z_exit", scope="a"), edges=row("in", "z_exit"), exit="z_exit"),
    )
    play.do("in")
    held = play.begin("z_exit")

    assert sent(play.fail("x")) == ["b"]
    assert play.words("in", "z_exit") == "done skipped"
    assert ledger.leases.renew([held.lease]) == {held.lease}


def test_what_a_loop_grows_is_in_the_scope_around_it(ledger: Ledger) -> None:
    play = Play(ledger)
    grown_team(play, "skip")
    round_again = Graph(
        steps=(work("in", scope="a"), work("z#1", scope="a")), edges=row("in", "z#1"), exit="z#1", scoped=False
    )
    play.do("z", fragment=round_again)

    assert sent(play.fail("in")) == ["b"]
    assert play.words("x", "z#1") == "skipped skipped"


def test_an_item_that_aborts_stops_its_map(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("map", on_error="skip"), work("b"), edges=row("map", "b"))
    play.do("map", fragment=mapped("map", tuple(range(10)), gather={"on_error": "skip"}))

    assert sent(play.fail("map/0")) == ["b"]
    assert play.words("map/0", "map/1", "map/2", "map/9", "map/gather") == "failed skipped skipped skipped failed"
    assert ledger.redis.exists(f"{play.shard}:run:run:backlog:map") == 0


def test_two_unscoped_maps_in_one_scope_are_both_stopped(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a", on_error="skip"), work("b"), edges=row("a", "b"))
    team = (work("m", scope="a"), work("n", scope="a"), work("bad", scope="a"), work("exit", on_error="skip"))
    play.do("a", fragment=fragment(*team, edges=fan_in(("m", "n", "bad"), "exit"), exit="exit"))
    for parent in ("m", "n"):
        graph = mapped(parent, (1, 2, 3), scope="a", gather={"scope": "a"})
        play.do(parent, fragment=graph.model_copy(update={"scoped": False}))

    assert sent(play.fail("bad")) == ["b"]
    assert play.words("m/0", "m/1", "m/2", "n/0", "n/1", "n/2") == " ".join(["skipped"] * 6)


@pytest.mark.parametrize("end", ["failed", "cancelled", "timed_out"])
def test_the_end_of_a_run_stops_its_maps(ledger: Ledger, end: str) -> None:
    play = Play(ledger)
    play.plan(work("map"), work("b"))
    play.do("map", fragment=mapped("map", tuple(range(9))))

    if end == "failed":
        play.fail("b")
    elif end == "cancelled":
        ledger.runs.cancel("run")
    else:
        play.come_due("deadline")

    assert play.status == end
    assert ledger.redis.exists(f"{play.shard}:run:run:backlog:map") == 0


# loops


def test_a_loop_grows_its_body_again_and_moves_its_names(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(
        work("draft"),
        work("review", reads={"text": "draft"}),
        work("again?"),
        work("after", reads={"text": "draft"}),
        edges=(*row("draft", "review", "again?"), Edge(source="again?", target="after", label="good")),
    )
    for n in range(3):
        mark, following = (f"#{n}" if n else ""), f"#{n + 1}"
        play.do(f"draft{mark}", f"text {n}")
        review = play.begin(f"review{mark}")
        assert review.inputs == {"text": f"text {n}"}
        play.commit(review)
        body = Graph(
            steps=(
                work(f"draft{following}"),
                work(f"review{following}", reads={"text": "draft"}),
                work(f"again?{following}"),
            ),
            edges=row(f"draft{following}", f"review{following}", f"again?{following}"),
            exit=f"again?{following}",
            scoped=False,
            names={"draft": f"draft{following}", "review": f"review{following}"},
        )
        assert sent(play.do(f"again?{mark}", fragment=body)) == [f"draft{following}"]
    play.do("draft#3", "the last")
    play.do("review#3")

    committed = play.do("again?#3", takes=("good",))

    assert sent(committed) == ["after"]
    assert play.begin("after").inputs == {"text": "the last"}
    assert play.output("draft") == "text 0"


def test_a_failure_in_a_loop_fails_what_the_loop_would_fail(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a", on_error="skip"), work("b"), edges=row("a", "b"))
    inner = (work("body", scope="a"), work("again?", scope="a"), work("end", on_error="skip"))
    play.do("a", fragment=fragment(*inner, edges=row("body", "again?", "end"), exit="end"))
    play.do("body")
    more = Graph(
        steps=(work("body#1", scope="a"), work("side#1", scope="a"), work("again?#1", scope="a")),
        edges=row("body#1", "again?#1"),
        exit="again?#1",
        scoped=False,
        names={"body": "body#1"},
    )
    play.do("again?", fragment=more)

    committed = play.fail("body#1")

    assert sent(committed) == ["b"]
    assert play.words("body#1", "side#1", "again?#1", "end") == "failed skipped skipped failed"


# maps


def test_steps_may_hang_on_several_items_of_a_map(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("m"), work("other"))
    play.do("m", fragment=mapped("m", (1, 2)))

    play.do("other", fragment=Graph(steps=(work("x"), work("y")), edges=(*row("m/0", "x"), *row("m/1", "y"))))

    assert sent(play.do("m/0")) == ["x"]
    assert play.words("x", "y") == "sent waiting"
    assert sent(play.do("m/1")) == ["m/gather", "y"]


def written_bytes(ledger: Ledger) -> int:
    """What Redis has written to its log so far."""
    until(lambda: ledger.redis.info("persistence")["aof_buffer_length"] == 0, "the log's buffer on disk")
    return int(ledger.redis.info("persistence")["aof_current_size"])


def bytes_an_item(ledger: Ledger, width: int) -> float:
    """What is written for an item of a map so wide while it works as an agent does: it calls a tool, and goes on."""
    play = Play(ledger, f"run-{width:04}")
    play.plan(work("map"), work("b"), edges=row("map", "b"))
    play.do("map", fragment=mapped("map", tuple(range(width)), window=width))
    before = written_bytes(ledger)
    for item in (f"map/{n}" for n in range(width)):
        round_ = fragment(
            work(f"{item}.t1", scope=item),
            work(f"{item}.r1", scope="map"),
            edges=row(f"{item}.t1", f"{item}.r1"),
            exit=f"{item}.r1",
        )
        play.do(item, fragment=round_)
        play.do(f"{item}.t1")
        play.do(f"{item}.r1")
    return (written_bytes(ledger) - before) / width


def test_an_item_that_expands_costs_the_same_in_a_wide_map(ledger: Ledger) -> None:
    narrow, wide = bytes_an_item(ledger, 20), bytes_an_item(ledger, 400)

    assert wide <= 1.1 * narrow


def on_the_way(play: Play, prefix: str) -> list[str]:
    """The items that have been sent and are not over."""
    steps = play.ledger.reader.read(play.run_id).steps
    return [
        step_id for step_id, step in steps.items() if step_id.startswith(prefix) and step.state in ("sent", "running")
    ]


def test_a_map_runs_every_item_once_and_never_more_at_once_than_its_window(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("map"), work("after", reads={"all": "map"}), edges=row("map", "after"))
    ready = sent(play.do("map", fragment=mapped("map", tuple(range(10)), window=3)))
    ran: list[JsonValue] = []
    while ready and ready[0] != "map/gather":
        assert len(on_the_way(play, "map/")) == min(3, 10 - len(ran))
        begun = play.begin(ready.pop(0))
        ran.append(begun.given)
        ready += sent(play.commit(begun, begun.given))

    assert ran == list(range(10))
    assert ready == ["map/gather"]
    assert play.begin("map/gather").inputs == {"first": 0}


def test_a_wide_window_is_refilled_a_quarter_at_a_time(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("map"))
    play.do("map", fragment=mapped("map", tuple(range(100)), window=40))

    sends = [len(sent(play.do(f"map/{n}"))) for n in range(40)]

    assert sends == ([0] * 9 + [10]) * 4
    assert len(on_the_way(play, "map/")) == 40


@pytest.mark.parametrize("count", [1, 2, 500, 501, 1001])
def test_a_map_of_any_size_ends(ledger: Ledger, count: int) -> None:
    play = Play(ledger)
    play.plan(work("map"))
    ready = [r.step_id for r in play.do("map", fragment=mapped("map", (None,) * count, window=256)).sends]
    done = 0
    while ready:
        done += 1
        ready += sent(play.do(ready.pop()))

    assert (done, play.status) == (count + 1, "succeeded")


def test_an_empty_map_goes_on_with_its_gather(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("map"), work("after"), edges=row("map", "after"))

    assert sent(play.do("map", fragment=mapped("map", ()))) == ["map/gather"]
    assert sent(play.do("map/gather")) == ["after"]


def test_a_message_cannot_begin_an_item_that_waits_for_the_window(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("map"))
    play.do("map", fragment=mapped("map", (0, 1, 2), window=1))

    assert play.refusal("map/2") == "early"
    committed = play.do("map/0", ahead=Ahead("tools", next_step="map/2"))
    assert (committed.begun, sent(committed)) == (None, ["map/1"])
    assert sent(play.do("map/1")) == ["map/2"]
    assert sent(play.do("map/2")) == ["map/gather"]


def test_an_item_that_grows_keeps_its_place_in_the_window(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("map"))
    play.do("map", fragment=mapped("map", (0, 1, 2), window=1))

    turn = work("x", scope="map/0"), work("y", scope="map", window="map")
    expanded = play.do("map/0", fragment=fragment(*turn, edges=row("x", "y"), exit="y"))

    assert sent(expanded) == ["x"]
    assert sent(play.do("x")) == ["y"]
    assert sent(play.do("y")) == ["map/1"]
    assert sorted(sent(play.do("map/1", fragment=fragment(work("beside"))))) == ["beside", "map/2"]


def test_items_that_fail_or_retry_keep_the_window_moving(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("map"))
    play.do("map", fragment=mapped("map", tuple(range(4)), window=1, on_error="skip"))

    assert sent(play.fail("map/0")) == ["map/1"]
    assert sent(play.commit(play.begin("map/1"), outcome=Outcome(status="retry"))) == []
    assert sent(play.come_due("retry", "map/1")) == ["map/1"]
    assert sent(play.lose_lease(play.begin("map/1"))) == ["map/1"]
    assert sent(play.do("map/1")) == ["map/2"]
    assert sent(play.do("map/2")) == ["map/3"]
    assert sent(play.commit(play.begin("map/3"), outcome=failed())) == ["map/gather"]


def test_items_may_wait_for_signals(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("map"))
    ledger.steps.signal("run", "map/3", "early")
    play.do("map", fragment=mapped("map", tuple(range(5)), window=2, kind="wait"))
    assert play.words(*(f"map/{n}" for n in range(5))) == "waiting_signal waiting_signal ready ready ready"

    ledger.steps.signal("run", "map/0", 0)
    ledger.steps.signal("run", "map/1", 1)

    assert play.words(*(f"map/{n}" for n in range(5))) == "done done waiting_signal done waiting_signal"


def test_a_wide_map_whose_signals_came_first_ends_at_once(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("map"))
    for n in range(2000):
        assert ledger.steps.signal("run", f"map/{n}", n) == ("kept", ())

    expanded = play.do("map", fragment=mapped("map", (None,) * 2000, window=100, kind="wait"))

    assert sent(expanded) == ["map/gather"]


def test_steps_of_a_map_share_one_spec(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("map"))

    sends = play.do("map", fragment=mapped("map", ("a", "b"), params={"p": 1})).sends

    assert [ready.spec.params for ready in sends] == [{"p": 1}, {"p": 1}]
    assert [play.begin(ready.step_id).given for ready in sends] == ["a", "b"]
    assert play.step("map/1").spec == sends[0].spec


def test_growth_that_fails_its_step_leaves_no_trace_of_it(ledger: Ledger) -> None:
    play = Play(ledger, max_steps=3)
    play.plan(wait("w"), work("a", on_error="skip"))

    play.do("a", fragment=Graph(steps=(work("x", deadline_s=9),), names={"w": "x"}))

    record = ledger.reader.read("run")
    assert (record.count, dict(record.names), play.events("a")) == (3, {}, ["started", "failed"])


def test_a_failure_finds_the_run_though_names_moved_inwards(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a", on_error="jump"))
    play.do("a", fragment=fragment(work("b"), work("bad"), work("z", on_error="jump"), edges=row("b", "z"), exit="z"))
    inner = fragment(work("c", on_error="jump"), work("y", on_error="jump"), exit="y")
    play.do("b", fragment=inner.model_copy(update={"names": {"z": "c"}}))
    for step_id in ("c", "y", "z"):
        play.do(step_id)

    play.commit(play.begin("bad"), outcome=failed())

    assert play.status == "failed", "and Redis did not search for ever"


def test_a_step_whose_name_is_taken_is_not_grown(ledger: Ledger) -> None:
    play = Play(ledger)
    play.plan(work("a", expands=True), work("b"), terminals=("a", "b"))
    play.do("b", "first")
    committed = play.do("a", fragment=Graph(steps=(work("b"),), exit="b"))
    assert committed.run_status == "failed"
    error = ledger.reader.read(play.run_id).error
    assert error
    assert error.code == "name_taken"
    assert play.output("b") == "first"
