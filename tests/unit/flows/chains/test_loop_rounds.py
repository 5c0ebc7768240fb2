"""The edges of a chain, and the rounds of its loops."""

from __future__ import annotations

import pytest

from cantata.flows.chains import expand
from tests.unit.flows.interpreter import Run
from tests.unit.flows.sample_chains import DEFINITIONS, branch, counter, edges, mapping, plan, play, request, step, tool


def test_edges_are_the_union_of_what_nodes_say() -> None:
    graph = plan(
        tool("a", next_node="b", on_error="h"),
        branch("b", "a.n", true_node="c", false_node="d"),
        tool("c", deps=["a"]),
        tool("d", input_map={"x": "c"}),
        tool("e", deps=["c"], input_map={"x": "d"}),
        tool("h", input_map={"x": "a"}),
    )

    assert edges(graph) == {
        "a -> b",
        "a -> h failed",
        "b -> c true",
        "b -> d false",
        "(a -> c)",
        "(c -> d)",
        "c -> e",
        "d -> e",
    }
    assert graph.terminals == ("e", "h")


def test_the_default_of_a_branch_is_its_next_node() -> None:
    graph = plan(branch("a", "x", true_node="b", next_node="c"), tool("b"), tool("c"))

    assert edges(graph) == {"a -> b true", "a -> c false"}


def test_what_the_node_of_a_map_reads_comes_before_the_map() -> None:
    graph = plan(
        tool("a", next_node="m"), tool("k", deps=["a"]), mapping("m", "a", "b"), tool("b", input_map={"x": "k"})
    )

    assert edges(graph) == {"a -> m", "a -> k", "(k -> m)"}


DO_WHILE = [
    tool("s", next_node="count"),
    tool("count", name="slow", input_map={"n": "count.n"}, next_node="again"),
    branch("again", "count.n < `3`", true_node="count", false_node="e"),
    tool("e", input_map={"n": "count.n"}),
]


def test_a_branch_that_points_back_knows_what_the_next_round_needs() -> None:
    again = step(plan(*DO_WHILE), "again#1")

    assert again.expands
    assert again.params == {
        "condition": "count.n < `3`",
        "loop": {"chain": "", "entry": "s", "branch": "again", "side": "true", "max_iterations": 25},
    }
    assert not step(plan(tool("a", next_node="b"), branch("b", "a", true_node="c"), tool("c")), "b").expands


def test_names_answer_to_the_last_round() -> None:
    graph = plan(*DO_WHILE)
    expansion_of_loop = expand.expand_loop(DO_WHILE, DEFINITIONS, branch_step_id="again#1", spec=step(graph, "again#1"))

    assert graph.names == {"count": "count#1", "again": "again#1"}
    assert expansion_of_loop.names == {"count": "count#2", "again": "again#2"}
    assert (expansion_of_loop.exit, expansion_of_loop.scoped) == ("again#2", False)
    assert step(graph, "count#1").reads == {"count": "=count#0"}
    assert step(expansion_of_loop, "count#2").reads == {"count": "count#1"}
    assert step(expansion_of_loop, "again#2").reads == {"count": "count"}
    assert edges(expansion_of_loop) == {"count#2 -> again#2"}


def test_past_its_last_round_a_branch_fails() -> None:
    endless = [
        tool("a", next_node="b"),
        branch("b", "`true`", true_node="a", max_iterations=3, on_error="h"),
        tool("h"),
    ]

    assert play(*endless).story == ["a#1", "b#1", "a#2", "b#2", "a#3", "b#3", "h"]


def test_nodes_that_need_each_other_by_data_alone_take_turns_from_the_first_on() -> None:
    nodes = [
        tool("a"),
        tool("b", name="slow", input_map={"n": "c.n", "a": "a"}),
        tool("c", input_map={"n": "b.n"}),
        branch("again", "c.n < `3`", true_node="a"),
    ]

    assert play(*nodes, tools={"slow": counter}).output("c") == {"n": 3}


def test_behind_a_loop_is_waited_until_it_is_left() -> None:
    nodes = [
        tool("a", name="slow", input_map={"n": "a.n"}, next_node="b", on_error="skip"),
        tool("side", deps=["a"], input_map={"n": "a.n"}),
        branch("stop", "a.n == `2`", deps=["a"], true_node="out"),
        branch("b", "a.n < `4`", deps=["stop"], true_node="a", false_node="e"),
        tool("out", input_map={"n": "a.n"}),
        tool("e"),
    ]

    run = play(*nodes, tools={"slow": counter})

    assert run.story[-3:] == ["side", "out", "e"]
    assert run.output("side") == run.output("out") == {"n": 4}


def test_a_break_leaves_the_loop_and_skips_the_rest_of_its_round() -> None:
    nodes = [
        tool("a", name="slow", input_map={"n": "a.n"}, next_node="stop"),
        branch("stop", "a.n == `2`", true_node="out", false_node="b"),
        branch("b", "a.n < `9`", true_node="a", false_node="e"),
        tool("e"),
        tool("out"),
    ]

    run = play(*nodes, tools={"slow": counter})

    assert run.story == ["a#1", "stop#1", "b#1", "a#2", "stop#2", "out"]
    assert run.state("e") == "skipped"


@pytest.mark.parametrize("stops", [True, False])
def test_what_only_data_lead_to_runs_behind_a_loop_whose_branch_is_passed_by(stops: bool) -> None:
    nodes = [
        tool("a", name="slow", input_map={"n": "a.n"}, next_node="stop"),
        branch("stop", "input.stops", true_node="e", false_node="again"),
        branch("again", "a.n < `3`", true_node="a", false_node="e"),
        tool("e"),
        tool("waits", deps=["a"]),
        tool("reads", input_map={"n": "a.n"}),
    ]

    run = play(*nodes, tools={"slow": counter}, stops=stops)

    assert [run.state(node) for node in ("e", "waits", "reads")] == ["done"] * 3
    assert run.output("reads") == {"n": 1 if stops else 3}


def test_a_node_of_an_inner_loop_waits_for_what_it_reads_from_outside_of_the_outer() -> None:
    nodes = [
        tool("s", next_node=["o", "late"]),
        tool("o", next_node="again"),
        branch("again", "again", true_node="x", false_node="outer"),
        tool("x", input_map={"late": "late"}, next_node="again"),
        branch("outer", "x", true_node="o", false_node="e"),
        tool("e"),
        tool("late", input={"is": "there"}),
    ]

    run = Run(
        request(*nodes),
        DEFINITIONS,
        choose=lambda ready: ready[0] if ready != ["late", "o#1"] else "o#1",
        decide=lambda node_id, visit: node_id == "again" and visit == 1,
    ).play()

    assert run.story == ["s", "o#1", "late", "again#1.1", "x#1.2", "again#1.2", "outer#1", "e"]
    assert run.output("x") == {"late": {"is": "there"}}


def test_a_branch_waits_for_nodes_of_its_loop_that_only_the_next_round_reads() -> None:
    graph = plan(
        tool("a", next_node=["b", "again"], input_map={"x": "b"}),
        tool("b"),
        branch("again", "x", true_node="a", false_node="end"),
        tool("end"),
    )

    assert edges(graph) == {"a#1 -> b#1", "a#1 -> again#1", "(b#1 -> again#1)", "again#1 -> end false"}
