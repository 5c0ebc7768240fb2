"""The view of a run follows from its events alone; so do the lines and the rows that show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from rich.console import Console

from cantata.client.view import RunView, StepProgress
from cantata.flows.events import RunEvent, event_of
from cantata.surfaces.cli.views.live_view import render
from cantata.surfaces.cli.views.plain_view import NO_NAMES, apply_and_describe
from cantata.surfaces.cli.views.run_tree import Row, rows
from cantata.values import JsonValue

BEGAN = 1_000_000


class History:
    """Events of one run, numbered and a second apart."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    def add(
        self,
        kind: str,
        step: str | None = None,
        *,
        attempt: int | None = None,
        worker: str | None = None,
        **detail: JsonValue,
    ) -> History:
        seq = len(self.events) + 1
        event = event_of(
            seq=seq,
            run_id="r1",
            at_ms=BEGAN + 1000 * seq,
            type=kind,
            step=step,
            attempt=attempt,
            worker=worker,
            **detail,
        )
        self.events.append(event)
        return self

    def start(self, *steps: str) -> History:
        for step in steps:
            self.add("started", step, attempt=1)
        return self

    def done(self, *steps: str) -> History:
        for step in steps:
            self.add("done", step, attempt=1)
        return self

    def failed(self, step: str, message: str = "no") -> History:
        return self.add("failed", step, attempt=1, error={"code": "e", "message": message})

    def view(self, *plan: str) -> RunView:
        return RunView("r1").with_plan(plan).apply(*self.events)

    def lines(self, *plan: str, names: Mapping[str, str] = NO_NAMES) -> list[str]:
        view, lines = RunView("r1").with_plan(plan), []
        for event in self.events:
            view, line = apply_and_describe(view, event, names)
            lines += [line.partition(" ")[2]] if line else []
        return lines


def begun() -> History:
    return History().add("accepted").start("@start").add("expanded", "@start", steps=2)


