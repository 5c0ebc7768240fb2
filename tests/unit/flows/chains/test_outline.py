"""The outline of a chain: its terminals, and what can start."""

from __future__ import annotations

import pytest

from cantata.flows.chains.loops import outline
from cantata.flows.wire import ChainNode
from tests.unit.flows.sample_chains import branch, mapping, plan, request, tool


@pytest.mark.parametrize(
    ("nodes", "terminals"),
    [
        ([tool("a", next_node="b"), tool("b"), tool("c", deps=["a"])], ("b", "c")),
        ([tool("a", next_node="m"), mapping("m", "a", "b"), tool("b")], ("m",)),
        ([tool("a", next_node="b"), branch("b", "a", true_node="a")], ("b",)),
        (
            [
                tool("a", next_node="b", input_map={"x": "b"}),
                branch("b", "a", true_node="a", false_node="c"),
                tool("c"),
            ],
            ("c",),
        ),
        ([tool("a", on_error="b"), tool("b")], ("b",)),
    ],
)
def test_terminals_are_what_nobody_depends_on_or_is_led_to_from(
    nodes: list[ChainNode], terminals: tuple[str, ...]
) -> None:
    assert outline(request(*nodes).nodes, request(*nodes).entry_node).terminals == terminals
    assert plan(*nodes).terminals == terminals


def test_the_node_before_is_looked_for_behind_branches_and_comes_first_from_the_same_loop() -> None:
    nodes = [
        tool("a", next_node="first"),
        tool("first", next_node="again"),
        branch("again", "x", true_node="first", false_node="end"),
        tool("end"),
    ]

    whole = outline(nodes, "a")

    assert [(node_id, len(backs)) for node_id, backs in whole.before("first")] == [("first", 1), ("a", 0)]
    assert [node_id for node_id, _ in whole.before("end")] == ["first"]


def test_without_a_way_that_leads_to_it_the_node_before_is_each_of_its_deps() -> None:
    whole = outline([tool("a", next_node="c"), tool("b"), tool("c", deps=["b"]), tool("d", deps=["b", "c"])], "a")

    assert [node_id for node_id, _ in whole.before("c")] == ["a"]
    assert [node_id for node_id, _ in whole.before("d")] == ["b", "c"]


def test_only_what_control_or_data_lead_to_can_start() -> None:
    whole = outline(
        [tool("a", next_node="b"), tool("b"), tool("c", input_map={"x": "b"}), tool("d", next_node="e"), tool("e")], "a"
    )

    assert whole.reached() == {"a", "b", "c"}
