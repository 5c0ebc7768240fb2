"""The tools of a PromptChain: functions with their schemas, and MCP servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cantata.config.user_code.function_names import name_of
from cantata.config.user_code.tool_decorator import settings_of
from cantata.errors import ConfigError
from cantata.flows.definitions import McpServer, Tool, mcp_tool
from cantata.text.suggestions import did_you_mean
from cantata_frontends.promptchain.argument_values import check_keys, validated

Function = Callable[..., Any]

MCP_PREFIX = "mcp_"
"""The prefix of MCP tools in PromptChain: `mcp_<server>_<tool>`; definitions call them `<server>.<tool>`."""

_SERVER_KEYS = ("id", "type", "command", "args", "env", "url", "headers", "read_timeout_seconds")
_HTTP = ("http", "streamable-http", "streamable_http")


class Toolbox:
    """Functions, schemas and servers. A schema describes the function of its name; a function may have none."""

    def __init__(self, servers: Iterable[Mapping[str, Any]] = ()) -> None:
        self._servers = dict(map(_server, servers))
        self._schemas: dict[str, Mapping[str, Any]] = {}
        self._functions: dict[str, Function] = {}
        self._tools: dict[str, Tool] = {}

    def add_schemas(self, schemas: Iterable[Mapping[str, Any]]) -> None:
        """Add schemas in OpenAI's format. Raises ValueError, and then adds none."""
        self._add(schemas=dict(map(_schema, schemas)))

    def schemas(self) -> list[dict[str, Any]]:
        """Return the schemas that were added, in OpenAI's format."""
        return [{"type": "function", "function": dict(schema)} for schema in self._schemas.values()]

    def register(self, function: Function) -> str:
        """Add a function; return the name that models call it by. Raises ValueError, or ConfigError if no worker could import it."""
        name_of(function)  # raises ConfigError
        name = str(settings_of(function).get("name", function.__name__))
        if name.startswith(MCP_PREFIX):
            raise ValueError(
                f"the function {name!r} needs another name: those that begin with {MCP_PREFIX!r} are for tools of MCP servers"
            )
        self._add(functions={name: function})
        return name

    def tools(self) -> dict[str, Tool]:
        """Return all tools, by name. Raises ConfigError if there is a schema without a function."""
        unmatched = self._schemas.keys() - self._functions.keys()
        if unmatched:
            message = f"no function belongs to the {_name_list('schema', unmatched)}: give it to register_tool_function"
            raise ConfigError(message, source="PromptChain")
        return {**self._tools, **self.servers()}

    def servers(self) -> dict[str, Tool]:
        """Return the MCP servers, by name."""
        return {name: Tool(mcp=server) for name, server in self._servers.items()}

    def functions(self) -> Iterable[Function]:
        """Return all functions."""
        return self._functions.values()

    def resolve(self, name: str) -> str:
        """Return a tool's name as definitions have it. Raises ConfigError if there is no such tool."""
        known = self.tools()
        server = max((each for each in self._servers if name.startswith(f"{MCP_PREFIX}{each}_")), key=len, default=None)
        resolved = name if server is None else f"{server}.{name.removeprefix(f'{MCP_PREFIX}{server}_')}"
        if resolved not in known and mcp_tool(resolved, known) is None:
            raise ConfigError(f"there is no tool {name!r}{did_you_mean(name, known)}", source="PromptChain")
        return resolved

    def _add(
        self, *, schemas: Mapping[str, Mapping[str, Any]] | None = None, functions: Mapping[str, Function] | None = None
    ) -> None:
        all_schemas, all_functions = {**self._schemas, **(schemas or {})}, {**self._functions, **(functions or {})}
        unmatched_schemas, unmatched_functions = (
            all_schemas.keys() - all_functions.keys(),
            all_functions.keys() - all_schemas.keys(),
        )
        added = (schemas or {}).keys() | (functions or {}).keys()
        if unmatched_schemas and unmatched_functions and added & (unmatched_schemas | unmatched_functions):
            raise ValueError(
                f"the {_name_list('schema', unmatched_schemas)} and the {_name_list('function', unmatched_functions)} do not belong "
                "together: the name in a schema must be the function's `__name__`"
            )
        for name in added & self._servers.keys():
            raise ValueError(f"{name!r} is the id of an MCP server; give the function another name")
        self._tools = {name: _tool(function, all_schemas.get(name)) for name, function in all_functions.items()}
        self._schemas, self._functions = all_schemas, all_functions


def _schema(given: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    schema = given.get("function", given) if isinstance(given, Mapping) else given
    if not isinstance(schema, Mapping) or not isinstance(schema.get("name"), str) or not schema["name"]:
        raise ValueError(
            f"a tool's schema is {{'type': 'function', 'function': {{'name': ..., 'parameters': {{...}}}}}}, not {given!r}"
        )
    if schema["name"].startswith(MCP_PREFIX):
        raise ValueError(
            f"the schema {schema['name']!r} needs another name: those that begin with {MCP_PREFIX!r} are for tools of MCP servers"
        )
    return schema["name"], schema


def _tool(function: Function, schema: Mapping[str, Any] | None) -> Tool:
    own = {key: value for key, value in settings_of(function).items() if key != "name"}
    described = (
        {key: schema[key] for key in ("description", "parameters") if schema.get(key) is not None} if schema else {}
    )
    return validated(Tool, f"tool {function.__name__!r}", {**own, **described, "function": name_of(function)[0]})


def _server(given: Mapping[str, Any]) -> tuple[str, McpServer]:
    """Read an entry of `mcp_servers`: {id, type, command, args, env} or {id, type, url, headers}."""
    name = given.get("id")
    if not isinstance(name, str) or not name:
        raise ValueError(f"an MCP server needs an 'id', which its tools are named after; found {dict(given)!r}")
    what = f"MCP server {name!r}"
    check_keys(given, _SERVER_KEYS, what)
    kind = given.get("type", "http" if "url" in given else "stdio")
    if kind != "stdio" and kind not in _HTTP:
        raise ValueError(
            f"{what}: type {kind!r} is not available; use 'stdio' (a command) or 'http' (the address of streamable HTTP)"
        )
    command = given.get("command") or []
    words = [command] if isinstance(command, str) else list(command)
    fields = {
        "command": [*words, *map(str, given.get("args") or ())], "url": given.get("url"), "env": _variables(given.get("env") or (), what),
        "headers": dict(given.get("headers") or {}), "timeout_s": given.get("read_timeout_seconds"),
    }  # fmt: skip
    return name, validated(McpServer, what, {key: value for key, value in fields.items() if value is not None})


def _variables(env: Mapping[str, str] | Sequence[str], what: str) -> list[str]:
    """Return the names of the variables that a server receives. The values stay in the environment, since definitions are stored."""
    if isinstance(env, Mapping):
        for variable, value in env.items():
            if os.environ.get(variable) != value:
                raise ValueError(
                    f"{what}: the value of {variable} is not stored with runs: set it in the environment of the workers, "
                    f"and write 'env': [{variable!r}]"
                )
    return [env] if isinstance(env, str) else list(env)


def _name_list(noun: str, names: Iterable[str]) -> str:
    words = sorted(map(repr, names))
    return f"{noun if len(words) == 1 else f'{noun}s'} {', '.join(words)}"
