"""Schemas and functions belong together by name; MCP servers are what configurations say of them."""

from __future__ import annotations

from typing import Any

import pytest

from cantata import ConfigError, tool
from cantata.flows.definitions import McpServer, Tool
from cantata_frontends.promptchain.toolbox import Toolbox

NAME = f"{__name__}:"
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}


def schema(name: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": f"does {name}", "parameters": PARAMETERS, **more},
    }


def look_up(word: str) -> str:
    return word


def count(word: str) -> int:
    return len(word)


@tool(timeout_s=5, retries=2, hidden=["user"], description="as decorated")
def buy(word: str, user: str = "") -> str:
    return word + user


@tool(name="bill")
def charge(word: str) -> str:
    return word


def mcp_search(word: str) -> str:
    return word


def test_a_schema_and_its_function_are_a_tool_in_either_order() -> None:
    first, second = Toolbox(), Toolbox()

    first.add_schemas([schema("look_up"), schema("count")["function"]])
    first.register(look_up)
    first.register(count)
    second.register(count)
    second.register(look_up)
    second.add_schemas([schema("look_up")])
    second.add_schemas([schema("count")])

    assert (
        first.tools()
        == second.tools()
        == {
            name: Tool(function=f"{NAME}{name}", description=f"does {name}", parameters=PARAMETERS)
            for name in ("look_up", "count")
        }
    )


def test_a_function_needs_no_schema() -> None:
    toolbox = Toolbox()
    toolbox.register(look_up)

    assert toolbox.tools() == {"look_up": Tool(function=f"{NAME}look_up")}


def test_the_name_in_a_schema_must_be_the_functions() -> None:
    said = "the schema 'lookup' and the function 'look_up' do not belong together: the name in a schema must be the function's `__name__`"
    first, second = Toolbox(), Toolbox()

    first.add_schemas([schema("lookup")])
    with pytest.raises(ValueError, match=said):
        first.register(look_up)
    second.register(look_up)
    with pytest.raises(ValueError, match=said):
        second.add_schemas([schema("lookup")])

    assert second.tools() == {"look_up": Tool(function=f"{NAME}look_up")}, "what was refused is not kept"


def test_a_schema_without_a_function_is_told_before_anything_runs() -> None:
    toolbox = Toolbox()
    toolbox.add_schemas([schema("look_up"), schema("count")])

    with pytest.raises(
        ConfigError, match="no function belongs to the schemas 'count', 'look_up': give it to register_tool_function"
    ):
        toolbox.tools()


def test_names_of_mcp_tools_are_reserved() -> None:
    with pytest.raises(ValueError, match="the function 'mcp_search' needs another name"):
        Toolbox().register(mcp_search)
    with pytest.raises(ValueError, match="the schema 'mcp_search' needs another name"):
        Toolbox().add_schemas([schema("mcp_search")])
    with pytest.raises(ValueError, match="'count' is the id of an MCP server"):
        Toolbox([{"id": "count", "command": "x"}]).register(count)


@pytest.mark.parametrize(
    "given", [{}, {"type": "function"}, {"function": {"name": ""}}, "look_up", {"function": "look_up"}]
)
def test_what_is_no_schema_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="a tool's schema is"):
        Toolbox().add_schemas([given])


def test_a_wrong_schema_is_told_with_its_tool() -> None:
    toolbox = Toolbox()
    toolbox.register(look_up)

    with pytest.raises(ValueError, match=r"^tool 'look_up': 'parameters' is the JSON schema of an object"):
        toolbox.add_schemas([schema("look_up", parameters={"type": "string"})])


def test_a_decorated_function_brings_its_settings_and_its_name() -> None:
    toolbox = Toolbox()
    toolbox.add_schemas([schema("buy")])
    toolbox.register(buy)
    toolbox.register(charge)

    assert toolbox.tools() == {
        "buy": Tool(
            function=f"{NAME}buy",
            description="does buy",
            parameters=PARAMETERS,
            timeout_s=5,
            retries=2,
            hidden=["user"],
        ),
        "bill": Tool(function=f"{NAME}charge"),
    }


def test_a_schema_cannot_show_what_the_code_hides() -> None:
    toolbox = Toolbox()
    toolbox.register(buy)

    with pytest.raises(ValueError, match="'user' is hidden from models, but 'parameters' shows it"):
        toolbox.add_schemas([schema("buy", parameters={"type": "object", "properties": {"user": {"type": "string"}}})])


# MCP servers


def test_servers_are_what_configurations_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES_TOKEN", "xyz")
    servers: list[dict[str, Any]] = [
        {"id": "notes", "type": "stdio", "command": "python", "args": ["notes.py", 3], "env": {"NOTES_TOKEN": "xyz"}},
        {
            "id": "web",
            "url": "https://example.com/mcp",
            "headers": {"Authorization": "WEB_AUTHORIZATION"},
            "read_timeout_seconds": 5,
        },
    ]

    assert Toolbox(servers).tools() == {
        "notes": Tool(mcp=McpServer(command=["python", "notes.py", "3"], env=["NOTES_TOKEN"])),
        "web": Tool(
            mcp=McpServer(url="https://example.com/mcp", headers={"Authorization": "WEB_AUTHORIZATION"}, timeout_s=5)
        ),
    }


@pytest.mark.parametrize(
    ("name", "resolved"),
    [
        ("look_up", "look_up"),
        ("mcp_notes_length", "notes.length"),
        ("mcp_notes_2_length", "notes_2.length"),
        ("notes.length", "notes.length"),
    ],
)
def test_tools_of_servers_are_known_by_both_names(name: str, resolved: str) -> None:
    toolbox = Toolbox([{"id": "notes", "command": "x"}, {"id": "notes_2", "command": "x"}])
    toolbox.register(look_up)

    assert toolbox.resolve(name) == resolved


@pytest.mark.parametrize("name", ["lookup", "mcp_other_length", "other.length"])
def test_a_tool_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no tool '{name}'"):
        Toolbox([{"id": "notes", "command": "x"}]).resolve(name)
