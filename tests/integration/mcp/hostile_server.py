"""An MCP server whose schemas name addresses and whose patterns search for years; it does not validate its own results."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

PATTERN = "^(([a-z])+.)+[A-Z]([a-z])+$"
SCHEMAS: dict[str, dict[str, Any]] = {
    "slow_pattern": {"type": "object", "additionalProperties": {"pattern": PATTERN}},
    "address": {"type": "object", "properties": {"text": {"$ref": sys.argv[1]}}},
    "wrong": {"type": "object", "properties": {"text": {"type": "integer"}}},
    "right": {"type": "object", "properties": {"text": {"type": "string"}}},
}

server: Server[Any, Any] = Server("hostile")


@server.list_tools()  # type: ignore[no-untyped-call, untyped-decorator]  # the SDK's
async def tools() -> list[types.Tool]:
    """List the tools."""
    return [
        types.Tool(name=name, inputSchema={"type": "object"}, outputSchema=schema) for name, schema in SCHEMAS.items()
    ]


@server.call_tool(validate_input=False)  # type: ignore[untyped-decorator]  # the SDK's
async def call(name: str, arguments: dict[str, Any]) -> types.CallToolResult:
    """Answer with a text, which the SDK's server does not validate in this form."""
    return types.CallToolResult(content=[], structuredContent={"text": "a" * 5000 if name == "slow_pattern" else "x"})


async def main() -> None:
    """Serve by standard input and output."""
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


asyncio.run(main())
