"""Workflows in Python that answer turns, and those that an agent's model calls as tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cantata.client.client import Client
from cantata.testing import Rule, ScriptedModels, ToolCall
from cantata.values import JsonValue
from tests.integration.workflows.conftest import PATIENCE_S, RULES
from tests.waiting import until


@pytest.fixture
def scripted(models: ScriptedModels) -> Iterator[ScriptedModels]:
    """The model server, with rules of one test."""
    yield models
    models.script(RULES)


def call_and_answer(models: ScriptedModels, workflow: str, /, **arguments: JsonValue) -> None:
    """Have the model call a workflow, and then answer."""
    call = ToolCall(name=workflow, arguments=arguments)
    models.script(
        [Rule(match="do it", after_tools=0, tool_calls=(call,)), Rule(match="do it", after_tools=1, reply="done")]
    )


def tool_result(models: ScriptedModels) -> str:
    """What the model got from the last tool."""
    messages: Any = models.requests[-1]["messages"]
    return str(next(each["content"] for each in reversed(messages) if each["role"] == "tool"))


def test_a_text_is_the_only_required_parameter(client: Client) -> None:
    for run in (client.submit_turn("Ann", workflow="greeting"), client.submit_workflow("greeting", "Ann")):
        assert run.result(PATIENCE_S).raise_for_status().output == "hello Ann"


def test_a_turn_of_a_workflow_belongs_to_its_session(client: Client) -> None:
    client.submit_turn("Bob", workflow="greeting", session="desk").result(PATIENCE_S)

    assert [entry.content for entry in client.sessions.history("desk")] == ["Bob", "hello Bob"]


@pytest.mark.parametrize(("name", "found"), [("values", "none"), ("first_of", "'one', 'two'")])
def test_a_workflow_without_a_place_for_one_text_fails(client: Client, name: str, found: str) -> None:
    result = client.submit_turn("Ann", workflow=name).result(PATIENCE_S)

    assert result.status == "failed"
    assert f"has other required parameters: {found}" in str(result.error)


def test_an_agent_calls_a_workflow_by_the_schema_of_its_function(client: Client, scripted: ScriptedModels) -> None:
    call_and_answer(scripted, "greeting", name="Ann", times=2)

    assert client.submit_turn("do it", agent="foreman").result(PATIENCE_S).raise_for_status().output == "done"

    assert tool_result(scripted) == "hello Ann hello Ann"
    tools: Any = scripted.requests[-1]["tools"]
    offered = {each["function"]["name"]: each["function"] for each in tools}
    assert offered["greeting"]["description"] == "Greet somebody."
    properties = offered["greeting"]["parameters"]["properties"]
    assert {name: each["type"] for name, each in properties.items()} == {"name": "string", "times": "integer"}
    assert properties["name"]["description"] == "Who is greeted."
    assert offered["greeting"]["parameters"]["required"] == ["name"]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("uncaught", {}, "desk:fail raised ValueError: not caught (at desk.py:"),
        ("greeting", {"name": "Ann", "times": "many"}, "the input of workflow 'greeting': times"),
    ],
)
def test_the_failure_of_a_workflow_reaches_the_model(
    client: Client, scripted: ScriptedModels, name: str, arguments: dict[str, JsonValue], message: str
) -> None:
    call_and_answer(scripted, name, **arguments)

    assert client.submit_turn("do it", agent="foreman").result(PATIENCE_S).raise_for_status().output == "done"

    assert message in tool_result(scripted)


def test_a_turn_waits_for_the_wait_of_a_workflow(client: Client, scripted: ScriptedModels) -> None:
    call_and_answer(scripted, "approval")
    run = client.submit_turn("do it", agent="foreman")
    until(lambda: any(step.state == "waiting_signal" for step in run.record().steps.values()), "the question")

    run.signal("approve", True)

    assert run.result(PATIENCE_S).raise_for_status().output == "done"
    assert json.loads(tool_result(scripted)) == [True, 2]
