"""Chains: what is rejected and with which message, what is planned, and how it runs by the rules of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.errors import ConfigError
from cantata.models.definitions import Agent, Chain, Command, Defaults, Definitions, Limits, McpServer, Team, Tool
from cantata.models.graph import Graph, Step
from cantata.models.values import JsonValue
from cantata.models.wire import ChainNode, ChainRequest
from cantata.planning.chain_checks import checks
from cantata.planning.chains import expansion, links
from cantata.planning.chains.step_ids import NodeRef, node_of
from cantata.planning.graphs import cycles, reach
from tests.examples import examples
from tests.unit.planning.interpreter import Run, ToolFailure
from tests.unit.planning.interpreter import Tool as Function

FILES = Tool(mcp=McpServer(command=["my-mcp-server", "--stdio"]))
ONCE = Tool(function="m:pay", at_most_once=True)
DEFINITIONS = Definitions(
    tools={
        "t": Tool(function="m:t"),
        "slow": Tool(function="m:slow", queue="gpu", timeout_s=9, retries=2, cheap=False),
        "files": FILES,
        "once": ONCE,
    },
    skills={"s": Tool(function="m:s"), "web.pages": Tool(mcp=McpServer(url="http://localhost/mcp"), queue="gpu", retries=2)},
    commands={"ls": Command(command=["ls"], timeout_s=7)},
    agents={"one": Agent(queue="llm", retries=5, timeout_s=8), "many": Agent(instructions=["a", "b"])},
    teams={"team": Team(mode="pipeline", agents=["one"])},
    chains={"sub": Chain(entry_node="a", nodes=[ChainNode(node_id="a", kind="tool", name="t", input_map={"x": "n"})])},
)


def tool(node_id: str, **fields: object) -> ChainNode:
    return ChainNode.model_validate({"kind": "tool", "name": "t", **fields, "node_id": node_id})


def branch(node_id: str, condition: str, **fields: object) -> ChainNode:
    return tool(node_id, kind="branch", name="", condition=condition, **fields)


def mapping(node_id: str, items: str, body: str, **fields: object) -> ChainNode:
    return tool(node_id, kind="map", name="", items_path=items, map_node=body, **fields)


def request(*nodes: ChainNode, **initial: JsonValue) -> ChainRequest:
    return ChainRequest(nodes=list(nodes), entry_node=nodes[0].node_id, initial_input=initial)


def faults(*nodes: ChainNode, entry: str | None = None, definitions: Definitions = DEFINITIONS) -> tuple[list[str], str]:
    asked = request(*nodes) if entry is None else request(*nodes).model_copy(update={"entry_node": entry})
    found, code = checks.check(asked, definitions, is_draft=True)
    return [str(fault) for fault in found], code


def plan(*nodes: ChainNode, **initial: JsonValue) -> Graph:
    return expansion.plan(request(*nodes, **initial), DEFINITIONS)


def step(graph: Graph, step_id: str) -> Step:
    return next(step for step in graph.steps if step.id == step_id)


def edges(graph: Graph) -> set[str]:
    """Edges in short: `a -> b`, with the label if it is not `done`, and in brackets if it only orders."""
    shown = set()
    for edge in graph.edges:
        text = f"{edge.source} -> {edge.target}{'' if edge.label == 'done' else f' {edge.label}'}"
        shown.add(text if edge.wakes else f"({text})")
    return shown


def play(
    *nodes: ChainNode, tools: Mapping[str, Function] | None = None, definitions: Definitions = DEFINITIONS, **initial: JsonValue
) -> Run:
    return Run(request(*nodes, **initial), definitions, tools or {}).play()


def fails(given: dict[str, JsonValue]) -> JsonValue:
    raise ToolFailure


def counter(given: dict[str, JsonValue]) -> JsonValue:
    """Counts on from what it is given."""
    n = given.get("n") or 0
    assert isinstance(n, int)
    return {"n": n + 1}


# What is refused


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
    for module in (links, checks):
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


@pytest.mark.parametrize("node_id", ["list-files", "2nd", "42", "a.b", "ä", "input", "output", "true", "a b", "'", "x" * 128])
def test_ids_of_many_kinds_are_allowed(node_id: str) -> None:
    assert faults(tool(node_id)) == ([], "bad_request")


# What is planned: kinds


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (tool("a"), {"kind": "tool.call", "queue": "tools", "work": "tools:t", "params": {"section": "tools", "tool": "t"}}),
        (tool("a", input={"x": 1}), {"params": {"section": "tools", "tool": "t", "input": {"x": 1}}}),
        (tool("a", name="slow"), {"queue": "gpu", "timeout_s": 9, "retries": 2, "cheap": False}),
        (tool("a", name="slow", retry=4, timeout=1), {"timeout_s": 1, "retries": 4}),
        (tool("a", name="once", retry=4), {"at_most_once": True, "retries": 0}),
        (tool("a", kind="skill", name="s"), {"kind": "tool.call", "work": "skills:s", "params": {"section": "skills", "tool": "s"}}),
        (tool("a", name="files.read", input={"x": 1}), {"kind": "mcp.call", "queue": "agents", "work": "tools:files.read", "retries": 0}),
        (tool("a", name="files.read"), {"params": {"section": "tools", "tool": "files", "method": "read"}}),
        (tool("a", name="files.read.all", timeout=2, retry=1), {"timeout_s": 2, "retries": 1, "work": "tools:files.read.all"}),
        (tool("a", kind="skill", name="web.pages.get"), {"kind": "mcp.call", "queue": "gpu", "retries": 2}),
        (tool("a", kind="skill", name="web.pages.get"), {"params": {"section": "skills", "tool": "web.pages", "method": "get"}}),
        (tool("a", kind="agent", name="one"), {"kind": "agent.turn", "queue": "llm", "work": "agents:one", "retries": 5}),
        (tool("a", kind="agent", name="one"), {"timeout_s": None}),
        (tool("a", kind="skill", name="one", input_map={"text": "q"}), {"params": {"agent": "one", "turn": 0, "map": {"text": "q"}}}),
        (tool("a", kind="agent", name="many"), {"kind": "agent.run", "decides": True, "expands": True, "params": {"agent": "many"}}),
        (tool("a", kind="agent", name="team"), {"kind": "team.run", "decides": True, "expands": True, "params": {"team": "team"}}),
        (tool("a", kind="chain", name="sub"), {"kind": "chain.run", "decides": True, "expands": True, "params": {"chain": "sub"}}),
        (tool("a", kind="skill", name="sub"), {"kind": "chain.run", "work": "chains:sub"}),
        (tool("a", kind="proc", name="ls"), {"kind": "proc.run", "queue": "tools", "timeout_s": 7, "params": {"command": "ls"}}),
        (tool("a", kind="wait", name="", timeout=5, default=[1]), {"kind": "wait", "timeout_s": 5, "given": [1]}),
        (tool("a", on_error="skip"), {"on_error": "skip"}),
        (mapping("a", "x", "b", max_concurrency=3), {"kind": "chain.map", "decides": True, "expands": True}),
    ],
)  # fmt: skip
def test_a_node_becomes_a_step_of_its_kind(node: ChainNode, expected: dict[str, object]) -> None:
    more = [tool("b")] if node.kind == "map" else []

    planned = step(plan(node, *more), "a")

    assert {name: getattr(planned, name) for name in expected} == expected


def test_a_map_carries_what_its_items_are_to_do() -> None:
    graph = plan(
        tool("s", next_node="m"),
        mapping("m", "s.items", "b", max_concurrency=3),
        tool("b", input={"k": 1}, input_map={"x": "_item.x", "y": "s.y", "z": "index"}, on_error="skip"),
    )

    assert step(graph, "m").params == {
        "items": "s.items", "window": 3, "skip": True,
        "body": {
            "kind": "tool.call", "queue": "tools", "work": "tools:t", "reads": {"s": "s"}, "on_error": "skip",
            "params": {"section": "tools", "tool": "t", "input": {"k": 1}, "map": {"x": "_item.x", "y": "s.y", "z": "index"}},
        },
    }  # fmt: skip
    assert [step.id for step in graph.steps] == ["s", "m"]
    assert graph.terminals == ("m",)


def test_a_map_without_a_width_has_the_default_one() -> None:
    narrow = DEFINITIONS.model_copy(update={"defaults": Defaults(max_concurrency=7)})

    assert step(expansion.plan(request(mapping("m", "x", "b"), tool("b"), x=[]), narrow), "m").params["window"] == 7


@pytest.mark.parametrize(
    ("of_map", "of_body", "of_item"), [("abort", "abort", None), ("skip", "abort", "skip"), ("abort", "skip", "skip"), ("e", "abort", None)]
)
def test_a_failing_item_is_skipped_if_its_map_or_its_node_says_so(of_map: str, of_body: str, of_item: str | None) -> None:
    graph = plan(mapping("m", "x", "b", on_error=of_map), tool("b", on_error=of_body), tool("e", deps=["m"]))

    body = step(graph, "m").params["body"]
    assert isinstance(body, dict)
    assert body.get("on_error") == of_item


# What is planned: reads


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
    ("text", "reads"), [("read", {"read": "read"}), ("topic", {"@input": "=@start"}), ("input.topic", {"@input": "=@start"}), ("`1`", {})]
)
def test_the_initial_input_is_read_only_where_it_is_named(text: str, reads: dict[str, str]) -> None:
    assert step(plan(tool("read", next_node="b"), tool("b", input_map={"x": text})), "b").reads == reads


def test_a_node_hides_an_initial_key_and_the_names_of_the_root() -> None:
    graph = plan(tool("input", next_node="output"), tool("output", next_node="c"), tool("c", input_map={"a": "input", "b": "output"}))

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


# What is planned: edges


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
        "a -> b", "a -> h failed", "b -> c true", "b -> d false", "(a -> c)", "(c -> d)", "c -> e", "d -> e",
    }  # fmt: skip
    assert graph.terminals == ("e", "h")


def test_the_default_of_a_branch_is_its_next_node() -> None:
    graph = plan(branch("a", "x", true_node="b", next_node="c"), tool("b"), tool("c"))

    assert edges(graph) == {"a -> b true", "a -> c false"}


def test_what_the_node_of_a_map_reads_comes_before_the_map() -> None:
    graph = plan(tool("a", next_node="m"), tool("k", deps=["a"]), mapping("m", "a", "b"), tool("b", input_map={"x": "k"}))

    assert edges(graph) == {"a -> m", "a -> k", "(k -> m)"}


@pytest.mark.parametrize(
    ("nodes", "terminals"),
    [
        ([tool("a", next_node="b"), tool("b"), tool("c", deps=["a"])], ("b", "c")),
        ([tool("a", next_node="m"), mapping("m", "a", "b"), tool("b")], ("m",)),
        ([tool("a", next_node="b"), branch("b", "a", true_node="a")], ("b",)),
        ([tool("a", next_node="b", input_map={"x": "b"}), branch("b", "a", true_node="a", false_node="c"), tool("c")], ("c",)),
        ([tool("a", on_error="b"), tool("b")], ("b",)),
    ],
)
def test_terminals_are_what_nobody_depends_on_or_is_led_to_from(nodes: list[ChainNode], terminals: tuple[str, ...]) -> None:
    assert expansion.terminals(request(*nodes)) == terminals
    assert plan(*nodes).terminals == terminals


# Ids


@pytest.mark.parametrize(
    ("step_id", "ref"),
    [
        ("a", NodeRef("a")),
        ("a#3", NodeRef("a", iteration=3)),
        ("a#2.1", NodeRef("a", iteration=1)),
        ("m/7", NodeRef("m", index=7)),
        ("m#2/7", NodeRef("m", iteration=2, index=7)),
        ("m/@gather", NodeRef("m", inner=True)),
        ("m/7/2", NodeRef("m", index=7, inner=True)),
        ("m/7/@gather", NodeRef("m", index=7, inner=True)),
        ("g/a#2", NodeRef("g", inner=True)),
        ("g/@7", NodeRef("g", inner=True)),
        ("g/@end", NodeRef("g", inner=True)),
        ("g/h/@end", NodeRef("g", inner=True)),
        ("@start", NodeRef("@start", inner=True)),
    ],
)
def test_a_step_id_tells_its_node(step_id: str, ref: NodeRef) -> None:
    assert node_of(step_id) == ref


# How it runs


def test_the_chain_of_the_cookbook_joins_over_an_untaken_branch() -> None:
    nodes = [
        tool("parse", next_node="check", input_map={"text": "text"}),
        branch("check", "parse.data_type == 'numeric'", true_node="numeric_transform", false_node="text_transform"),
        tool("numeric_transform", name="t", input_map={"values": "parse.values"}, next_node="write_output"),
        tool("text_transform", name="slow", input_map={"values": "parse.values"}, next_node="write_output"),
        tool("write_output", kind="skill", name="s", input_map={"x": "numeric_transform.stats OR text_transform.summary"}),
    ]
    tools: dict[str, Function] = {
        "t": lambda given: {"data_type": given["text"], "values": [1, 2]} if "text" in given else {"stats": given["values"]},
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
        tool("a", next_node="b", on_error="h"), branch("b", "`false`", true_node="c"), tool("c", next_node="d"), tool("d"), tool("h")
    )

    assert run.story == ["a", "b"]
    assert [run.state(node) for node in "cdh"] == ["skipped"] * 3


def test_skip_goes_on_with_null() -> None:
    run = play(tool("a", name="slow", on_error="skip", next_node="b"), tool("b", input_map={"x": "a"}), tools={"slow": fails})

    assert run.output("b") == {"x": None}
    assert run.status == "succeeded"


def test_a_jump_takes_the_edge_for_failure_alone() -> None:
    run = play(tool("a", name="slow", on_error="h", next_node="b"), tool("b"), tool("h", next_node="b"), tools={"slow": fails})

    assert run.story == ["a", "h", "b"]


def test_abort_ends_the_run() -> None:
    assert play(tool("a", name="slow", next_node="b"), tool("b"), tools={"slow": fails}).status == "failed"


def test_a_map_keeps_length_and_order_and_its_node_answers_with_the_list() -> None:
    run = play(
        mapping("m", "xs", "b", next_node="c"),
        tool("b", name="slow", input_map={"x": "_item", "all": "xs"}),
        tool("c", input_map={"m": "m", "b": "b"}),
        tools={"slow": lambda given: [given["x"], given["all"]]}, xs=[3, 1, 2],
    )  # fmt: skip

    assert run.output("m") == [[3, [3, 1, 2]], [1, [3, 1, 2]], [2, [3, 1, 2]]]
    assert run.output("c") == {"m": run.output("m"), "b": run.output("m")}
    assert run.story == ["m", "m/0", "m/1", "m/2", "m/@gather", "c"]


def test_an_empty_map_gathers_nothing() -> None:
    assert play(mapping("m", "xs", "b"), tool("b"), xs=[]).output("m") == []


@pytest.mark.parametrize(
    ("on_error", "status", "output"), [("skip", "succeeded", [1, None, 3]), ("abort", "failed", None), ("h", "succeeded", None)]
)
def test_a_failing_item_is_null_or_fails_the_map(on_error: str, status: str, output: JsonValue) -> None:
    def odd(given: dict[str, JsonValue]) -> JsonValue:
        return given["x"] if given["x"] != 2 else fails(given)

    nodes = mapping("m", "xs", "b", on_error=on_error), tool("b", name="slow", input_map={"x": "item"}), tool("h", deps=["m"])

    run = play(*nodes, tools={"slow": odd}, xs=[1, 2, 3])

    assert run.status == status
    assert run.output("m") == output
    assert ("h" in run.story) == (status == "succeeded")


def test_maps_nest_and_run_chains() -> None:
    nested = play(
        mapping("m", "rows", "n"), mapping("n", "_item", "b"), tool("b", input_map={"x": "_item", "k": "k"}), rows=[[1, 2], [], [3]], k=9
    )
    chained = play(mapping("m", "rows", "g"), tool("g", kind="chain", name="sub", input_map={"n": "_item"}), rows=[5, 6])

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
        nodes=[tool("0", next_node="end"), tool("end", next_node="gather", input_map={"x": '"0"'}), tool("gather", input_map={"x": "end"})],
    )

    run = play(tool("g", kind="chain", name="c"), definitions=DEFINITIONS.model_copy(update={"chains": {"c": inner}}))

    assert run.story == ["g", "g/@0", "g/end", "g/gather", "g/@end"]
    assert all(node_of(step_id).index is None for step_id in run.story)
    assert run.output("g") == {"x": {"x": {}}}


def test_a_failure_in_a_nested_chain_is_the_failure_of_its_node() -> None:
    inner = Chain(entry_node="a", nodes=[tool("a", name="slow", next_node="b"), tool("b")])
    definitions = DEFINITIONS.model_copy(update={"chains": {"c": inner}})

    run = play(tool("g", kind="chain", name="c", on_error="h"), tool("h"), tools={"slow": fails}, definitions=definitions)

    assert run.story == ["g", "g/a", "h"]
    assert run.status == "succeeded"


def test_a_nested_chain_ends_though_nothing_of_it_ran_to_a_terminal() -> None:
    inner = Chain(entry_node="a", nodes=[branch("a", "`false`", true_node="b"), tool("b")])

    run = play(
        tool("g", kind="chain", name="c", next_node="e"), tool("e"), definitions=DEFINITIONS.model_copy(update={"chains": {"c": inner}})
    )

    assert run.story == ["g", "g/a", "g/@end", "e"]


# Loops

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
    expansion_of_loop = expansion.expand_loop(DO_WHILE, DEFINITIONS, branch_step_id="again#1", spec=step(graph, "again#1"))

    assert graph.names == {"count": "count#1", "again": "again#1"}
    assert expansion_of_loop.names == {"count": "count#2", "again": "again#2"}
    assert (expansion_of_loop.exit, expansion_of_loop.scoped) == ("again#2", False)
    assert step(graph, "count#1").reads == {"count": "=count#0"}
    assert step(expansion_of_loop, "count#2").reads == {"count": "count#1"}
    assert step(expansion_of_loop, "again#2").reads == {"count": "count"}
    assert edges(expansion_of_loop) == {"count#2 -> again#2"}


def test_past_its_last_round_a_branch_fails() -> None:
    endless = [tool("a", next_node="b"), branch("b", "`true`", true_node="a", max_iterations=3, on_error="h"), tool("h")]

    assert play(*endless).story == ["a#1", "b#1", "a#2", "b#2", "a#3", "b#3", "h"]


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


def test_two_branches_may_point_back_to_one_node_that_sees_the_round_before_of_either() -> None:
    nodes = [
        tool("draft", name="slow", input_map={"n": "draft.n"}, next_node="long"),
        branch("long", "draft.n == `1`", true_node="draft", false_node="bad"),
        branch("bad", "draft.n < `4`", true_node="draft", false_node="e"),
        tool("e", input_map={"n": "draft.n"}),
    ]

    run = play(*nodes, tools={"slow": counter})

    assert [step_id for step_id in run.story if step_id.startswith("draft")] == ["draft#1.1", "draft#1.2", "draft#2.1", "draft#3.1"]
    assert run.output("e") == {"n": 4}


def test_an_inner_loop_begins_anew_in_each_round_of_the_outer() -> None:
    nodes = [
        tool("o", name="slow", input_map={"n": "o.n"}, next_node="i"),
        tool("i", name="slow", input_map={"n": "i.n"}, next_node="bi"),
        branch("bi", "i.n < `2`", true_node="i", false_node="bo"),
        branch("bo", "o.n < `2`", true_node="o", false_node="e"),
        tool("e", input_map={"o": "o.n", "i": "i.n"}),
    ]

    run = play(*nodes, tools={"slow": counter})

    assert run.story == ["o#1", "i#1.1", "bi#1.1", "i#1.2", "bi#1.2", "bo#1", "o#2", "i#2.1", "bi#2.1", "i#2.2", "bi#2.2", "bo#2", "e"]
    assert run.output("e") == {"o": 2, "i": 2}
    assert plan(*nodes).names == {"o": "o#1", "i": "i#1", "i#1": "i#1.1", "bi": "bi#1", "bi#1": "bi#1.1", "bo": "bo#1"}


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


def test_a_loop_may_begin_in_its_middle() -> None:
    nodes = [
        tool("review", name="slow", input_map={"n": "review.n", "fix": "improve.on"}, next_node="fine"),
        branch("fine", "review.n >= `3`", true_node="e", false_node="improve"),
        tool("improve", input_map={"on": "review.n"}, next_node="review"),
        tool("e", input_map={"n": "review.n"}),
    ]

    run = play(*nodes, tools={"slow": counter})

    assert run.story == ["review#1", "fine#1", "improve#2", "review#2", "fine#2", "improve#3", "review#3", "fine#3", "e"]


def test_a_loop_holds_maps_and_nested_chains_hold_loops() -> None:
    inner = Chain(entry_node="count", nodes=[*DO_WHILE[1:3], tool("e", input_map={"n": "count.n", "top": "top"})])
    nodes = [
        tool("count", name="slow", input_map={"n": "count.n", "last": "m"}, next_node="m"),
        mapping("m", "xs", "g", next_node="again"),
        tool("g", kind="chain", name="c", input_map={"top": "_item"}),
        branch("again", "count.n < `2`", true_node="count"),
    ]
    nested = inner.model_copy(update={"nodes": [*inner.nodes[:1], inner.nodes[1].model_copy(update={"false_node": "e"}), inner.nodes[2]]})

    run = play(*nodes, tools={"slow": counter}, definitions=DEFINITIONS.model_copy(update={"chains": {"c": nested}}), xs=[7, 8])

    assert run.output("m") == [{"n": 3, "top": 7}, {"n": 3, "top": 8}]
    assert "m#2/1/count#3" in run.story
    assert node_of("m#2/1/count#3") == NodeRef("m", iteration=2, index=1, inner=True)


# Any chain


@st.composite
def dags(draw: st.DrawFn) -> list[ChainNode]:
    """Nodes that lead forward only, each reached by something."""
    size = draw(st.integers(1, 9))
    nodes: list[dict[str, object]] = [{"node_id": f"n{i}", "kind": "tool", "name": "t", "deps": []} for i in range(size)]
    for i in range(1, size):
        source, how = (
            nodes[draw(st.integers(0, i - 1))],
            draw(st.sampled_from(["next_node", "deps", "on_error", "input_map", "true_node", "false_node"])),
        )
        if how in ("true_node", "false_node") and not source.keys() & {"next_node", "input_map", how}:
            source.update({"kind": "branch", "name": "", "condition": draw(st.sampled_from(["`true`", "`false`", "k"])), how: f"n{i}"})
        elif how in ("next_node", "on_error") and how not in source and source["kind"] != "branch":
            source[how] = f"n{i}"
        elif how == "input_map":
            nodes[i]["input_map"] = {"x": source["node_id"]}
        else:
            nodes[i]["deps"] = [source["node_id"]]
    for i in range(1, size):
        nodes[i]["deps"] = sorted({*nodes[i]["deps"], *draw(st.lists(st.sampled_from([f"n{j}" for j in range(i)]), max_size=2))})  # type: ignore[misc]  # a list
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
            nodes.append(tool(node_id, next_node=onward, input_map={f"x{r}": r for r in reads}, on_error=on_error, **by_data))
    return nodes


@examples(300)
@given(tangles(), st.randoms(use_true_random=False))
def test_any_tangle_is_refused_or_ends_with_each_round_over_before_the_next(nodes: list[ChainNode], chance: object) -> None:
    choose = chance.choice  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    messages, code = faults(*nodes)
    if messages:
        assert code == "chain_cycle"
        return

    def moody(given: dict[str, JsonValue]) -> JsonValue:
        return {"v": 1} if choose([True] * 9 + [False]) else fails(given)

    run = Run(request(*nodes), DEFINITIONS, {"t": moody}, choose, decide=lambda node_id, visit: choose([True, False])).play()

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
            nodes.append(branch(node_id, "k", true_node=draw(target) or ids[0], false_node=draw(target), max_iterations=1000))
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
@given(walks(), st.dictionaries(st.tuples(st.sampled_from([f"n{i}" for i in range(7)]), st.integers(1, 6)), st.booleans(), max_size=30))
def test_any_loops_run_as_one_would_walk_them(nodes: list[ChainNode], decide: dict[tuple[str, int], bool]) -> None:
    reached = reach(
        ["n0"], {node.node_id: [str(target) for target in (node.next_node, node.true_node, node.false_node) if target] for node in nodes}
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


# Size


@pytest.mark.slow("it is about ten thousand")
def test_ten_thousand_nodes_are_planned_without_recursion() -> None:
    ids = [f"n{i}" for i in range(10_000)]
    row = [
        tool(a, next_node=b, input_map={"x": f"{before}.data"})
        for before, a, b in zip(["topic", *ids], ids, [*ids[1:], None], strict=False)
    ]

    graph = plan(*row)

    assert len(graph.edges) == len(list(pairwise(ids)))
    assert step(graph, "n9999").reads == {"n9998": "n9998"}


# Lists of ways on, and answers


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


@pytest.mark.parametrize(
    ("answers", "output"), [({"x": "a.k"}, 1), ({"x": "a.k", "y": "a.nothing"}, 1), ({"x": "a.k", "y": "input.z"}, {"x": 1, "y": 2})]
)
def test_a_named_chain_gives_its_answers(answers: dict[str, str], output: object) -> None:
    inner = Chain.model_validate({"nodes": [{"node_id": "a", "kind": "tool", "name": "one"}], "entry_node": "a", "answers": answers})
    definitions = Definitions(tools={"one": Tool(function="m:one")}, chains={"inner": inner})
    node = {"node_id": "it", "kind": "chain", "name": "inner", "input": {"z": 2}}

    run = Run(ChainRequest.model_validate({"nodes": [node], "entry_node": "it"}), definitions, {"one": lambda given: {"k": 1}}).play()

    assert run.output("it") == output


def test_an_answer_that_cannot_be_read_is_a_fault() -> None:
    inner = Chain.model_validate({"nodes": [{"node_id": "a", "kind": "tool", "name": "one"}], "entry_node": "a", "answers": {"x": "a.("}})
    definitions = Definitions(tools={"one": Tool(function="m:one")}, chains={"inner": inner})

    assert [fault.where for fault in checks.check_chains(definitions)] == ["chains.inner.answers.x"]
