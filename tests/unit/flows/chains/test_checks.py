"""Whole chains: what is rejected, and with which message."""

from __future__ import annotations

import pytest

from cantata.errors import ConfigError
from cantata.flows.chains import checks, graph_of_nodes
from cantata.flows.definitions import Chain, Definitions, Limits, Tool
from cantata.flows.wire import ChainNode, ChainRequest
from tests.unit.flows.sample_chains import DEFINITIONS, branch, faults, mapping, request, tool


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (
            [tool("a", next_node="sumarise"), tool("summarise")],
            ".next_node: node 'sumarise' is not in the chain; did you mean 'summarise'?",
        ),
        ([tool("a", next_node="b"), tool("b", deps=["c"])], "nodes[1] 'b'.deps: node 'c' is not in the chain"),
        ([tool("a", on_error="skpi")], "nodes[0] 'a'.on_error: node 'skpi' is not in the chain; did you mean 'skip'?"),
        ([branch("a", "x", true_node="b", false_node="x"), tool("b")], "nodes[0] 'a'.false_node: node 'x' is not in the chain"),
        ([mapping("a", "x", "b")], "nodes[0] 'a'.map_node: node 'b' is not in the chain"),
        ([tool("a", next_node="b"), tool("b"), tool("b")], "nodes[2] 'b'.node_id: the id is also that of nodes[1]"),
        ([tool("")], "nodes[0] ''.node_id: the id is empty"),
        ([tool("a" * 129)], "the id has 129 characters; 128 are allowed"),
        ([tool("a/b")], "nodes[0] 'a/b'.node_id: the id contains '/', which is not allowed"),
        ([tool("a\nb")], r"nodes[0] 'a\nb'.node_id: the id contains '\n', which is not allowed"),
        ([tool("a", name="tt")], "nodes[0] 'a'.name: 'tt' is not under 'tools'; did you mean 't'?"),
        ([tool("a", name="zzz")], "'zzz' is not under 'tools'; known are 't', 'slow', 'files.<tool>'"),
        ([tool("a", name="files")], "'files' is an MCP server; name one of its tools, as 'files.<tool>'"),
        ([tool("a", name="flies.read")], "'flies.read' is not under 'tools'; did you mean 'files.read'?"),
        ([tool("a", kind="skill", name="files.read")], "it is under 'tools': make the kind 'tool'"),
        ([tool("a", name="")], "nodes[0] 'a'.name: is missing: a tool needs a name under 'tools'"),
        ([tool("a", name="one")], "'one' is not under 'tools'; it is under 'agents': make the kind 'agent'"),
        ([tool("a", kind="skill", name="q")], "'q' is not under 'skills', 'agents', 'teams' or 'chains'"),
        ([tool("a", kind="agent", name="s")], "'s' is not under 'agents' or 'teams'; it is under 'skills': make the kind 'skill'"),
        ([tool("a", kind="chain", name="subb")], "'subb' is not under 'chains'; did you mean 'sub'?"),
        ([tool("a", kind="proc", name="rm")], "'rm' is not under 'commands'; known are 'ls'"),
        ([tool("a", input_map={"x": "b ="})], "nodes[0] 'a'.input_map.x: expression 'b =', column 3: unexpected '='"),
        ([tool("a", input_map={"x": ""})], "nodes[0] 'a'.input_map.x: expression '' is empty"),
        ([branch("a", "b ||", true_node="b"), tool("b")], "nodes[0] 'a'.condition: expression 'b ||', column 5: it ends too early"),
        ([mapping("a", "b..c", "b"), tool("b")], "nodes[0] 'a'.items_path: expression 'b..c', column 3"),
        ([branch("a", "", true_node="b"), tool("b")], "nodes[0] 'a'.condition: is missing: a branch needs an expression"),
        ([branch("a", "x")], "nodes[0] 'a'.true_node: is missing: a branch needs 'true_node', 'false_node' or both"),
        ([branch("a", "x", true_node="b", false_node="b", next_node="b"), tool("b")], "'a'.next_node: has no effect: both sides"),
        ([mapping("a", "", "b"), tool("b")], "nodes[0] 'a'.items_path: is missing: a map needs an expression that gives a list"),
        ([tool("a", kind="map", name="", items_path="x")], "nodes[0] 'a'.map_node: is missing: a map needs the node to run"),
        ([tool("a", condition="x")], "nodes[0] 'a'.condition: has no effect on a tool; it belongs to a branch"),
        ([tool("a", max_concurrency=3)], "nodes[0] 'a'.max_concurrency: has no effect on a tool; it belongs to a map"),
        ([branch("a", "x", true_node="b", retry=1), tool("b")], "nodes[0] 'a'.retry: has no effect on a branch"),
        ([mapping("a", "x", "b", timeout=1), tool("b")], "nodes[0] 'a'.timeout: has no effect on a map; put it on its map_node"),
        ([tool("a", kind="chain", name="sub", timeout=1)], "nodes[0] 'a'.timeout: has no effect on a chain"),
        ([tool("a", kind="skill", name="team", retry=1)], "nodes[0] 'a'.retry: has no effect on a team"),
        ([tool("a", kind="wait", name="", default=1)], "nodes[0] 'a'.default: has no effect without 'timeout'"),
        ([mapping("m", "x", "b"), mapping("n", "x", "b", deps=["m"]), tool("b")], "'n'.map_node: node 'b' is the map_node of 'm' already"),
        ([mapping("m", "x", "b"), branch("b", "x", true_node="m")], "nodes[0] 'm'.map_node: node 'b' is of kind 'branch'; a map runs"),
        ([mapping("m", "x", "b"), tool("b", next_node="m")], "nodes[1] 'b'.next_node: has no effect on the map_node of 'm'; put it on 'm'"),
        ([mapping("m", "x", "b"), tool("b", deps=["m"])], "nodes[1] 'b'.deps: has no effect on the map_node of 'm'; put it on 'm'"),
        ([mapping("m", "x", "b"), tool("b", on_error="m")], "nodes[1] 'b'.on_error: has no effect on the map_node of 'm'"),
        ([mapping("m", "x", "b"), tool("b"), tool("c", deps=["m"], next_node="b")], "node 'b' is the map_node of 'm'; lead to 'm' instead"),
        ([tool("a"), tool("b")], "nodes[1] 'b': cannot be reached: it is not the entry, has no deps, and no node leads to it"),
        ([tool("a"), tool("b"), tool("c", deps=["b"])], "nodes[2] 'c': cannot be reached from the entry 'a': only 'b' could start it"),
    ],
)
def test_a_fault_is_reported_with_its_place_and_what_to_do(nodes: list[ChainNode], expected: str) -> None:
    messages, code = faults(*nodes)

    assert any(expected in message for message in messages), messages
    assert code == "bad_request"


