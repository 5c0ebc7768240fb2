"""Nodes of chains that call tools of real MCP servers, on a real stack."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cantata.client.client import Client, EmbeddedClient
from cantata.errors import ConfigError
from cantata.flows.definitions import Definitions, Tool
from cantata.testing import ScriptedModels
from tests.integration.fleet.agent_stage import PATIENCE_S, AgentStage, agent, call
from tests.integration.fleet.conftest import Journal, ask, models, tool
from tests.integration.mcp.conftest import HttpServer, by_command, is_alive, puppet, serving
from tests.waiting import until

__all__ = ["models"]  # a fixture

SECRET = "hunter2-hunter2"
ODD = [
    {"name": "write", "inputSchema": {"type": "object", "properties": {"lines": {"type": "array"}}}},
    {"name": "bare"},
    {
        "name": "either",
        "inputSchema": {"type": "object", "anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "object"}}},
    },
]
MCP_TOKEN = "MCP_TEST_TOKEN"

pytestmark = pytest.mark.timeout(240)  # a stack starts in 4 s, on a busy machine in 20


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    return Journal(tmp_path_factory.mktemp("notes") / "journal.jsonl")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with serving(Journal(tmp_path_factory.mktemp("web") / "journal.jsonl")) as server:
        yield server


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, models: ScriptedModels, notes: Journal, address: HttpServer
) -> Iterator[EmbeddedClient]:
    """A stack with one agents worker, so that one process holds the connections."""
    folder = tmp_path_factory.mktemp("folder")
    definitions = Definitions(
        folder=str(folder),
        tools={
            "files": Tool(mcp=by_command(notes, env=[MCP_TOKEN])),
            "odd": Tool(mcp=puppet("--list", json.dumps({"tools": ODD}))),
            "web": Tool.model_validate({"mcp": {"url": address.url}}),
            "hangs": Tool.model_validate({"mcp": {"command": ["sleep", "600"], "connect_timeout_s": 1.0}}),
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MCP_TOKEN, SECRET)
        with Client.embedded(tmp_path_factory.mktemp("stack"), config=definitions, agents=1, tools=1) as client:
            yield client


def answer(client: Client, name: str, **arguments: Any) -> Any:
    response = ask(client, tool("only", name, **arguments))
    assert response.success, response.error
    return response.final_output


def test_nodes_call_tools_of_servers_and_read_their_answers(client: EmbeddedClient) -> None:
    nodes = [
        tool("sum", "files.add", a=1, b=2, next_node="more"),
        tool("more", "web.add", input_map={"a": "sum.result"}, next_node="page"),
    ]
    nodes += [tool("page", "files.page", input_map={"title": "join('', ['n', to_string(more.result)])"})]

    response = ask(client, *nodes)

    assert response.outputs == {
        "sum": {"result": 3},
        "more": {"result": 4},
        "page": {"title": "n4", "lines": ["a", "b"]},
    }


def test_the_items_of_a_map_share_one_connection(client: EmbeddedClient, notes: Journal) -> None:
    nodes = [
        {"node_id": "all", "kind": "map", "items_path": "input.items", "map_node": "each"},
        tool("each", "files.slow", input_map={"seconds": "_item"}),
    ]
    before = answer(client, "files.pid")["result"]
    started = len(notes.of("slow started"))

    response = ask(client, *nodes, initial_input={"items": [0.2] * 20})

    assert response.outputs["all"] == [{"result": "done"}] * 20
    assert {line["pid"] for line in notes.of("slow started")[started:]} == {before}
    assert len([line for line in notes.of("session") if line["pid"] == before]) == 1


def test_a_killed_server_is_started_again_for_the_next_call(client: EmbeddedClient) -> None:
    first = answer(client, "files.pid")["result"]

    os.kill(first, signal.SIGKILL)

    # It may be found dead when it was asked already; then only another try is safe to say yes to.
    assert answer(client, "files.pid", retry=2)["result"] != first


def test_a_call_that_its_server_did_not_outlive_is_tried_again_if_it_may_be(
    client: EmbeddedClient, notes: Journal
) -> None:
    deaths = len(notes.of("dies"))

    response = ask(client, tool("only", "files.dies", retry=1))

    assert response.error is not None
    assert "ended before tool 'dies' answered" in response.error.message
    assert len(notes.of("dies")) == deaths + 2


def test_an_http_server_that_was_started_again_is_called(client: EmbeddedClient, address: HttpServer) -> None:
    assert answer(client, "web.add", a=1) == {"result": 2}

    address.kill()
    address.start()

    assert answer(client, "web.add", a=1) == {"result": 2}


def test_a_server_that_hangs_while_connecting_fails_its_step_in_time(client: EmbeddedClient) -> None:
    response = ask(client, tool("only", "hangs.add", a=1))

    assert response.error is not None
    assert "MCP server 'hangs' was not ready within 1 s" in response.error.message


def test_a_node_s_timeout_stops_a_call_and_notifies_the_server(client: EmbeddedClient, notes: Journal) -> None:
    before = len(notes.of("slow started"))

    def was_begun() -> bool:  # a server that is started for the call may not be there in time
        response = ask(client, tool("only", "files.slow", seconds=600, timeout=1))
        assert response.error is not None
        assert "took longer than its 1 s" in response.error.message
        return len(notes.of("slow started")) > before

    until(was_begun, "a call that the server began")
    until(lambda: notes.of("slow cancelled"), "the end of the call")


def test_secrets_are_passed_and_neither_stored_nor_printed(client: EmbeddedClient) -> None:
    response = ask(client, tool("only", "files.fails", variable=MCP_TOKEN))

    assert response.error is not None
    assert "no luck with ***" in response.error.message
    assert SECRET not in client.definitions.model_dump_json()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("files", "'files' is an MCP server; name one of its tools, as 'files.<tool>'"),
        ("fiels.add", "'fiels.add' is not under 'tools'; did you mean 'files.add'?"),
    ],
)
def test_a_name_that_is_no_tool_is_refused_before_anything_runs(client: EmbeddedClient, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ask(client, tool("only", name))


def test_an_unknown_tool_of_a_server_is_reported(client: EmbeddedClient) -> None:
    response = ask(client, tool("only", "files.ehco", text="hi"))

    assert response.error is not None
    assert "has no tool 'ehco'; did you mean 'echo'?" in response.error.message


def test_no_server_outlives_a_killed_worker(client: EmbeddedClient) -> None:
    server = answer(client, "files.pid")["result"]
    worker = next(
        process.pid for process in client.stack.processes() if process.name.startswith("agents") and process.alive
    )

    os.kill(worker, signal.SIGKILL)

    until(lambda: not is_alive(server), "the end of the server")
    assert answer(client, "files.add", a=1) == {"result": 2}


@pytest.mark.slow("a stack of its own starts and ends")
def test_servers_end_with_the_stack(tmp_path: Path, models: ScriptedModels) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    definitions = Definitions(tools={"files": Tool(mcp=by_command(journal, "--stubborn"))})
    with Client.embedded(tmp_path / "home", config=definitions, agents=1, tools=1) as client:
        server = answer(client, "files.pid")["result"]
        assert is_alive(server)

    assert journal.of("stays")
    until(lambda: not is_alive(server), "the end of the server")


def test_agents_call_tools_of_servers_natively_and_in_json(client: EmbeddedClient, models: ScriptedModels) -> None:
    with AgentStage(client.redis_url, models) as stage:
        stage.script(
            {"after_tools": 0, "tool_calls": [call("files__add", a=1, b=2), call("files__ad", a=1)]}, {"reply": "3"}
        )
        assert stage.ask(agent(tools=["files"]), tools=client.definitions.tools).output == "3"
        assert stage.results()[0] == {"result": 3}
        assert "Did you mean 'files.add'" in stage.results()[1]["error"]

        stage.script(
            {"reply": {"response": "", "mcp": {"tool": "web", "method": "add", "params": {"a": 1}}}, "times": 1},
            {"reply": "2"},
        )
        assert stage.ask(agent(tools=["web.add"], dialect="json"), tools=client.definitions.tools).output == "2"
        assert stage.prompts()[-1].startswith("Tool result: ")


def test_a_tool_that_a_model_cannot_be_offered_is_told_on_the_run_and_the_agent_has_the_others(
    client: EmbeddedClient, models: ScriptedModels
) -> None:
    error = {"structuredContent": {"code": 7}, "isError": True}
    line = json.dumps({"jsonrpc": "2.0", "id": "NUMBER", "result": error}).replace('"NUMBER"', "ID")
    with AgentStage(client.redis_url, models) as stage:
        stage.script({"after_tools": 0, "tool_calls": [call("odd__write", lines=[line])]}, {"reply": "done"})

        run = stage.start(agent(tools=["odd"]), tools=client.definitions.tools)

        assert run.result(PATIENCE_S).output == "done"
        assert run.view().warnings == (
            "agent 'it' is not offered tool 'odd.bare': inputSchema: Field required",
            "agent 'it' is not offered tool 'odd.either': its schema has alternatives at the top that are references",
        )
        assert [each["function"]["name"] for each in stage.requests()[0]["body"]["tools"]] == ["odd__write"]
        assert stage.requests()[0]["body"]["tools"][0]["function"]["parameters"]["properties"]["lines"]["items"] == {}
        assert stage.results()[0] == {"error": '{"code": 7}'}, "the structured content of a failure reaches the model"

        stage.script({"reply": "without it"})
        assert stage.ask(agent(tools=["odd.bare"]), tools=client.definitions.tools).output == "without it"
        assert (
            stage.ask(agent(tools=["files.add"]), text="beside it", tools=client.definitions.tools).output
            == "without it"
        )
