"""A run as a graph that can be drawn."""

from __future__ import annotations

import pytest

from cantata.client.graphs.graph_view import RunGraph, is_internal
from cantata.ledger.runs.timeline import Moments
from tests.unit.client.graphs.graphs import AT, ran, run_graph, snapshot


def edges_of(drawn: RunGraph) -> set[tuple[str, str, str, bool | None]]:
    return {(edge.source, edge.target, edge.label, edge.taken) for edge in drawn.edges}


def test_a_branch_takes_one_edge_and_what_lies_ahead_is_open() -> None:
    run = snapshot({"@start": "done", "if": "done", "yes": "running", "no": "skipped", "end": "waiting"})
    edges = {
        "if": [("yes", "true", True), ("no", "false", True)],
        "yes": [("end", "done", True)],
        "no": [("end", "done", True)],
    }

    drawn = run_graph(run, edges=edges, infos={"if": {"takes": ["done", "true"]}})

    assert edges_of(drawn) == {
        ("@start", "if", "expanded", True),
        ("if", "yes", "true", True),
        ("if", "no", "false", False),
        ("yes", "end", "done", None),
        ("no", "end", "done", False),
    }


def test_a_failure_takes_the_edges_that_its_step_says() -> None:
    run = snapshot({"a": "failed", "b": "failed", "c": "failed", "next": "waiting", "rescue": "done"})
    after = [("next", "done", True), ("rescue", "failed", True)]
    error = {"error": {"code": "tool_error", "message": "no"}}
    specs = {
        "a": {"kind": "tool.call"},
        "b": {"kind": "tool.call", "on_error": "skip"},
        "c": {"kind": "tool.call", "on_error": "jump"},
    }

    drawn = run_graph(run, edges=dict.fromkeys("abc", after), infos=dict.fromkeys("abc", error), specs=specs)

    taken = {(source, target) for source, target, _, is_taken in edges_of(drawn) if is_taken and source in "abc"}
    assert taken == {("b", "next"), ("c", "rescue")}


def test_a_step_leads_to_what_it_grew_if_nothing_else_does() -> None:
    run = snapshot(
        {"@start": "done", "a": "done", "a/t0": "done", "a/t1": "done", "a/r1": "running"}, names={"a": "a/r1"}
    )
    edges = {"a/t0": [("a/r1", "done", True)], "a/t1": [("a/r1", "done", True)]}

    drawn = run_graph(run, edges=edges, expansions={"a": {"ids": ["a/t0", "a/t1", "a/r1"], "exit": "a/r1"}})

    expanded = {(source, target) for source, target, label, _ in edges_of(drawn) if label == "expanded"}
    assert expanded == {("@start", "a"), ("a", "a/t0"), ("a", "a/t1")}


def test_edges_that_were_resolved_when_they_were_added_are_drawn_too() -> None:
    run = snapshot({"@start": "done", "a": "done", "loop": "done", "b#2": "running"})

    drawn = run_graph(
        run,
        expansions={"loop": {"ids": ["b#2"], "counted": [["a", "b#2", "done", False], ["gone", "b#2", "done", True]]}},
    )

    assert ("a", "b#2", "done", True) in edges_of(drawn)
    assert not any("gone" in (edge.source, edge.target) for edge in drawn.edges)


def test_a_folded_map_leads_to_its_gather() -> None:
    words = {"@start": "done", "m": "done", "m/@gather": "waiting", "m/0": "done", "m/1": "running"}
    expanded = {"m": {"ids": ["m/*", "m/@gather"], "items": {"like": "m/*", "prefix": "m", "count": 2}}}
    out = {"m/0": [("m/@gather", "done", False)], "m/1": [("m/@gather", "done", False)]}

    folded = run_graph(snapshot(words), expansions=expanded, edges=out)
    opened = run_graph(snapshot(words), expansions=expanded, edges=out, opened=["m"])

    assert edges_of(folded) == {("@start", "m", "expanded", True), ("m", "m/@gather", "done", None)}
    assert edges_of(opened) == {
        ("@start", "m", "expanded", True),
        ("m", "m/0", "expanded", True),
        ("m", "m/1", "expanded", True),
        ("m/0", "m/@gather", "done", True),
        ("m/1", "m/@gather", "done", None),
    }
    assert [(found.id, found.count, found.done, found.running) for found in opened.maps()] == [("m", 2, 1, 1)]
    assert {step.id: step.map for step in opened.steps()}["m/1"] == "m"


