"""Chains: what is rejected and with which message, what is planned, and how it runs by the rules of the ledger."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.flows.chains.step_ids import NodeRef, node_of
from cantata.flows.definitions import Chain, Definitions, Tool
from cantata.flows.graphs import cycles, reach
from cantata.flows.wire import ChainNode, ChainRequest
from cantata.values import JsonValue
from tests.examples import thorough
from tests.unit.flows.interpreter import Run
from tests.unit.flows.interpreter import Tool as Function
from tests.unit.flows.sample_chains import DEFINITIONS, branch, counter, fails, mapping, plan, play, request, step, tool


def test_the_chain_of_the_cookbook_joins_over_an_untaken_branch() -> None:
    nodes = [
        tool("parse", next_node="check", input_map={"text": "text"}),
        branch("check", "parse.data_type == 'numeric'", true_node="numeric_transform", false_node="text_transform"),
        tool("numeric_transform", name="t", input_map={"values": "parse.values"}, next_node="write_output"),
        tool("text_transform", name="slow", input_map={"values": "parse.values"}, next_node="write_output"),
        tool(
            "write_output", kind="skill", name="s", input_map={"x": "numeric_transform.stats OR text_transform.summary"}
        ),
    ]
    tools: dict[str, Function] = {
        "t": lambda given: (
            {"data_type": given["text"], "values": [1, 2]} if "text" in given else {"stats": given["values"]}
        ),
        "slow": lambda given: {"summary": given["values"]},
    }

    numeric, text = play(*nodes, tools=tools, text="numeric"), play(*nodes, tools=tools, text="words")

    assert numeric.story == ["parse", "check", "numeric_transform", "write_output"]
    assert text.story == ["parse", "check", "text_transform", "write_output"]
    assert numeric.state("text_transform") == "skipped"
    assert numeric.output("write_output") == text.output("write_output") == {"x": [1, 2]}


def test_a_join_runs_once_when_all_before_it_are_over() -> None:
    run = play(tool("a"), *(tool(f"b{i}", deps=["a"]) for i in range(5)), tool("c", deps=[f"b{i}" for i in range(5)]))

    assert run.story == ["a", "b0", "b1", "b2", "b3", "b4", "c"]


def test_what_only_an_error_or_an_untaken_side_reaches_does_not_run() -> None:
    run = play(
        tool("a", next_node="b", on_error="h"),
        branch("b", "`false`", true_node="c"),
        tool("c", next_node="d"),
        tool("d"),
        tool("h"),
    )

    assert run.story == ["a", "b"]
    assert [run.state(node) for node in "cdh"] == ["skipped"] * 3


def test_skip_goes_on_with_null() -> None:
    run = play(
        tool("a", name="slow", on_error="skip", next_node="b"), tool("b", input_map={"x": "a"}), tools={"slow": fails}
    )

    assert run.output("b") == {"x": None}
    assert run.status == "succeeded"


def test_a_jump_takes_the_edge_for_failure_alone() -> None:
    run = play(
        tool("a", name="slow", on_error="h", next_node="b"), tool("b"), tool("h", next_node="b"), tools={"slow": fails}
    )

    assert run.story == ["a", "h", "b"]


def test_abort_ends_the_run() -> None:
    assert play(tool("a", name="slow", next_node="b"), tool("b"), tools={"slow": fails}).status == "failed"


def test_a_map_keeps_length_and_order_and_its_node_answers_with_the_list() -> None:
    run = play(
        mapping("m", "xs", "b", next_node="c"),
        tool("b", name="slow", input_map={"x": "_item", "all": "xs"}),
        tool("c", input_map={"m": "m", "b": "b"}),
        tools={"slow": lambda given: [given["x"], given["all"]]},
        xs=[3, 1, 2],
    )

    assert run.output("m") == [[3, [3, 1, 2]], [1, [3, 1, 2]], [2, [3, 1, 2]]]
    assert run.output("c") == {"m": run.output("m"), "b": run.output("m")}
    assert run.story == ["m", "m/0", "m/1", "m/2", "m/@gather", "c"]


def test_an_empty_map_gathers_nothing() -> None:
    assert play(mapping("m", "xs", "b"), tool("b"), xs=[]).output("m") == []


@pytest.mark.parametrize(
    ("on_error", "status", "output"),
    [("skip", "succeeded", [1, None, 3]), ("abort", "failed", None), ("h", "succeeded", None)],
)
def test_a_failing_item_is_null_or_fails_the_map(on_error: str, status: str, output: JsonValue) -> None:
    def odd(given: dict[str, JsonValue]) -> JsonValue:
        return given["x"] if given["x"] != 2 else fails(given)

    nodes = (
        mapping("m", "xs", "b", on_error=on_error),
        tool("b", name="slow", input_map={"x": "item"}),
        tool("h", deps=["m"]),
    )

    run = play(*nodes, tools={"slow": odd}, xs=[1, 2, 3])

    assert run.status == status
    assert run.output("m") == output
    assert ("h" in run.story) == (status == "succeeded")


def test_maps_nest_and_run_chains() -> None:
    nested = play(
        mapping("m", "rows", "n"),
        mapping("n", "_item", "b"),
        tool("b", input_map={"x": "_item", "k": "k"}),
        rows=[[1, 2], [], [3]],
        k=9,
    )
    chained = play(
        mapping("m", "rows", "g"), tool("g", kind="chain", name="sub", input_map={"n": "_item"}), rows=[5, 6]
    )

    assert nested.output("m") == [[{"x": 1, "k": 9}, {"x": 2, "k": 9}], [], [{"x": 3, "k": 9}]]
    assert chained.output("m") == [{"x": 5}, {"x": 6}]
    assert "m/0/a" in chained.story


def test_a_nested_chain_reads_its_own_input_and_takes_its_place() -> None:
    run = play(
        tool("s", next_node="g"),
        tool("g", kind="chain", name="sub", input_map={"n": "k"}, next_node="e"),
        tool("e", input_map={"x": "g.x"}),
        k=4,
    )

    assert run.story == ["s", "g", "g/a", "g/@end", "e"]
    assert run.output("e") == {"x": 4}


def test_ids_of_a_nested_chain_may_be_digits_and_words_of_ours() -> None:
    inner = Chain(
        entry_node="0",
        nodes=[
            tool("0", next_node="end"),
            tool("end", next_node="gather", input_map={"x": '"0"'}),
            tool("gather", input_map={"x": "end"}),
        ],
    )

    run = play(tool("g", kind="chain", name="c"), definitions=DEFINITIONS.model_copy(update={"chains": {"c": inner}}))

    assert run.story == ["g", "g/@0", "g/end", "g/gather", "g/@end"]
    assert all(node_of(step_id).index is None for step_id in run.story)
    assert run.output("g") == {"x": {"x": {}}}


def test_a_failure_in_a_nested_chain_is_the_failure_of_its_node() -> None:
    inner = Chain(entry_node="a", nodes=[tool("a", name="slow", next_node="b"), tool("b")])
    definitions = DEFINITIONS.model_copy(update={"chains": {"c": inner}})

    run = play(
        tool("g", kind="chain", name="c", on_error="h"), tool("h"), tools={"slow": fails}, definitions=definitions
    )

    assert run.story == ["g", "g/a", "h"]
    assert run.status == "succeeded"


def test_a_nested_chain_ends_though_nothing_of_it_ran_to_a_terminal() -> None:
    inner = Chain(entry_node="a", nodes=[branch("a", "`false`", true_node="b"), tool("b")])

    run = play(
        tool("g", kind="chain", name="c", next_node="e"),
        tool("e"),
        definitions=DEFINITIONS.model_copy(update={"chains": {"c": inner}}),
    )

    assert run.story == ["g", "g/a", "g/@end", "e"]


DO_WHILE = [
    tool("s", next_node="count"),
    tool("count", name="slow", input_map={"n": "count.n"}, next_node="again"),
    branch("again", "count.n < `3`", true_node="count", false_node="e"),
    tool("e", input_map={"n": "count.n"}),
]


def test_a_loop_holds_maps_and_nested_chains_hold_loops() -> None:
    inner = Chain(entry_node="count", nodes=[*DO_WHILE[1:3], tool("e", input_map={"n": "count.n", "top": "top"})])
    nodes = [
        tool("count", name="slow", input_map={"n": "count.n", "last": "m"}, next_node="m"),
        mapping("m", "xs", "g", next_node="again"),
        tool("g", kind="chain", name="c", input_map={"top": "_item"}),
        branch("again", "count.n < `2`", true_node="count"),
    ]
    nested = inner.model_copy(
        update={"nodes": [*inner.nodes[:1], inner.nodes[1].model_copy(update={"false_node": "e"}), inner.nodes[2]]}
    )

    run = play(
        *nodes, tools={"slow": counter}, definitions=DEFINITIONS.model_copy(update={"chains": {"c": nested}}), xs=[7, 8]
    )

    assert run.output("m") == [{"n": 3, "top": 7}, {"n": 3, "top": 8}]
    assert "m#2/1/count#3" in run.story
    assert node_of("m#2/1/count#3") == NodeRef("m", iteration=2, index=1, inner=True)


@st.composite
def dags(draw: st.DrawFn) -> list[ChainNode]:
    """Nodes that lead forward only, each reached by something."""
    size = draw(st.integers(1, 9))
    nodes: list[dict[str, object]] = [
        {"node_id": f"n{i}", "kind": "tool", "name": "t", "deps": []} for i in range(size)
    ]
    for i in range(1, size):
        source, how = (
            nodes[draw(st.integers(0, i - 1))],
            draw(st.sampled_from(["next_node", "deps", "on_error", "input_map", "true_node", "false_node"])),
        )
        if how in ("true_node", "false_node") and not source.keys() & {"next_node", "input_map", how}:
            source.update(
                {
                    "kind": "branch",
                    "name": "",
                    "condition": draw(st.sampled_from(["`true`", "`false`", "k"])),
                    how: f"n{i}",
                }
            )
        elif how in ("next_node", "on_error") and how not in source and source["kind"] != "branch":
            source[how] = f"n{i}"
        elif how == "input_map":
            nodes[i]["input_map"] = {"x": source["node_id"]}
        else:
            nodes[i]["deps"] = [source["node_id"]]
    for i in range(1, size):
        nodes[i]["deps"] = sorted(
            {*nodes[i]["deps"], *draw(st.lists(st.sampled_from([f"n{j}" for j in range(i)]), max_size=2))}  # type: ignore[misc]  # a list
        )
    return [ChainNode.model_validate(node) for node in nodes]


@given(dags())
def test_any_chain_without_cycles_is_planned_without_cycles_and_all_of_it_can_run(nodes: list[ChainNode]) -> None:
    graph = plan(*nodes)

    ids = {step.id for step in graph.steps}
    successors = {step_id: [edge.target for edge in graph.edges if edge.source == step_id] for step_id in ids}
    assert ids == {node.node_id for node in nodes}
    assert all({edge.source, edge.target} <= ids for edge in graph.edges)
    assert not cycles(ids, successors)
    assert reach(["n0"], successors) == ids
    assert all(node_of(step_id) == NodeRef(step_id) for step_id in ids)
    assert len(set(graph.edges)) == len(graph.edges)


@given(dags(), st.randoms(use_true_random=False))
def test_any_chain_ends_whatever_fails_and_in_whatever_order(nodes: list[ChainNode], chance: object) -> None:
    choose = chance.choice  # type: ignore[attr-defined]  # hypothesis gives a random.Random

    def moody(given: dict[str, JsonValue]) -> JsonValue:
        return given if choose([True, True, True, False]) else fails(given)

    run = Run(request(*nodes), DEFINITIONS, {"t": moody}, choose).play()

    assert run.status in ("succeeded", "failed")
    assert len(run.story) == len(set(run.story))


def test_a_long_row_is_planned_without_recursion() -> None:
    ids = [f"n{i}" for i in range(thorough(10_000, plain=2000))]
    row = [
        tool(a, next_node=b, input_map={"x": f"{before}.data"})
        for before, a, b in zip(["topic", *ids], ids, [*ids[1:], None], strict=False)
    ]

    graph = plan(*row)

    assert len(graph.edges) == len(list(pairwise(ids)))
    assert step(graph, ids[-1]).reads == {ids[-2]: ids[-2]}


def test_several_nodes_may_be_next() -> None:
    nodes = [
        {"node_id": "a", "kind": "tool", "name": "echo", "next_node": ["b", "c"]},
        {"node_id": "b", "kind": "tool", "name": "echo", "next_node": "d"},
        {"node_id": "c", "kind": "branch", "condition": "`true`", "true_node": ["d", "e"]},
        {"node_id": "d", "kind": "tool", "name": "echo"},
        {"node_id": "e", "kind": "tool", "name": "echo"},
    ]
    definitions = Definitions(tools={"echo": Tool(function="m:echo")})

    run = Run(ChainRequest.model_validate({"nodes": nodes, "entry_node": "a"}), definitions).play()

    assert run.story == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("answers", "output"),
    [({"x": "a.k"}, 1), ({"x": "a.k", "y": "a.nothing"}, 1), ({"x": "a.k", "y": "input.z"}, {"x": 1, "y": 2})],
)
def test_a_named_chain_gives_its_answers(answers: dict[str, str], output: object) -> None:
    inner = Chain.model_validate(
        {"nodes": [{"node_id": "a", "kind": "tool", "name": "one"}], "entry_node": "a", "answers": answers}
    )
    definitions = Definitions(tools={"one": Tool(function="m:one")}, chains={"inner": inner})
    node = {"node_id": "it", "kind": "chain", "name": "inner", "input": {"z": 2}}

    run = Run(
        ChainRequest.model_validate({"nodes": [node], "entry_node": "it"}), definitions, {"one": lambda given: {"k": 1}}
    ).play()

    assert run.output("it") == output
