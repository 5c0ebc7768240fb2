"""What the expressions of a node read, in the rounds of its loops."""

from __future__ import annotations

import pytest

from cantata.flows.chains.loops import outline
from cantata.flows.chains.steps_of_nodes import References
from cantata.values import JsonValue
from tests.unit.flows.sample_chains import branch, counter, mapping, plan, play, step, tool


def test_a_step_reads_what_its_expressions_name_and_no_more() -> None:
    graph = plan(
        tool("read", next_node="b"),
        branch("b", "read.n > 3", true_node="c"),
        tool("c", input_map={"x": "read.data", "y": "output", "z": "topic"}, next_node="d"),
        tool("d", input={"x": 1}),
    )

    assert step(graph, "read").reads == {}
    assert step(graph, "b").reads == {"read": "read"}
    assert step(graph, "c").reads == {"read": "read", "@input": "=@start", "@before/0": "read"}
    assert step(graph, "d").reads == {}


@pytest.mark.parametrize(
    ("text", "reads"),
    [("read", {"read": "read"}), ("topic", {"@input": "=@start"}), ("input.topic", {"@input": "=@start"}), ("`1`", {})],
)
def test_the_initial_input_is_read_only_where_it_is_named(text: str, reads: dict[str, str]) -> None:
    assert step(plan(tool("read", next_node="b"), tool("b", input_map={"x": text})), "b").reads == reads


def test_a_node_hides_an_initial_key_and_the_names_of_the_root() -> None:
    graph = plan(
        tool("input", next_node="output"),
        tool("output", next_node="c"),
        tool("c", input_map={"a": "input", "b": "output"}),
    )

    assert step(graph, "c").reads == {"input": "input", "output": "output"}


def test_the_node_before_is_each_that_leads_to_it_and_else_its_deps() -> None:
    graph = plan(
        tool("a", next_node="b"),
        branch("b", "x", true_node="c", false_node="d"),
        tool("c", next_node="e"),
        tool("d", next_node="e"),
        tool("e", input_map={"x": "output"}),
        tool("f", deps=["d", "c"], input_map={"x": "output"}),
    )

    assert step(graph, "e").reads == {"@before/0": "c", "@before/1": "d"}
    assert step(graph, "f").reads == {"@before/0": "d", "@before/1": "c"}


def test_the_node_of_a_map_reads_for_the_map() -> None:
    graph = plan(
        tool("a", next_node="m"),
        mapping("m", "a", "b", next_node="c"),
        tool("b", input_map={"x": "output", "y": "k"}),
        tool("c", input_map={"x": "b", "y": "m"}),
    )

    body = step(graph, "m").params["body"]
    assert isinstance(body, dict)
    assert body["reads"] == {"@input": "=@start", "@before/0": "a"}
    assert step(graph, "c").reads == {"b": "m", "m": "m"}


def test_the_node_before_the_first_is_the_last_of_the_round_before() -> None:
    nodes = [
        tool("fetch", next_node="draft"),
        tool("draft", input_map={"on": "output"}, next_node="judge"),
        tool("judge", name="slow", input_map={"n": "judge.n"}, next_node="enough"),
        branch("enough", "output.n < `2`", true_node="draft"),
    ]

    run = play(*nodes, tools={"slow": counter})

    assert [run.outputs[step_id] for step_id in ("draft#1", "draft#2")] == [{"on": {}}, {"on": {"n": 1}}]


def test_a_reference_to_a_later_node_of_the_loop_means_the_round_before() -> None:
    nodes = [
        tool("draft", input_map={"hint": "judge.n", "mine": "draft.hint"}),
        tool("other", deps=["draft"], input_map={"hint": "judge.n"}),
        tool("judge", name="slow", input_map={"n": "judge.n", "d": "draft", "o": "other"}),
        branch("enough", "judge.n < `3`", true_node="draft"),
    ]

    run = play(*nodes, tools={"slow": counter})

    assert [run.outputs[f"draft#{i}"] for i in (1, 2, 3)] == [
        {"hint": None, "mine": None},
        {"hint": 1, "mine": None},
        {"hint": 2, "mine": 1},
    ]
    assert [run.outputs[f"other#{i}"] for i in (1, 2, 3)] == [{"hint": None}, {"hint": 1}, {"hint": 2}]


def test_two_branches_may_point_back_to_one_node_that_sees_the_round_before_of_either() -> None:
    nodes = [
        tool("draft", name="slow", input_map={"n": "draft.n"}, next_node="long"),
        branch("long", "draft.n == `1`", true_node="draft", false_node="bad"),
        branch("bad", "draft.n < `4`", true_node="draft", false_node="e"),
        tool("e", input_map={"n": "draft.n"}),
    ]

    run = play(*nodes, tools={"slow": counter})

    assert [step_id for step_id in run.story if step_id.startswith("draft")] == [
        "draft#1.1",
        "draft#1.2",
        "draft#2.1",
        "draft#3.1",
    ]
    assert run.output("e") == {"n": 4}


def test_the_outer_round_before_of_an_inner_node_is_its_last() -> None:
    nodes = [
        tool("o", name="slow", input_map={"n": "o.n", "seen": "i.n"}, next_node="i"),
        tool("i", name="slow", input_map={"n": "i.n"}, next_node="bi"),
        branch("bi", "i.n < `3`", true_node="i", false_node="bo"),
        branch("bo", "o.n < `2`", true_node="o"),
    ]
    seen: list[JsonValue] = []

    def noting(given: dict[str, JsonValue]) -> JsonValue:
        seen.extend(given[name] for name in ("seen",) if name in given)
        return counter(given)

    play(*nodes, tools={"slow": noting})

    assert seen == [None, 3]


def test_a_branch_of_the_round_before_is_read_itself_since_its_name_means_the_round_that_it_began() -> None:
    first = tool("a", next_node="again", input_map={"x": "again", "y": "b"})
    whole = outline([first, tool("b", deps=["a"]), branch("again", "x", true_node="a", deps=["b"])], "a")
    (loop,) = whole.loops.path("a")

    assert References(whole, "", {}).reads("a") == {"again": "=again#0", "b": "=b#0"}
    assert References(whole, "p", {loop: 3}).reads("a") == {"again": "=p/again#2", "b": "p/b#2"}
