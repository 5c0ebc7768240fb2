"""What a fork is asked: its source's request, changed where that may be."""

from __future__ import annotations

import pytest

from cantata.errors import ConfigError
from cantata.features.forks.fork_requests import labels_of, request_of
from cantata.flows.definitions import Definitions, PythonWorkflow
from cantata.flows.graph import START
from cantata.values import JsonValue
from tests.unit.features.forks.ended_runs import CHAIN, DEFINITIONS, TURN, ended_run


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        ({}, {"x": 1, "deep": {"y": 2}}),
        ({"input.x": 5}, {"x": 5, "deep": {"y": 2}}),
        ({"input.deep.y": [1], "input.new.z": None}, {"x": 1, "deep": {"y": [1]}, "new": {"z": None}}),
        ({"input": {"x": 0}, "input.w": 1}, {"x": 0, "w": 1}),
    ],
)
def test_the_input_of_a_chain_is_changed_where_a_path_leads(changes: dict[str, JsonValue], given: JsonValue) -> None:
    request, output = request_of(ended_run("chain", CHAIN), "a", changes, DEFINITIONS)

    assert output == given
    assert isinstance(request, dict)
    assert request["initial_input"] == given


def test_the_input_of_a_workflow_in_python_is_its_arguments() -> None:
    node: dict[str, JsonValue] = {"node_id": "w", "kind": "workflow", "name": "report", "input": {"n": 1}}
    definitions = Definitions(workflows={"report": PythonWorkflow(function="m:report")})
    source = ended_run("chain", {"nodes": [node], "entry_node": "w"})

    request, output = request_of(source, START, {"input.n": 2}, definitions)

    assert request == {"nodes": [{**node, "input": {"n": 2}}], "entry_node": "w"}
    assert output == {}
    with pytest.raises(ConfigError, match="gets its input at its start, not at 'w'"):
        request_of(source, "w", {"input.n": 2}, definitions)
    assert request_of(source, "w", {}, definitions)[0] == source.request


def test_the_input_of_a_turn_is_its_text() -> None:
    assert request_of(ended_run("turn", TURN), "ann", {"input": "bye"}, DEFINITIONS) == (
        {"text": "bye", "agent": "ann"},
        "bye",
    )
    assert request_of(ended_run("turn", TURN), "ann", {}, DEFINITIONS) == (TURN, "hello")


def test_a_fork_of_a_fork_names_the_last() -> None:
    source = ended_run("turn", TURN, tenant="acme", forked_from="older", forked_at="x")

    assert labels_of(source, "y") == {"tenant": "acme", "forked_from": "old", "forked_at": "y"}
    assert labels_of(source, None) == {"tenant": "acme", "forked_from": "old"}
