"""A tool that checks MCP servers from a worker, before agents need them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cantata.errors import StepError
from cantata.models.definitions import McpServer
from cantata.models.values import JsonValue
from cantata.workers.code.config_folder import local_folder
from cantata.workers.tools import mcp


async def faults(servers: Mapping[str, JsonValue], folder: str | None) -> list[str]:
    """Return the errors of the servers that do not list their tools."""
    errors = await asyncio.gather(*(_fault(name, McpServer.model_validate(server), folder) for name, server in servers.items()))
    return list(filter(None, errors))


async def _fault(name: str, server: McpServer, folder: str | None) -> str:
    try:
        await mcp.list_tools(name, server, folder=local_folder(folder))
    except StepError as error:
        return str(error)
    return ""
