"""Official MCP servers of npm and PyPI: their tools are offered to a strict provider, called, and fail as they should."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from cantata.errors import StepError
from cantata.flows.definitions import McpServer
from cantata.flows.provider_schemas import PROVIDERS, fit_tools
from cantata.testing import ScriptedModels
from cantata.values import ToolSchema
from cantata_workers.tools import mcp
from tests.acceptance.neighbours.environments import TOP
from tests.acceptance.others.conftest import Ask
from tests.acceptance.others.servers import HERE, npm_server, time_server

Result = TypeVar("Result")

pytestmark = [
    pytest.mark.thorough("no other test calls a server that somebody else wrote"),
    pytest.mark.slow("servers of others start, and are installed when they have changed"),
    pytest.mark.timeout(600),
]


def servers(folder: Path) -> dict[str, McpServer]:
    """All servers, by name."""
    files, everything = npm_server("filesystem", str(folder)), npm_server("everything")
    memory = npm_server("memory").model_copy(update={"env": ["MEMORY_FILE_PATH"]})
    return {"files": files, "memory": memory, "all": everything, "time": time_server()}


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Do it on an event loop, and close what it opened."""

    async def closing() -> Result:
        try:
            return await work
        finally:
            await mcp.close()

    return asyncio.run(closing())


@pytest.fixture(autouse=True)
def memory_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of memories writes beside its program otherwise."""
    monkeypatch.setenv("MEMORY_FILE_PATH", str(tmp_path / "memory.jsonl"))


async def outcome(name: str, server: McpServer, tool: str, **arguments: Any) -> Any:
    """The output of a call, or its error."""
    try:
        return await mcp.call(name, server, tool, arguments)
    except StepError as error:
        return error


def test_their_tools_are_called_and_their_answers_arrive(tmp_path: Path) -> None:
    known = servers(tmp_path)
    (tmp_path / "a.txt").write_text("größe")

    async def scenario() -> dict[str, list[Any]]:
        calls: dict[str, list[tuple[str, dict[str, Any]]]] = {
            "files": [
                ("read_text_file", {"path": str(tmp_path / "a.txt")}),
                ("read_text_file", {"path": "/etc/hostname"}),
                ("read_text_file", {}),
                ("write_file", {"path": str(tmp_path / "b.txt"), "content": "new"}),
                ("list_directory", {"path": str(tmp_path)}),
            ],
            "memory": [
                ("create_entities", {"entities": [{"name": "Ann", "entityType": "person", "observations": ["tall"]}]}),
                ("search_nodes", {"query": "Ann"}),
                ("open_nodes", {"names": "none"}),
            ],
            "all": [
                ("echo", {"message": "hi"}),
                ("get-sum", {"a": 1, "b": 2}),
                ("get-tiny-image", {}),
                ("get-structured-content", {"location": "Chicago"}),
                ("get-resource-links", {"count": 2}),
                ("get-annotated-message", {"messageType": "error", "includeImage": True}),
                ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
                ("trigger-long-running-operation", {"duration": 0.2, "steps": 2}),
            ],
            "time": [
                ("get_current_time", {"timezone": "Europe/Berlin"}),
                ("get_current_time", {"timezone": "Nowhere"}),
                ("convert_time", {}),
            ],
        }

        async def one(name: str) -> list[Any]:
            return [await outcome(name, known[name], tool, **arguments) for tool, arguments in calls[name]]

        return dict(zip(calls, await asyncio.gather(*map(one, calls)), strict=True))

    found = run(scenario())

    text, denied, missing, _, listed = found["files"]
    assert text == {"content": "größe"}
    assert (denied.code, denied.retryable) == ("tool_error", True)
    assert "Access denied" in str(denied)
    assert missing.code == "tool_error"
    assert "path" in str(missing)
    assert (tmp_path / "b.txt").read_text() == "new"
    assert "[FILE] a.txt" in listed["content"]
    made, searched, wrong = found["memory"]
    assert made["entities"][0]["name"] == searched["entities"][0]["name"] == "Ann"
    assert wrong.code == "tool_error"
    echo, total, picture, weather, links, notes, resource, done = found["all"]
    assert echo == "Echo: hi"
    assert total == "The sum of 1 and 2 is 3."
    assert [part["mimeType"] for part in picture if isinstance(part, dict)] == ["image/png"]
    assert set(weather) == {"temperature", "conditions", "humidity"}
    assert [part["type"] for part in links if isinstance(part, dict)] == ["resource_link", "resource_link"]
    assert notes[0].startswith("Error: ")
    assert [part["type"] for part in resource if isinstance(part, dict)] == ["resource"]
    assert done.startswith("Long running operation completed")
    now, nowhere, bare = found["time"]
    assert now["timezone"] == "Europe/Berlin"
    assert {nowhere.code, bare.code} == {"tool_error"}
    assert "Nowhere" in str(nowhere)


def test_all_their_tools_are_offered_to_a_provider_that_is_strict_and_one_is_called(tmp_path: Path, ask: Ask) -> None:
    known = servers(tmp_path)
    rule = {"after_tools": 0, "tool_calls": [{"name": "files__list_allowed_directories", "arguments": {}}]}
    with ScriptedModels([rule, {"reply": "done"}], refuse_like="openai") as models:
        model = {"model": "openai/gpt-4o-mini", "params": {"api_base": models.url}}

        answered = ask(models={"m": model}, tools={name: {"mcp": server} for name, server in known.items()})

        assert answered.result().output == "done"
        assert answered.view().warnings == ()
        first, second = cast("list[Any]", models.requests)
        offered = [each["function"]["name"] for each in first["tools"]]
        result = next(each for each in second["messages"] if each["role"] == "tool")
    assert {name.partition("__")[0] for name in offered} == set(known)
    assert str(tmp_path) in result["content"]


def test_no_tool_of_theirs_is_left_out_for_any_provider(tmp_path: Path) -> None:
    known = servers(tmp_path)

    async def scenario() -> dict[str, tuple[ToolSchema, ...]]:
        listed = await asyncio.gather(*(mcp.list_tools(name, server) for name, server in known.items()))
        return dict(zip(known, listed, strict=True))

    tools = run(scenario())

    assert all(tools.values())
    assert {
        (name, provider): dict(fit_tools(tools[name], provider).left_out) for name in tools for provider in PROVIDERS
    } == {(name, provider): {} for name in tools for provider in PROVIDERS}


def test_the_page_names_the_versions_that_are_run() -> None:
    page = (TOP / "docs" / "tools.md").read_text()
    npm = json.loads((HERE / "package.json").read_text())["dependencies"]
    (python,) = re.findall(r"^mcp-server-time==(\S+)", (HERE / "mcp-time.lock").read_text(), re.MULTILINE)

    for name, version in {**npm, "mcp-server-time": python}.items():
        assert f"`{name}` {version}" in page
