"""Bad chain requests, nodes and inputs of chains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cantata.config.chain_requests import load_request
from cantata.config.documents import parse
from cantata.engine.requests import checked_chain
from cantata.features.forks.fork_requests import request_of
from cantata.flows.chains import checks
from cantata.flows.definitions import Chain, Definitions, Tool
from cantata.flows.wire import ChainNode, ChainRequest
from cantata.values import JsonValue
from tests.unit.features.forks.ended_runs import CHAIN, DEFINITIONS, TURN, ended_run
from tests.unit.flows.sample_chains import branch, faults, mapping, tool
from tests.unit.messages.entries import Entry, data, entries, said_by, text

DRAFTS: dict[str, list[list[ChainNode]]] = {
    "names and fields": [
        [tool("a", next_node="sumarise"), tool("summarise")],
        [tool("a", next_node="b"), tool("b", deps=["c"])],
        [tool("a", on_error="skpi")],
        [branch("a", "x", true_node="b", false_node="x"), tool("b")],
        [mapping("a", "x", "b")],
        [tool("a", next_node="b"), tool("b"), tool("b")],
        [tool("")],
        [tool("a" * 129)],
        [tool("a/b")],
        [tool("a\nb")],
        [tool("a", name="tt")],
        [tool("a", name="zzz")],
        [tool("a", name="files")],
        [tool("a", name="flies.read")],
        [tool("a", kind="skill", name="files.read")],
        [tool("a", name="")],
        [tool("a", name="one")],
        [tool("a", kind="skill", name="q")],
        [tool("a", kind="agent", name="s")],
        [tool("a", kind="chain", name="subb")],
        [tool("a", kind="proc", name="rm")],
        [tool("a", input_map={"x": "b ="})],
        [tool("a", input_map={"x": ""})],
        [branch("a", "b ||", true_node="b"), tool("b")],
        [mapping("a", "b..c", "b"), tool("b")],
        [branch("a", "", true_node="b"), tool("b")],
        [branch("a", "x")],
        [branch("a", "x", true_node="b", false_node="b", next_node="b"), tool("b")],
        [mapping("a", "", "b"), tool("b")],
        [tool("a", kind="map", name="", items_path="x")],
        [tool("a", condition="x")],
        [tool("a", max_concurrency=3)],
        [branch("a", "x", true_node="b", retry=1), tool("b")],
        [mapping("a", "x", "b", timeout=1), tool("b")],
        [tool("a", kind="chain", name="sub", timeout=1)],
        [tool("a", kind="skill", name="team", retry=1)],
        [tool("a", kind="wait", name="", default=1)],
        [mapping("m", "x", "b"), mapping("n", "x", "b", deps=["m"]), tool("b")],
        [mapping("m", "x", "b"), branch("b", "x", true_node="m")],
        [mapping("m", "x", "b"), tool("b", next_node="m")],
        [mapping("m", "x", "b"), tool("b", deps=["m"])],
        [mapping("m", "x", "b"), tool("b", on_error="m")],
        [mapping("m", "x", "b"), tool("b"), tool("c", deps=["m"], next_node="b")],
        [tool("a"), tool("b")],
        [tool("a"), tool("b"), tool("c", deps=["b"])],
    ],
    "cycles that are no loops": [
        [tool("a", next_node="a")],
        [tool("a", next_node="b"), tool("b", next_node="a")],
        [tool("a", next_node="b"), tool("b", on_error="a")],
        [tool("a", next_node="b", deps=["b"]), tool("b")],
        [tool("a", input_map={"x": "b"}, next_node="b"), tool("b")],
        [tool("a", input_map={"x": "a"})],
        [branch("a", "x", true_node="a", false_node="b"), tool("b")],
        [tool("a", next_node="b"), branch("b", "x", true_node="a", false_node="a")],
        [tool("a", next_node="b"), branch("b", "c", true_node="c", next_node="d"), tool("c"), tool("d")],
        [tool("a"), mapping("m", "x", "n"), mapping("n", "y", "m")],
        [
            tool("s", next_node="a", on_error="x"),
            tool("a", next_node="b"),
            tool("x", deps=["a"]),
            branch("b", "k", true_node="a", deps=["x"]),
        ],
    ],
}

ENTRIES: dict[str, list[tuple[list[ChainNode], str]]] = {
    "entries": [
        ([tool("a")], ""),
        ([tool("reed")], "read"),
        ([mapping("m", "x", "b"), tool("b")], "b"),
    ],
}

NODES: dict[str, list[dict[str, Any]]] = {
    "fields of a node": [
        {"kind": "tool", "name": "t", "condition": "x"},
        {"kind": "map", "items_path": "x", "map_node": "b", "retry": 1},
        {"kind": "agent", "name": "team", "timeout": 1},
        {"kind": "wait", "default": 1},
        {"kind": "tool", "name": "files"},
        {"kind": "tool", "name": "ls"},
        {"kind": "tool", "name": "slwo"},
        {"kind": "chain"},
        {"kind": "tool", "name": "t", "input_map": {"x": "bad.("}},
        {"kind": "wait", "answer_schema": {"items": {"type": "strin"}}},
        {"kind": "wait", "answer_schema": {"$ref": "#"}},
        {"kind": "tol", "name": "t"},
    ],
}

TEXTS: dict[str, list[str]] = {
    "texts of requests": [
        "{nodes: [], type: chain/resp}",
        "{nodes: [], version: '2.0'}",
        "{type: skill/call/req, id: x, name: y, arguments: {}}",
        "{nodes: [], type: turn}",
        "entry_node: a",
        "",
        "- {node_id: a, kind: tool}",
        "entry_node: a\nnodes:\n  a: {kind: tool}",
        "{nodes: [{kind: tool}]}",
        "{nodes: [{node_id: a, kind: tool, retry: 101}]}",
        "version: 1\nchains: {report: {}, digest: {}}",
        "agents: {a: {}}",
    ],
}

DECLARED: dict[str, list[dict[str, JsonValue]]] = {
    "declared inputs": [
        {"n": "strin"},
        {"n": 3},
        {"n": {"type": "text"}},
        {"n": {"pattern": "(a+)+$"}},
        {"n": {"type": "object", "additionalProperties": {"type": "string", "pattern": "^(a+)+$"}}},
        {"n": {"additionalProperties": {"anyOf": [{"pattern": "x"}]}}},
        {"type": "object", "properties": {"n": {"items": {"$ref": "http://example.org/schema"}}}},
    ],
}


CHANGES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "changes of a fork": [
        ("chain", {"x": 1}),
        ("chain", {"input.": 1}),
        ("chain", {"input.x.y": 1}),
        ("chain", {"input": "text"}),
        ("turn", {"input.x": 1}),
        ("turn", {"input": 1}),
        ("turn", {"input": ""}),
    ],
}


NODE: dict[str, Any] = {"node_id": "a", "kind": "tool", "name": "t"}
BRANCHING: dict[str, Any] = {
    "nodes": [
        {**NODE, "next_node": "b"},
        {"node_id": "b", "kind": "branch", "condition": "aa.foo == `1`", "true_node": "yes", "false_node": "no"},
        {**NODE, "node_id": "yes"},
        {**NODE, "node_id": "no"},
    ]
}
SHORT = {"text": "string", "limit": {"type": "integer", "default": 3}, "tags": "array?"}
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "limit": {"type": "integer", "default": 3},
        "tags": {"items": {"type": "string"}},
    },
    "required": ["text"],
}
REQUESTS: dict[str, list[dict[str, Any]]] = {
    "names that nothing gives": [
        {**BRANCHING, "initial_input": {"text": "x"}},
        {**BRANCHING, "inputs": {"text": "string"}, "initial_input": {"text": "x"}},
        BRANCHING,
        {"nodes": [{**NODE, "input_map": {"x": "_item"}}], "initial_input": {"n": 1}},
        {"nodes": [{**NODE, "input_map": {"x": "verbose"}}], "initial_input": {"n": 1}},
        {
            "nodes": [{**NODE, "input_map": {"x": "input.txt"}}],
            "inputs": {"text": "string"},
            "initial_input": {"text": "x"},
        },
        {
            "nodes": [{**NODE, "input_map": {"text": "text"}}],
            "inputs": {"txt": "string"},
            "initial_input": {"txt": "x"},
        },
    ],
    "inputs that do not fit": [
        {"nodes": [NODE], "inputs": SHORT},
        {"nodes": [NODE], "inputs": SHORT, "initial_input": {"txt": "x", "text": "y", "limit": "z"}},
        {"nodes": [NODE], "inputs": SCHEMA},
        {"nodes": [NODE], "inputs": SCHEMA, "initial_input": {"txt": "x", "text": "y", "limit": "z"}},
        {"nodes": [NODE], "inputs": SCHEMA, "initial_input": {"text": "x", "tags": ["y", 1]}},
        {"nodes": [{"node_id": "a", "kind": "chain", "name": "sub", "input": {"txt": 1, "limit": "x"}}]},
    ],
}


def found() -> Iterator[Entry]:
    """Check each of them."""
    yield from entries(DRAFTS, lambda nodes: _draft(nodes), _nodes)
    yield from entries(
        ENTRIES, lambda given: _draft(*given), lambda given: f"entry_node: {given[1]!r}, nodes: {_nodes(given[0])}"
    )
    yield from entries(NODES, lambda fields: _draft([ChainNode.model_validate({"node_id": "n", **fields})]), data)
    yield from entries(DECLARED, lambda inputs: _declaring(inputs), data)
    yield from entries(CHANGES, _forked, lambda given: f"{given[0]}: {data(given[1])}")
    yield from entries(REQUESTS, _asked, data)
    yield from entries(TEXTS, lambda given: said_by(lambda: load_request(parse(given))), text)


def _forked(given: tuple[str, dict[str, Any]]) -> list[str]:
    kind, changes = given
    return said_by(
        lambda: request_of(ended_run(kind, CHAIN if kind == "chain" else TURN), "@start", changes, DEFINITIONS)
    )


def _draft(nodes: list[ChainNode], entry: str | None = None) -> list[str]:
    messages, code = faults(*nodes, entry=entry)
    return [*(["(" + code + ")"] if code != "bad_request" else []), *messages]


def _declaring(inputs: dict[str, JsonValue]) -> list[str]:
    node = ChainNode(node_id="a", kind="tool", name="t", input_map={"x": "nobody"})
    asked = ChainRequest(nodes=[node], entry_node="a", inputs=inputs, initial_input={"n": 1})
    return [str(fault) for fault in checks.check(asked, Definitions(tools={"t": Tool(function="m:t")}))[0]]


def _asked(fields: dict[str, Any]) -> list[str]:
    inner = [ChainNode(node_id="x", kind="tool", name="t", input_map={"text": "text"})]
    definitions = Definitions(
        tools={"t": Tool(function="m:t")},
        chains={"sub": Chain(nodes=inner, entry_node="x", inputs={"text": "string", "limit": "integer?"})},
    )
    asked = ChainRequest.model_validate({"entry_node": "a", **fields})
    return said_by(lambda: checked_chain(asked, definitions))


def _nodes(nodes: list[ChainNode]) -> str:
    return data([{"node_id": node.node_id, **node.model_dump(exclude_defaults=True)} for node in nodes])