@pytest.mark.parametrize(
    ("nodes", "entry", "expected"),
    [
        ([tool("a")], "", "entry_node: is missing: name the node to start with, such as 'a'"),
        ([tool("reed")], "read", "entry_node: node 'read' is not in the chain; did you mean 'reed'?"),
        ([mapping("m", "x", "b"), tool("b")], "b", "entry_node: node 'b' is the map_node of 'm'; start with 'm'"),
    ],
)
def test_a_bad_entry_has_a_code_of_its_own(nodes: list[ChainNode], entry: str, expected: str) -> None:
    assert faults(*nodes, entry=entry) == ([expected], "bad_entry")


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([tool("a", next_node="a")], "nodes[0] 'a'.next_node: nodes 'a' → 'a' form a cycle"),
        ([tool("a", next_node="b"), tool("b", next_node="a")], "nodes[1] 'b'.next_node: nodes 'a' → 'b' → 'a' form a cycle"),
        ([tool("a", next_node="b"), tool("b", on_error="a")], "nodes[1] 'b'.on_error: nodes 'a' → 'b' → 'a' form a cycle"),
        ([tool("a", next_node="b", deps=["b"]), tool("b")], "nodes 'a' → 'b' → 'a' form a cycle"),
        ([tool("a", input_map={"x": "b"}, next_node="b"), tool("b")], "nodes[0] 'a'.input_map.x: nodes 'a' → 'b' → 'a' form a cycle"),
        ([tool("a", input_map={"x": "a"})], "nodes[0] 'a'.input_map.x: nodes 'a' → 'a' form a cycle"),
        ([branch("a", "x", true_node="a", false_node="b"), tool("b")], "nodes[0] 'a'.true_node: nodes 'a' → 'a' form a cycle"),
        ([tool("a", next_node="b"), branch("b", "x", true_node="a", false_node="a")], "nodes 'a' → 'b' → 'a' form a cycle"),
        (
            [tool("a", next_node="b"), branch("b", "c", true_node="c", next_node="d"), tool("c"), tool("d")],
            "nodes 'b' → 'c' → 'b' form a cycle",
        ),
        ([tool("a"), mapping("m", "x", "n"), mapping("n", "y", "m")], "nodes[1] 'm'.map_node: the maps 'm' → 'n' → 'm' run each other"),
        (
            [
                tool("s", next_node="a", on_error="x"),
                tool("a", next_node="b"),
                tool("x", deps=["a"]),
                branch("b", "k", true_node="a", deps=["x"]),
            ],
            "nodes[2] 'x': it is in the loop that 'b' closes, but no node of the loop starts it; lead to it with 'next_node'",
        ),
    ],
)
def test_a_cycle_that_is_no_loop_is_refused(nodes: list[ChainNode], expected: str) -> None:
    messages, code = faults(*nodes)

    assert [message for message in messages if expected in message] == messages
    assert code == "chain_cycle"