def rendered(view: RunView, now_ms: float = BEGAN) -> str:
    console = Console(width=100, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(render(view, now_ms))
    return capture.get()


def names(tree: Iterable[Row]) -> list[str]:
    return ["  " * row.depth + row.name for row in tree]


# Steps


def test_a_planned_step_waits_until_it_is_started() -> None:
    view = begun().start("a").view("a", "b")

    assert (view.steps["a"].state, view.steps["b"].state) == ("running", "waiting")
    assert view.status == "running"
    assert "@start" not in view.steps


def test_a_finished_step_has_its_duration() -> None:
    view = begun().start("a").done("a").view()

    assert (view.steps["a"].state, view.steps["a"].took_ms) == ("done", 1000)


def test_events_one_by_one_and_at_once_give_the_same_view() -> None:
    history = (
        begun()
        .start("m")
        .add("expanded", "m", steps=4)
        .start("m/0", "m/1")
        .done("m/0")
        .failed("m/1")
        .start("m/2")
        .done("m/2", "m/@gather")
    )

    one_by_one = RunView("r1").with_plan(["m"])
    for event in history.events:
        one_by_one = one_by_one.apply(event)

    assert one_by_one == history.view("m")


def test_a_retry_has_its_reason_and_the_next_attempt_counts() -> None:
    history = begun().start("a").add("retry", "a", attempt=1, error={"code": "e", "message": "busy"})
    waiting = history.view().steps["a"]
    again = history.add("started", "a", attempt=2).view().steps["a"]

    assert (waiting.state, waiting.note) == ("waiting", "busy")
    assert (again.state, again.attempt) == ("running", 2)


def test_a_step_whose_worker_died_is_lost_until_another_takes_it() -> None:
    view = begun().start("a").add("lost", "a", attempt=1, worker="tools@x#7").view()

    assert view.steps["a"].state == "ready"
    assert "tools@x#7" in view.steps["a"].note


def test_a_refused_step_is_told_until_it_starts_also_one_that_only_advances_a_workflow() -> None:
    history = begun().start("w/@1/@advance").add("refused", "w/@1/@advance", worker="tools@x", message="other code")

    assert "! stopped: other code" in rendered(history.view())
    assert history.lines()[-1] == "refused w by tools@x: other code"
    assert "stopped" not in rendered(history.add("started", "w/@1/@advance", attempt=2).view())


def test_a_queue_without_workers_is_told_until_one_takes_the_step() -> None:
    history = begun().add("unserved", "a", queue="gpu", message="no worker serves queue 'gpu'")

    assert "! no worker serves queue 'gpu'" in rendered(history.view("a"))
    assert history.lines("a")[-1] == "warning: no worker serves queue 'gpu'"
    assert "gpu" not in rendered(history.start("a").view("a"))


def test_a_long_error_is_cut_before_the_id_of_its_step() -> None:
    shown = rendered(begun().start("flow/2.collect_the_parts").failed("flow/2.collect_the_parts", "no " * 60).view())

    assert "flow/2.collect_the_parts" in shown
    assert len(shown.splitlines()) == 2


def test_when_a_run_ends_badly_what_was_not_over_is_stopped() -> None:
    view = begun().start("a", "b").failed("a").add("closed", status="failed").view("c")

    assert {name: seen.state for name, seen in view.steps.items()} == {"c": "stopped", "a": "failed", "b": "stopped"}
    assert view.status == "failed"


def test_when_a_run_succeeds_what_grew_steps_of_other_names_is_over_too() -> None:
    history = (
        begun().start("1.a").add("expanded", "1.a", steps=1).start("2.b").done("2.b").add("closed", status="succeeded")
    )

    assert {name: (seen.state, seen.took_ms) for name, seen in history.view().steps.items()} == {
        "1.a": ("done", 4000),
        "2.b": ("done", 1000),
    }


def test_a_warning_is_kept_once_however_often_it_comes() -> None:
    view = begun().add("warning", message="a hint").add("warning", message="a hint").view()

    assert view.warnings == ("a hint",)


def test_what_the_ledger_knows_of_finished_steps_is_learnt_once() -> None:
    view = begun().start("a", "b").done("a").view()
    assert view.without_usage() == ["a"]

    view = view.with_usage({"a": {"model": "local/x", "usage": {"input_tokens": 3, "output_tokens": 4}}})

    assert view.without_usage() == []
    assert (view.steps["a"].model, view.steps["a"].tokens_in, view.steps["a"].tokens_out) == ("local/x", 3, 4)


# Growth


def test_the_items_of_a_map_are_counted_not_kept() -> None:
    history = (
        begun()
        .start("m")
        .add("expanded", "m", steps=1001)
        .start("m/0", "m/1", "m/2")
        .done("m/0")
        .failed("m/1", "bad item")
    )
    view = history.view("m")

    items = view.steps["m"].items
    assert items is not None
    assert (items.total, items.done, items.failed, items.running) == (1000, 1, 1, frozenset({"m/2"}))
    assert view.steps["m"].note == "bad item"
    assert list(view.steps) == ["m"]


def test_a_map_is_over_when_its_results_are_gathered() -> None:
    view = (
        begun()
        .start("m")
        .add("expanded", "m", steps=2)
        .start("m/0")
        .done("m/0")
        .start("m/@gather")
        .done("m/@gather")
        .view("m")
    )

    assert view.steps["m"].state == "done"
    assert list(view.steps) == ["m"]


def test_a_map_within_what_was_grown_is_counted_too() -> None:
    view = (
        begun()
        .start("g")
        .add("expanded", "g", steps=2)
        .start("g/m")
        .add("expanded", "g/m", steps=4)
        .start("g/m/1")
        .done("g/m/1")
        .view()
    )

    items = view.steps["g/m"].items
    assert items is not None
    assert (items.total, items.done) == (3, 1)
    assert list(view.steps) == ["g", "g/m"]


def test_a_map_over_nothing_is_done() -> None:
    view = begun().start("m").add("expanded", "m", steps=1).start("m/@gather").done("m/@gather").view("m")

    assert view.steps["m"].state == "done"


def test_an_item_that_grows_is_over_when_all_of_it_is() -> None:
    history = (
        begun()
        .start("m")
        .add("expanded", "m", steps=2)
        .start("m/0")
        .add("expanded", "m/0", steps=2)
        .start("m/0/@1")
        .done("m/0/@1")
    )
    before = history.view("m").steps["m"].items
    after = history.start("m/0/@2").done("m/0/@2").view("m").steps["m"].items

    assert before is not None
    assert after is not None
    assert (before.done, before.running) == (0, frozenset({"m/0"}))
    assert (after.done, after.running, after.open_steps) == (1, frozenset(), {})


def test_a_step_that_grew_ends_as_the_last_of_what_it_grew() -> None:
    history = begun().start("a").add("expanded", "a", steps=2).start("a/@1").done("a/@1").start("a/@2")
    assert history.view().steps["a"].state == "expanded"

    view = history.failed("a/@2", "too long").view()

    assert (view.steps["a"].state, view.steps["a"].note) == ("failed", "too long")


def test_growth_within_growth_is_counted_to_the_end() -> None:
    history = begun().start("g").add("expanded", "g", steps=2).start("g/m").add("expanded", "g/m", steps=3)
    history.start("g/m/0", "g/m/1").done("g/m/0", "g/m/1").start("g/m/@gather").done("g/m/@gather")
    assert history.view().steps["g"].state == "expanded"

    view = history.start("g/@end").done("g/@end").view()

    assert (view.steps["g"].state, view.steps["g/m"].state) == ("done", "done")
    assert list(view.steps) == ["g", "g/m"]


# Rows


def test_grown_steps_stand_under_their_grower() -> None:
    view = begun().start("a").add("expanded", "a", steps=2).start("a/@1").start("b").view()

    assert names(rows(view)) == ["a", "  @1", "b"]


def test_a_tree_that_fits_is_shown_whole() -> None:
    view = RunView("r1", {f"s{i}": StepProgress("done") for i in range(30)})

    assert len(rows(view, max_rows=30)) == 30


def test_what_works_stays_when_the_rest_is_folded() -> None:
    steps = (
        {f"s{i}": StepProgress("done") for i in range(500)}
        | {"now": StepProgress("running")}
        | {f"w{i}": StepProgress("waiting") for i in range(500)}
    )

    tree = rows(RunView("r1", steps), max_rows=10)

    assert len(tree) == 10
    assert (tree[0].folded, tree[-1].folded) == (496, 497)
    assert names(tree)[1:-1] == ["s496", "s497", "s498", "s499", "now", "w0", "w1", "w2"]


def test_what_waits_is_shown_in_the_order_in_which_it_comes() -> None:
    tree = rows(RunView("r1", {f"w{i}": StepProgress("waiting") for i in range(20)}), max_rows=5)

    assert names(tree) == ["w0", "w1", "w2", "more steps"]


# Lines


def test_lines_tell_what_happens_and_leave_out_the_planning() -> None:
    history = begun().start("a").done("a").start("b").failed("b", "out of\nluck").add("closed", status="failed")

    assert history.lines() == [
        "accepted r1",
        "started a (attempt 1)",
        "done a (1.0 s)",
        "started b (attempt 1)",
        "failed b: out of luck",
        "failed r1",
    ]


def test_lines_tell_each_tenth_of_a_map() -> None:
    history = begun().start("m").add("expanded", "m", steps=101)
    for i in range(100):
        history.start(f"m/{i}").done(f"m/{i}")

    lines = [line for line in history.lines("m") if line.startswith("m ")]

    assert lines == [f"m {tenth}0/100" for tenth in range(1, 11)]


def test_lines_tell_the_first_failures_of_a_map_only() -> None:
    history = begun().start("m").add("expanded", "m", steps=1001)
    for i in range(1000):
        history.start(f"m/{i}").failed(f"m/{i}")

    lines = history.lines("m")

    assert len([line for line in lines if line.startswith("failed m/")]) == 10
    assert lines[-1] == "m 1000/1000, 1000 failed"


def test_a_waiting_step_shows_how_to_answer_it() -> None:
    assert "waiting ok for a signal: submit runs signal r1 ok JSON" in begun().add("waiting", "ok").lines()


# Paint


def test_a_step_whose_wait_ran_out_of_time_is_not_shown_as_done() -> None:
    history = begun().add("waiting", "ask").add("done", "ask", timed_out=True)

    assert history.view("ask").steps["ask"].state == "timed_out"
    assert history.lines("ask")[-1].startswith("timed out ask")
    assert "timed out" in rendered(history.view("ask"))
    assert "waiting for a signal" in rendered(begun().add("waiting", "ask").view("ask"))


@pytest.mark.parametrize(
    ("asks", "shown"),
    [
        ({"prompt": "Send it?"}, "Send it?"),
        ("Send it?", "Send it?"),
        ({"amount": 3}, '{"amount": 3}'),
        (None, "waiting for a signal\n"),
    ],
)
def test_a_waiting_step_shows_its_question(asks: JsonValue, shown: str) -> None:
    assert shown in rendered(begun().add("waiting", "ask", asks=asks).view("ask"))


def test_a_run_that_went_to_its_end_with_failures_is_marked_so() -> None:
    history = begun().failed("a").add("closed", status="succeeded", failures=1)

    assert history.lines("a")[-1] == "succeeded with failures r1"
    assert "succeeded with failures" in rendered(history.view("a"))
    assert begun().add("closed", status="succeeded", failures=0).lines()[-1] == "succeeded r1"


def test_text_of_a_model_is_painted_as_it_is_without_its_control_characters() -> None:
    text = rendered(begun().start("a").failed("a", "\x1b[31mred\x1b[0m [bold]not bold[/bold] \x07\x9b2J").view())

    assert "red [bold]not bold[/bold]" in text
    assert not {"\x1b", "\x07", "\x9b"} & set(text)


def test_a_map_is_painted_as_one_bar_with_counts() -> None:
    history = (
        begun().start("m").add("expanded", "m", steps=31).start("m/0", "m/1", "m/2").done("m/0").failed("m/1", "odd")
    )
    text = rendered(history.view("m"))

    (line,) = [line for line in text.splitlines() if "/30" in line]
    assert "2/30  1 running  1 failed  odd" in line


def test_a_running_step_shows_how_long_it_has_been_at_it() -> None:
    text = rendered(begun().start("a").view(), now_ms=BEGAN + 6500)

    assert "2.5 s" in text


def test_a_command_of_a_workflow_shows_its_line() -> None:
    view = begun().start("a", "b").view().with_lines({"a": "desk.py:14", "not added yet": "desk.py:15"})

    assert [line.split()[1:2] for line in rendered(view).splitlines() if "desk.py" in line] == [["a"]]


def test_a_running_step_shows_what_its_model_is_saying_in_this_attempt() -> None:
    history = begun().start("a").add("delta", "a", text="Good ").add("delta", "a", text="day")
    assert "Good day" in rendered(history.view())
    assert "Good day" not in rendered(history.start("a").add("delta", "a", text="Hi").view())


def test_a_step_that_waits_for_shared_limits_is_marked_so() -> None:
    assert (
        "rate limited a: the rpm of the model is used up"
        in begun().start("a").add("rate_limited", "a", reason="the rpm of the model is used up").lines()
    )


def test_steps_have_the_names_that_people_gave_and_their_ids_behind() -> None:
    history = begun().start("clerk", "clerk/t0").done("clerk/t0").failed("clerk/r1")
    named = {"clerk/t0": "order_status", "clerk/r1": "clerk, round 2"}

    lines = history.lines("clerk", names=named)
    view = history.view("clerk")
    tree = rendered(view.with_names({step_id: named[step_id] for step_id in view.without_name()}))

    assert [line for line in lines if "[" in line] == [
        "started order_status [clerk/t0] (attempt 1)",
        "done order_status [clerk/t0] (1.0 s)",
        "failed clerk, round 2 [clerk/r1]: no",
    ]
    assert "order_status [clerk/t0]" in tree
