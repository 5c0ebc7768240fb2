"""Chain requests: the forms that are taken, and each fault they may have."""

from __future__ import annotations

import json

import pytest

from cantata.config.chain_requests import is_request, load_request, request_from, with_lines
from cantata.config.documents import parse
from cantata.errors import ConfigError, Fault
from cantata.values import JsonValue

PLAIN = """\
entry_node: fetch
nodes:
  - node_id: fetch
    kind: tool
    name: fetch
    input: {url: "x", deep: [1, {on: yes}]}
    next_node: sum-up
  - {node_id: sum-up, kind: agent, name: analyst, input_map: {text: fetch.body}, deps: [fetch], on_error: skip, retry: 2, timeout: 1.5}
initial_input: {limit: 3}
"""


def faults_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_request(parse(text))
    return [str(fault) for fault in caught.value.faults]


def test_a_plain_request_loads() -> None:
    request = load_request(parse(PLAIN))

    assert [node.node_id for node in request.nodes] == ["fetch", "sum-up"]
    assert request.nodes[0].input == {"url": "x", "deep": [1, {"on": "yes"}]}
    assert request.nodes[1].timeout == 1.5
    assert request.initial_input == {"limit": 3}
    assert request.type == "chain/req"


def test_all_forms_of_a_request_are_one() -> None:
    plain = load_request(parse(PLAIN))

    assert load_request(parse(plain.model_dump_json())) == plain
    assert load_request(parse(json.dumps(plain.model_dump(mode="json"), indent=1))) == plain
    assert request_from(plain.model_dump(mode="json")) == plain


def test_null_for_an_optional_field_means_that_it_is_absent() -> None:
    node: dict[str, JsonValue] = {"node_id": "a", "kind": "tool", "name": "t"}
    request: dict[str, JsonValue] = {
        "nodes": [{**node, "deps": None, "input": None, "on_error": None}],
        "timeout": None,
        "chain_id": None,
        "streaming": None,
    }

    assert request_from({**request, "session_id": None}) == request_from({"nodes": [node]})
    assert faults_of("{nodes: null}") == ["line 1: nodes: expected a list, found null"]
    assert faults_of("{nodes: [], nod: null}") == ["line 1: nod: unknown key 'nod'; did you mean 'nodes'?"]


@pytest.mark.parametrize("more", [{"a2e": 1.0}, {"version": 1.0}, {"ts": "now"}, {"ts": {"s": 1}}, {"ts": None}])
def test_the_version_may_be_a_number_and_the_time_anything(more: dict[str, JsonValue]) -> None:
    assert request_from({"nodes": [], **more}).model_dump() == request_from({"nodes": []}).model_dump()


def test_a_type_that_is_misspelt_is_told() -> None:
    assert faults_of("{type: chian/req, nodes: []}") == [
        "line 1: type: of A2E's messages only 'chain/req' is read, not 'chian/req'; did you mean 'chain/req'?"
    ]


@pytest.mark.parametrize("version", ["a2e", "version"])
def test_the_fields_of_a_message_are_read_and_only_its_id_is_kept(version: str) -> None:
    request = load_request(
        parse(json.dumps({"type": "chain/req", "id": "m1", version: "1.0", "ts": 1716123456.789, "nodes": []}))
    )

    assert request.id == "m1"
    assert not {"a2e", "version", "ts"} & request.model_dump().keys()


def test_every_fault_is_told_with_its_node_and_field() -> None:
    text = (
        PLAIN.replace("next_node:", "next_nod:")
        .replace("kind: agent", "kind: agnet")
        .replace("limit: 3}", "limit: 3}\ntimeout: -1")
    )

    assert faults_of(text) == [
        "line 7: nodes[0] 'fetch'.next_nod: unknown key 'next_nod'; did you mean 'next_node'?",
        "line 8: nodes[1] 'sum-up'.kind: expected 'tool', 'skill', 'agent', 'chain', 'workflow', "
        "'proc', 'branch', 'map' or 'wait', found 'agnet'; "
        "did you mean 'agent'?",
        "line 10: timeout: expected at least 0, found -1",
    ]


def test_faults_of_a_request_from_python_have_places_but_no_lines() -> None:
    with pytest.raises(ConfigError, match=r"^chain request: nodes\[0\] 'a': 'kind' is missing$"):
        request_from({"nodes": [{"node_id": "a"}]})


def test_a_request_is_told_from_a_configuration() -> None:
    assert is_request(parse(PLAIN))
    assert is_request(parse("type: chain/req"))
    assert not is_request(parse("{agents: {}, chains: {}}"))
    assert not is_request(parse("nodes"))


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("entry_node", 1),
        ("nodes", 2),
        ("nodes[0] 'a.b'.kind", 4),
        ("nodes[0] 'a.b'.input_map.x", 6),
        ("nodes[0] 'a.b'", 3),
        ("nodes[0] 'a.b'.deps", 3),
        ("elsewhere", 1),
    ],
)
def test_a_place_leads_to_its_line(where: str, line: int) -> None:
    document = parse("entry_node: a\nnodes:\n  - node_id: a.b\n    kind: tool\n    input_map:\n      x: y\n")

    assert with_lines([Fault("m", where)], document)[0].line == line
