"""Checks of the MCP servers of a chain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from cantata.errors import UnavailableError
from cantata.frontends.promptchain.run_calls import shared_client
from cantata.models.definitions import Definitions, Tool

CHECK = "cantata.workers.tools.mcp:faults"
WORKER_WAIT_S = 10.0  # beyond the servers' own limit: a worker may be busy


class McpHelper:
    """The MCP servers of a chain. Workers connect to them at the first call, and again after a connection is lost."""

    def __init__(self, definitions: Callable[[], Definitions]) -> None:
        self._definitions = definitions

    async def connect_mcp_async(self) -> None:
        """Let a worker connect to each server; optional. Raises UnavailableError with the names of those that do not answer."""
        faults = await asyncio.to_thread(self._faults)
        if faults:
            raise UnavailableError("; ".join(faults))

    async def close_mcp_async(self) -> None:
        """Do nothing: the connections belong to the workers."""

    def _faults(self) -> list[str]:
        definitions = self._definitions()
        servers = {name: tool.mcp for name, tool in definitions.tools.items() if tool.mcp}
        limit_s = max(server.connect_timeout_s for server in servers.values()) + WORKER_WAIT_S
        check = Tool(function=CHECK, queue="agents", timeout_s=limit_s)
        checked = {name: server.model_dump(exclude_defaults=True) for name, server in servers.items()}
        node = {"node_id": "check", "kind": "tool", "name": "check", "input": {"servers": checked, "folder": definitions.folder}}
        client = shared_client().with_definitions(Definitions(folder=definitions.folder, tools={"check": check}))
        response = client.submit_chain({"nodes": [node], "entry_node": "check", "timeout": limit_s + WORKER_WAIT_S}).result()
        if response.error:
            return [response.error.message]
        return cast("list[str]", response.final_output)
