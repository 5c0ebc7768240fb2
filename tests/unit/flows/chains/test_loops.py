"""Loops: which branch closes which, and what belongs to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.flows.chains.loops import outline
from cantata.flows.chains.step_ids import node_of
from cantata.flows.graphs import reach
from cantata.flows.wire import ChainNode
from cantata.values import JsonValue
from tests.examples import examples
from tests.unit.flows.interpreter import Run
from tests.unit.flows.sample_chains import DEFINITIONS, branch, counter, fails, faults, plan, play, request, tool

DO_WHILE = [
    tool("s", next_node="count"),
    tool("count", name="slow", input_map={"n": "count.n"}, next_node="again"),
    branch("again", "count.n < `3`", true_node="count", false_node="e"),
    tool("e", input_map={"n": "count.n"}),
]
WHILE = [
    tool("s", next_node="again"),
    branch("again", "not_null(count.n, `0`) < `3`", true_node="count", false_node="e"),
    tool("count", name="slow", input_map={"n": "count.n"}, next_node="again"),
    tool("e", input_map={"n": "count.n"}),
]
BY_DATA = [
    tool("s"),
    tool("count", name="slow", input_map={"n": "count.n", "s": "s"}),
    branch("again", "count.n < `3`", true_node="count", false_node="e"),
    tool("e", input_map={"n": "count.n"}),
]
BY_DEPS = [
    tool("s"),
    tool("count", name="slow", deps=["s"], input_map={"n": "count.n"}),
    branch("again", "count.n < `3`", deps=["count"], true_node="count"),
    tool("e", deps=["again"], input_map={"n": "count.n"}),
]


@pytest.mark.parametrize(
    ("nodes", "story"),
    [
        (DO_WHILE, "s count#1 again#1 count#2 again#2 count#3 again#3 e"),
        (WHILE, "s again#1 count#2 again#2 count#3 again#3 count#4 again#4 e"),
        (BY_DATA, "s count#1 again#1 count#2 again#2 count#3 again#3 e"),
        (BY_DEPS, "s count#1 again#1 count#2 again#2 count#3 again#3 e"),
    ],
)
def test_a_loop_runs_until_its_condition_says_so(nodes: list[ChainNode], story: str) -> None:
    run = play(*nodes, tools={"slow": counter})

    assert run.story == story.split()
    assert run.output("count") == {"n": 3}
    assert run.output("e") == {"n": 3}


def test_an_inner_loop_begins_anew_in_each_round_of_the_outer() -> None:
    nodes = [
        tool("o", name="slow", input_map={"n": "o.n"}, next_node="i"),
        tool("i", name="slow", input_map={"n": "i.n"}, next_node="bi"),
        branch("bi", "i.n < `2`", true_node="i", false_node="bo"),
        branch("bo", "o.n < `2`", true_node="o", false_node="e"),
        tool("e", input_map={"o": "o.n", "i": "i.n"}),
    ]

    run = play(*nodes, tools={"slow": counter})

    assert run.story == [
        "o#1",
        "i#1.1",
        "bi#1.1",
        "i#1.2",
        "bi#1.2",
        "bo#1",
        "o#2",
        "i#2.1",
        "bi#2.1",
        "i#2.2",
        "bi#2.2",
        "bo#2",
        "e",
    ]
    assert run.output("e") == {"o": 2, "i": 2}
    assert plan(*nodes).names == {"o": "o#1", "i": "i#1", "i#1": "i#1.1", "bi": "bi#1", "bi#1": "bi#1.1", "bo": "bo#1"}


def test_a_loop_may_begin_in_its_middle() -> None:
    nodes = [
        tool("review", name="slow", input_map={"n": "review.n", "fix": "improve.on"}, next_node="fine"),
        branch("fine", "review.n >= `3`", true_node="e", false_node="improve"),
        tool("improve", input_map={"on": "review.n"}, next_node="review"),
        tool("e", input_map={"n": "review.n"}),
    ]

    run = play(*nodes, tools={"slow": counter})

    assert run.story == [
        "review#1",
        "fine#1",
        "improve#2",
        "review#2",
        "fine#2",
        "improve#3",
        "review#3",
        "fine#3",
        "e",
    ]


@st.composite
def tangles(draw: st.DrawFn) -> list[ChainNode]:
    """Nodes of which each is reached by one before it, and that lead, wait and read forward and back."""
    ids = [f"n{i}" for i in range(draw(st.integers(2, 8)))]
    nodes = []
    for i, node_id in enumerate(ids):
        onward = ids[i + 1] if i + 1 < len(ids) else None
        by_data = {"deps": [draw(st.sampled_from(ids[:i]))]} if i and draw(st.booleans()) else {}
        reads = draw(st.lists(st.sampled_from([*ids[:i], "output", "k", draw(st.sampled_from(ids))]), max_size=2))
        if onward and draw(st.integers(0, 2)) == 0:
            sides = {"true_node": draw(st.sampled_from([*ids[:i], *ids[i + 1 :]])), "false_node": onward}
            nodes.append(branch(node_id, " OR ".join(reads) or "k", max_iterations=3, **sides, **by_data))
        else:
            on_error = draw(st.sampled_from(["abort", "skip", "skip"]))
            nodes.append(
                tool(node_id, next_node=onward, input_map={f"x{r}": r for r in reads}, on_error=on_error, **by_data)
            )
    return nodes


@examples(300)
@given(tangles(), st.randoms(use_true_random=False))
def test_any_tangle_is_refused_or_ends_with_each_round_over_before_the_next(
    nodes: list[ChainNode], chance: object
) -> None:
    choose = chance.choice  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    messages, code = faults(*nodes)
    if messages:
        assert code == "chain_cycle"
        return

    def moody(given: dict[str, JsonValue]) -> JsonValue:
        return {"v": 1} if choose([True] * 9 + [False]) else fails(given)

    run = Run(
        request(*nodes), DEFINITIONS, {"t": moody}, choose, decide=lambda node_id, visit: choose([True, False])
    ).play()

    assert run.status in ("succeeded", "failed")
    assert len(run.story) == len(set(run.story))


@st.composite
def walks(draw: st.DrawFn) -> list[ChainNode]:
    """Nodes that lead one to one other, or by a branch to one of two, forward or back."""
    size = draw(st.integers(2, 7))
    ids = [f"n{i}" for i in range(size)]
    nodes = []
    for i, node_id in enumerate(ids):
        onward = ids[i + 1] if i + 1 < size else None
        target = st.sampled_from([onward, onward, *ids])
        if draw(st.booleans()):
            nodes.append(
                branch(node_id, "k", true_node=draw(target) or ids[0], false_node=draw(target), max_iterations=1000)
            )
        else:
            nodes.append(tool(node_id, next_node=onward))
    return nodes


def walk(nodes: Sequence[ChainNode], decide: Mapping[tuple[str, int], bool]) -> list[str]:
    """The ids in the order in which one who goes from node to node comes by, as far as the decisions go."""
    by_id = {node.node_id: node for node in nodes}
    story: list[str] = []
    node: ChainNode | None = nodes[0]
    while node is not None and len(story) < 40:
        story.append(node.node_id)
        if node.kind == "branch":
            holds = decide.get((node.node_id, story.count(node.node_id)), False)
            node = by_id.get(str((node.true_node if holds else node.false_node) or ""))
        else:
            node = by_id.get(str(node.next_node or ""))
    return story


@examples(300)
@given(
    walks(),
    st.dictionaries(
        st.tuples(st.sampled_from([f"n{i}" for i in range(7)]), st.integers(1, 6)), st.booleans(), max_size=30
    ),
)
def test_any_loops_run_as_one_would_walk_them(nodes: list[ChainNode], decide: dict[tuple[str, int], bool]) -> None:
    reached = reach(
        ["n0"],
        {
            node.node_id: [str(target) for target in (node.next_node, node.true_node, node.false_node) if target]
            for node in nodes
        },
    )
    nodes = [node for node in nodes if node.node_id in reached]
    messages, code = faults(*nodes)
    story = walk(nodes, decide)
    if messages:
        assert code == "chain_cycle"
        return
    if len(story) == 40:
        return

    run = Run(request(*nodes), DEFINITIONS, decide=lambda node_id, visit: decide.get((node_id, visit), False)).play()

    assert [node_of(step_id).node_id for step_id in run.story] == story


def test_data_start_a_node_only_where_no_control_leads_and_never_for_the_round_before() -> None:
    nodes = [
        tool("a", next_node="again", input_map={"x": "again"}),
        branch("again", "x", true_node="a", false_node="end"),
        tool("end", input_map={"x": "a"}),
        tool("data", input_map={"x": "end"}),
    ]

    whole = outline(nodes, "a")

    assert {(link.source, link.target) for link in whole.loops.recalls} == {("again", "a")}
    assert [f"{link.source} {link.sort} {link.target}" for link in whole.waking] == [
        "a leads again",
        "again leads a",
        "again leads end",
        "end reads data",
    ]


def test_a_loop_inside_another_is_found_with_its_body_and_the_link_that_closes_it() -> None:
    nodes = [
        tool("outer", next_node="inner"),
        tool("inner", next_node="again"),
        branch("again", "x", true_node="inner", false_node="more"),
        branch("more", "x", true_node="outer"),
    ]

    loops = outline(nodes, "outer").loops

    assert [(loop.first, loop.branch) for loop in loops.path("inner")] == [("outer", "more"), ("inner", "again")]
    assert [sorted(loop.body) for loop in loops.path("inner")] == [
        ["again", "inner", "more", "outer"],
        ["again", "inner"],
    ]
    assert (list(loops.cycles), loops.too_deep) == ([], [])
