"""Tools of MCP servers: calling and listing them.

The connection class imports the SDK, which takes half a second, so it is imported with the first call. All functions here run on the
event loop of the process, which owns one connection for each server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from cantata.errors import StepError
from cantata.flows.definitions import McpServer
from cantata.flows.graph import Outcome
from cantata.operation import fault_points
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue, ToolSchema, Usage
from cantata_workers.process.config_folder import local_folder
from cantata_workers.process.step_context import StepContext, handles
from cantata_workers.tools.mcp.tool_results import ConnectionLost

if TYPE_CHECKING:
    from cantata_workers.tools.mcp.server_session import Connection

__all__ = ["call", "close", "list_tools", "mcp_call", "unreadable_tools"]

Result = TypeVar("Result")

_connections: dict[tuple[str, str | None, str], Connection] = {}


@handles("mcp.call")
async def mcp_call(context: StepContext) -> Outcome:
    """Call a server's tool with the node's input as its arguments."""
    name, method, tool, timeout_s = (
        context.text_param("tool"),
        context.text_param("method"),
        context.tool,
        context.begun.spec.timeout_s,
    )
    assert tool is not None
    assert tool.mcp is not None
    fault_points.at("tool-started")
    output = await call(name, tool.mcp, method, context.node_input, folder=context.folder, timeout_s=timeout_s)
    fault_points.at("tool-finished")
    return Outcome(output=output, usage=Usage(tool_calls=1))


async def list_tools(name: str, server: McpServer, *, folder: str | None = None) -> tuple[ToolSchema, ...]:
    """Return the tools of the server called `name`, as last listed. Its command runs in `folder`.

    Raises StepError with the code mcp_unavailable, timeout, tool_error or bad_output.
    """
    return await _with_reconnect(name, server, folder, lambda connection: connection.tools())


async def unreadable_tools(name: str, server: McpServer, *, folder: str | None = None) -> Mapping[str, str]:
    """Return the tools that the server lists in a form that is none → why. `list_tools` returns the others, and raises the same errors."""

    async def listed(connection: Connection) -> Mapping[str, str]:
        await connection.tools()
        return connection.unreadable_tools

    return await _with_reconnect(name, server, folder, listed)


async def call(
    name: str,
    server: McpServer,
    tool: str,
    arguments: Mapping[str, JsonValue],
    *,
    folder: str | None = None,
    timeout_s: float | None = None,
) -> JsonValue:
    """Call a tool of the server called `name`; return its structured content, else its text, or a list if there are several texts.

    Images, sounds and files come as `{type, mimeType, bytes}`. `timeout_s` wins over the server's own. Raises StepError with the code
    unknown_tool, tool_error (the message is the server's), bad_output, timeout or mcp_unavailable.
    """

    async def call_tool(connection: Connection) -> JsonValue:
        if tool not in _names(await connection.tools()):
            known = _names(await connection.tools(fresh=True))  # not every server notifies that its tools changed
            if tool not in known:
                reason = connection.unreadable_tools.get(tool)
                why = f" that can be read: {reason}" if reason else did_you_mean(tool, known)
                raise StepError(f"MCP server {name!r} has no tool {tool!r}{why}", code="unknown_tool")
        return await connection.call(tool, arguments, timeout_s)

    return await _with_reconnect(name, server, folder, call_tool)


async def close() -> None:
    """Close all connections."""
    await asyncio.gather(*(connection.close() for connection in _connections.values()))


async def _with_reconnect(
    name: str, server: McpServer, folder: str | None, request: Callable[[Connection], Awaitable[Result]]
) -> Result:
    """Send a request; repeat it on a new connection if the old one was lost before the server can have begun the request."""
    try:
        return await request(await _connection(name, server, folder))
    except ConnectionLost as error:
        if error.was_sent:
            raise
        return await request(await _connection(name, server, folder))


async def _connection(name: str, server: McpServer, folder: str | None) -> Connection:
    """Return the open connection to a server, or a new one."""
    connection_class = await asyncio.to_thread(_connection_class)
    key = (name, folder, server.model_dump_json())
    connection = _connections.get(key)
    if connection is None or connection.is_closed:
        for closed in [other for other, connection in _connections.items() if connection.is_closed]:
            del _connections[closed]
        connection = _connections[key] = connection_class(name, server, folder)
    return connection


def _connection_class() -> type[Connection]:
    from cantata_workers.tools.mcp.server_session import Connection  # noqa: PLC0415  # the choke-point: the SDK takes half a second to import

    return Connection


def _names(tools: Sequence[ToolSchema]) -> list[str]:
    return [tool.name for tool in tools]


async def faults(servers: Mapping[str, JsonValue], folder: str | None) -> list[str]:
    """Return the errors of the servers that do not list their tools."""
    errors = await asyncio.gather(
        *(_fault(name, McpServer.model_validate(server), folder) for name, server in servers.items())
    )
    return list(filter(None, errors))


async def _fault(name: str, server: McpServer, folder: str | None) -> str:
    try:
        await list_tools(name, server, folder=local_folder(folder))
    except StepError as error:
        return str(error)
    return ""