def test_all_faults_are_told_at_once_under_the_code_of_their_sort() -> None:
    messages, code = faults(tool("a", next_node="b", name="x"), tool("b", next_node="a", condition="y"), tool("b"), entry="zzz")

    assert [message.partition(":")[0] for message in messages] == [
        "nodes[0] 'a'.name", "nodes[1] 'b'.condition", "nodes[2] 'b'.node_id", "entry_node", "nodes[1] 'b'.next_node",
    ]  # fmt: skip
    assert code == "bad_request"


def test_a_misspelt_target_hides_no_other_fault_and_makes_none() -> None:
    messages, _ = faults(tool("start", next_node="summarize"), tool("summarise", next_node="report"), tool("report"), tool("lost"))

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
        ["nodes: 4 nodes are more than the 3 allowed; split the chain, or raise limits.max_nodes"], "bad_request",
    )  # fmt: skip
    assert checks.check(ChainRequest(nodes=[]), few)[0][0].message == "there are no nodes"


def test_chains_that_run_each_other_in_a_circle_are_refused() -> None:
    inner = {name: Chain(entry_node="x", nodes=[tool("x", kind="chain", name=other)]) for name, other in (("a", "b"), ("b", "a"))}
    definitions = Definitions(chains=inner)

    messages, code = faults(tool("n", kind="chain", name="a"), definitions=definitions)

    assert code == "chain_cycle"
    assert len(messages) == 1
    assert "run each other in a cycle" in messages[0]
    assert messages[0].startswith("chains.")
    assert [str(fault) for fault in checks.check_chains(definitions)] == messages


def test_the_faults_of_a_chain_that_is_run_are_told_with_its_name() -> None:
    definitions = Definitions(
        chains={"sub": Chain(entry_node="x", nodes=[tool("x", name="gone")]), "other": Chain(entry_node="", nodes=[tool("y")])}
    )

    messages, _ = faults(tool("n", kind="chain", name="sub"), definitions=definitions)

    assert messages == ["chains.sub.nodes[0] 'x'.name: 'gone' is not under 'tools'; nothing is"]
    assert [str(fault).partition(":")[0] for fault in checks.check_chains(definitions)] == [
        "chains.sub.nodes[0] 'x'.name", "chains.other.nodes[0] 'y'.name", "chains.other.entry_node",
    ]  # fmt: skip


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
    inner = Chain.model_validate({"nodes": [{"node_id": "a", "kind": "tool", "name": "one"}], "entry_node": "a", "answers": {"x": "a.("}})
    definitions = Definitions(tools={"one": Tool(function="m:one")}, chains={"inner": inner})

    assert [fault.where for fault in checks.check_chains(definitions)] == ["chains.inner.answers.x"]