def test_items_of_which_one_failed_do_not_lead_to_their_gather() -> None:
    run = snapshot({"m": "done", "m/@gather": "failed", "m/0": "failed", "m/1": "skipped"}, attempts={"m/@gather": 0})

    assert ("m", "m/@gather", "done", False) in edges_of(run_graph(run))


def test_a_step_is_ready_when_the_last_before_it_is_over_and_waits_till_it_begins() -> None:
    run = snapshot({"@start": "done", "a": "done", "b": "done", "end": "running", "later": "waiting"})
    edges = {"a": [("end", "done", True)], "b": [("end", "done", True)], "end": [("later", "done", True)]}
    at = {"@start": ran(5, 8), "a": ran(9, 50), "b": ran(10, 90), "end": ran(100, started=250)}

    steps = {step.id: step for step in run_graph(run, edges=edges, at=at).steps()}

    assert (steps["@start"].ready_at, steps["a"].ready_at) == (AT, AT + 0.008)
    assert (steps["end"].ready_at, steps["end"].first_at, steps["end"].started_at) == (AT + 0.09, AT + 0.1, AT + 0.25)
    assert steps["end"].ended_at is None
    assert (steps["later"].ready_at, steps["later"].started_at) == (None, None)
    assert list(steps) == ["@start", "a", "b", "end", "later"], "in the order they began"


def test_a_step_that_began_before_all_before_it_were_over_was_ready_then() -> None:
    run = snapshot({"@start": "done", "slow": "done", "quorum": "done"})

    steps = {
        s.id: s
        for s in run_graph(
            run, edges={"slow": [("quorum", "done", True)]}, at={"slow": ran(5, 900), "quorum": ran(20, 30)}
        ).steps()
    }

    assert steps["quorum"].ready_at == AT + 0.02


def test_what_the_end_of_a_run_stopped_ended_with_it() -> None:
    run = snapshot({"@start": "done", "a": "skipped"}, status="cancelled", closed_at=AT + 7)

    (_, step) = run_graph(run, at={"@start": ran(0, 1), "a": ran(3)}).steps()

    assert (step.state, step.ended_at) == ("skipped", AT + 7)


def test_a_step_tells_its_error_usage_model_and_worker() -> None:
    info = {
        "error": {"code": "timeout", "message": "late", "step": "a"},
        "usage": {"input_tokens": 3},
        "model": "m",
        "by": "other",
    }

    (step,) = run_graph(snapshot({"a": "failed"}), infos={"a": info}, at={"a": Moments(worker="")}).steps()

    assert step.error is not None
    assert step.usage is not None
    assert (step.error.code, step.usage.input_tokens, step.model, step.worker) == ("timeout", 3, "m", "other")


@pytest.mark.parametrize(
    ("step_id", "kind", "expected"),
    [
        ("@start", "run.start", True),
        ("m/@gather", "chain.gather", True),
        ("w/@2/@advance", "workflow.advance", True),
        ("@responses", "team.collect", True),
        ("w", "workflow.advance", False),
        ("g/@7", "chain.branch", False),
        ("@synthesizer", "team.synthesize", False),
        ("writer/@2", "agent.turn", False),
    ],
)
def test_what_only_organizes_other_steps_is_internal(step_id: str, kind: str, expected: bool) -> None:
    assert is_internal(step_id, kind) is expected


def test_an_internal_step_whose_own_error_ends_the_run_is_shown() -> None:
    error = {"error": {"code": "workflow_error", "message": "no", "step": "w/@1/@advance"}}
    run = snapshot({"w/@1/@advance": "failed", "m/@gather": "failed"})

    steps = run_graph(run, infos=dict.fromkeys(run.steps, error)).steps()

    assert {step.id: step.internal for step in steps} == {"w/@1/@advance": False, "m/@gather": True}


def test_an_item_is_ready_when_an_earlier_one_frees_its_slot() -> None:
    words = {"m": "done", "m/@gather": "waiting", **{f"m/{n}": "done" for n in range(4)}, "m/4": "sent"}
    expanded = {"m": {"ids": ["m/*", "m/@gather"], "items": {"like": "m/*", "prefix": "m", "count": 5, "window": 2}}}
    at = {"m": ran(0, 1), "m/0": ran(2, 50), "m/1": ran(2, 20), "m/2": ran(25, 30), "m/3": ran(35, 90)}

    steps = {step.id: step for step in run_graph(snapshot(words), expansions=expanded, at=at, opened=["m"]).steps()}

    ready = [steps[f"m/{n}"].ready_at for n in range(5)]
    assert ready == [AT + 0.001, AT + 0.001, AT + 0.02, AT + 0.03, AT + 0.05]
