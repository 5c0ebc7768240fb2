"""Asks whether the MCP servers of a chain answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from cantata.errors import UnavailableError
from cantata.frontends.promptchain.run_calls import shared_client
from cantata.models.definitions import Definitions, Tool

CHECK = "cantata.workers.tools.mcp.server_check:faults"
WORKER_WAIT_S = 10.0  # more than the servers' own time: a worker may be busy


class McpHelper:
    """The MCP servers of a chain. Workers connect to them with the first call, and again when a connection is lost."""

    def __init__(self, definitions: Callable[[], Definitions]) -> None:
        self._definitions = definitions

    async def connect_mcp_async(self) -> None:
        """Have a worker connect to each server. It need not be done. Raises UnavailableError that names those that do not answer."""
        faults = await asyncio.to_thread(self._faults)
        if faults:
            raise UnavailableError("; ".join(faults))

    async def close_mcp_async(self) -> None:
        """There is nothing to close: the connections are the workers'."""

    def _faults(self) -> list[str]:
        definitions = self._definitions()
        servers = {name: tool.mcp for name, tool in definitions.tools.items() if tool.mcp}
        limit_s = max(server.connect_timeout_s for server in servers.values()) + WORKER_WAIT_S
        check = Tool(function=CHECK, queue="agents", timeout_s=limit_s)
        told = {name: server.model_dump(exclude_defaults=True) for name, server in servers.items()}
        node = {"node_id": "check", "kind": "tool", "name": "check", "input": {"servers": told, "folder": definitions.folder}}
        client = shared_client().with_definitions(Definitions(folder=definitions.folder, tools={"check": check}))
        response = client.submit_chain({"nodes": [node], "entry_node": "check", "timeout": limit_s + WORKER_WAIT_S}).result()
        if response.error:
            return [response.error.message]
        return cast("list[str]", response.final_output)
