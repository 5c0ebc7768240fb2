"""Links between nodes: which field states them, and which step they are between."""

from __future__ import annotations

import pytest

from cantata.flows.chains import graph_of_nodes
from cantata.flows.expressions.expressions import ExpressionError
from cantata.flows.wire import ChainNode
from tests.unit.flows.sample_chains import branch, mapping, tool


def stated(*nodes: ChainNode) -> list[str]:
    return [
        f"{link.source} {link.sort} {link.target} {link.label} ({link.owner}.{link.field})"
        for link in graph_of_nodes.read(nodes).links
    ]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (tool("a"), []),
        (tool("a", next_node="b"), [("next_node", "b", "done")]),
        (tool("a", next_node=["b", "c"]), [("next_node", "b", "done"), ("next_node", "c", "done")]),
        (tool("a", on_error="d"), [("on_error", "d", "failed")]),
        (tool("a", on_error="skip"), []),
        (branch("a", "x", true_node="b", next_node="c"), [("true_node", "b", "true"), ("next_node", "c", "false")]),
        (branch("a", "x", false_node=["c", "d"]), [("false_node", "c", "false"), ("false_node", "d", "false")]),
    ],
)  # fmt: skip
def test_a_node_leads_along_these_links(node: ChainNode, expected: list[tuple[str, str, str]]) -> None:
    assert list(graph_of_nodes.leads(node)) == expected


@pytest.mark.parametrize(
    ("node", "fields"),
    [
        (tool("a", input_map={"x": "b", "y": "c"}), ["input_map.x", "input_map.y"]),
        (branch("a", "b", input_map={"x": "c"}), ["condition"]),
        (mapping("a", "b", "c", input_map={"x": "d"}), ["items_path"]),
        (tool("a", kind="wait", name="", input_map={"x": "d"}), []),
    ],
)
def test_only_expressions_that_have_an_effect_are_read(node: ChainNode, fields: list[str]) -> None:
    assert [field for field, _ in graph_of_nodes.expressions(node)] == fields


def test_each_sort_of_link_is_found_once_with_the_field_that_states_it() -> None:
    nodes = (tool("a", next_node="c"), tool("b"), tool("c", deps=["b", "b"], input_map={"x": "a.x", "y": "a.y"}))

    assert stated(*nodes) == [
        "a leads c done (a.next_node)",
        "b awaits c done (c.deps)",
        "a reads c done (c.input_map.x)",
    ]


def test_what_the_node_of_a_map_reads_its_map_reads_and_nested_maps_are_one_step() -> None:
    nodes = (
        tool("a"),
        mapping("m", "a", "n"),
        mapping("n", "_item", "t"),
        tool("t", input_map={"x": "a", "y": "item"}),
    )

    found = graph_of_nodes.read(nodes)

    assert found.steps == ["a", "m"]
    assert (found.owner_of("t"), found.owner_of("a")) == ("m", "a")
    assert [(link.source, link.target, link.owner) for link in found.links] == [("a", "m", "m"), ("a", "m", "t")]


def test_maps_that_run_each_other_have_no_end_and_are_no_steps() -> None:
    found = graph_of_nodes.read((mapping("m", "x", "n"), mapping("n", "x", "m")))

    assert found.steps == []
    assert graph_of_nodes.outermost("m", found.bodies) == "m"


def test_an_id_that_is_misspelt_is_corrected_or_its_link_left_out() -> None:
    nodes = [tool("a", next_node="bb", on_error="nowhere"), tool("b")]

    found = graph_of_nodes.read(nodes, {"bb": "b", "a": "a", "b": "b"}.get)

    assert [(link.source, link.target) for link in found.links] == [("a", "b")]


def test_an_expression_that_cannot_be_read_is_kept_with_its_reason() -> None:
    found = graph_of_nodes.read([tool("a", input_map={"x": "a ="})])

    assert list(found.readable) == []
    assert "compare with ==" in found.unreadable["a ="]
    with pytest.raises(ExpressionError):
        graph_of_nodes.roots(["a ="], ["a"])


def test_the_number_of_links_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_of_nodes, "MAX_LINKS", 3)

    assert (
        len(
            graph_of_nodes.read(
                [tool("a", next_node=[f"n{i}" for i in range(9)]), *(tool(f"n{i}") for i in range(9))]
            ).links
        )
        == 4
    )
