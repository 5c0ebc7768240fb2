"""Whole chains: what is rejected, and with which message."""

from __future__ import annotations

import pytest

from cantata.errors import ConfigError
from cantata.flows.chains import checks, graph_of_nodes
from cantata.flows.definitions import Chain, Definitions, Limits, Tool
from cantata.flows.wire import ChainNode, ChainRequest
from tests.unit.flows.sample_chains import DEFINITIONS, branch, faults, mapping, request, tool


def test_all_faults_are_told_at_once_under_the_code_of_their_sort() -> None:
    messages, code = faults(
        tool("a", next_node="b", name="x"), tool("b", next_node="a", condition="y"), tool("b"), entry="zzz"
    )

    assert [message.partition(":")[0] for message in messages] == [
        "nodes[0] 'a'.name",
        "nodes[1] 'b'.condition",
        "nodes[2] 'b'.node_id",
        "entry_node",
        "nodes[1] 'b'.next_node",
    ]
    assert code == "bad_request"


def test_a_misspelt_target_hides_no_other_fault_and_makes_none() -> None:
    messages, _ = faults(
        tool("start", next_node="summarize"), tool("summarise", next_node="report"), tool("report"), tool("lost")
    )

    assert [message.partition(":")[0] for message in messages] == ["nodes[0] 'start'.next_node", "nodes[3] 'lost'"]


def test_a_refusal_does_not_outgrow_its_request() -> None:
    odd = [tool("".join(chr(0xE000 + i) for i in range(6000)) + str(n)) for n in range(10)]
    unknown = [ChainNode(node_id=f"n{n}", kind="tool", name=f"nope{n}", deps=["x" * 5000]) for n in range(5000)]

    for nodes in (odd, unknown):
        found, code = checks.check(request(*nodes), DEFINITIONS)

        assert len(str(ConfigError(found, code=code))) < 500_000
        assert len(found) <= 101
    assert found[-1].message == "there are more faults; these are the first 100"


def test_too_many_links_are_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (graph_of_nodes, checks):
        monkeypatch.setattr(module, "MAX_LINKS", 1000)
    nodes = [tool(f"n{n}", deps=[f"n{other}" for other in range(n)]) for n in range(50)]

    assert faults(*nodes) == (["nodes: there are more than 1,000 links between nodes; split the chain"], "bad_request")


def test_too_many_nodes_are_told_in_one_sentence() -> None:
    few = Definitions(limits=Limits(max_nodes=3))

    assert faults(*(tool(str(i)) for i in range(4)), definitions=few) == (
        ["nodes: 4 nodes are more than the 3 allowed; split the chain, or raise limits.max_nodes"],
        "bad_request",
    )
    assert checks.check(ChainRequest(nodes=[]), few)[0][0].message == "there are no nodes"


def test_chains_that_run_each_other_in_a_circle_are_refused() -> None:
    inner = {
        name: Chain(entry_node="x", nodes=[tool("x", kind="chain", name=other)])
        for name, other in (("a", "b"), ("b", "a"))
    }
    definitions = Definitions(chains=inner)

    messages, code = faults(tool("n", kind="chain", name="a"), definitions=definitions)

    assert code == "chain_cycle"
    assert len(messages) == 1
    assert "run each other in a cycle" in messages[0]
    assert messages[0].startswith("chains.")
    assert [str(fault) for fault in checks.check_chains(definitions)] == messages


def test_the_faults_of_a_chain_that_is_run_are_told_with_its_name() -> None:
    definitions = Definitions(
        chains={
            "sub": Chain(entry_node="x", nodes=[tool("x", name="gone")]),
            "other": Chain(entry_node="", nodes=[tool("y")]),
        }
    )

    messages, _ = faults(tool("n", kind="chain", name="sub"), definitions=definitions)

    assert messages == ["chains.sub.nodes[0] 'x'.name: 'gone' is not under 'tools'; nothing is"]
    assert [str(fault).partition(":")[0] for fault in checks.check_chains(definitions)] == [
        "chains.sub.nodes[0] 'x'.name",
        "chains.other.nodes[0] 'y'.name",
        "chains.other.entry_node",
    ]


def test_loops_and_maps_nest_to_a_limit() -> None:
    deep = [tool("m0", kind="map", name="", items_path="x", map_node="m1")]
    deep += [mapping(f"m{i}", "_item", f"m{i + 1}") for i in range(1, 18)]
    rows = [tool(f"a{i}", next_node=f"a{i + 1}" if i < 17 else "b17") for i in range(18)]
    backs = [branch(f"b{i}", "x", true_node=f"a{i}", false_node=f"b{i - 1}" if i else None) for i in range(18)]

    assert any("more than 16 maps are nested" in message for message in faults(*deep, tool("m18"))[0])
    assert any("inside more than 16 others" in message for message in faults(*rows, *backs)[0])


def test_a_side_that_points_back_leads_nowhere_else() -> None:
    nodes = [
        {"node_id": "a", "kind": "tool", "name": "echo", "next_node": "more"},
        {"node_id": "more", "kind": "branch", "condition": "`true`", "true_node": ["a", "b"]},
        {"node_id": "b", "kind": "tool", "name": "echo"},
    ]
    definitions = Definitions(tools={"echo": Tool(function="m:echo")})

    faults, code = checks.check(ChainRequest.model_validate({"nodes": nodes, "entry_node": "a"}), definitions)

    assert code == "chain_cycle"
    assert "form a cycle" in faults[0].message


def test_an_answer_that_cannot_be_read_is_a_fault() -> None:
    inner = Chain.model_validate(
        {"nodes": [{"node_id": "a", "kind": "tool", "name": "one"}], "entry_node": "a", "answers": {"x": "a.("}}
    )
    definitions = Definitions(tools={"one": Tool(function="m:one")}, chains={"inner": inner})

    assert [fault.where for fault in checks.check_chains(definitions)] == ["chains.inner.answers.x"]
