"""What messages to an MCP server go through: the standard streams of a command, or HTTP. Secrets come from the environment only here."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from cantata.models.definitions import McpServer
from cantata.observability.logs.secrets import SECRET_SIZE, secrets_in
from cantata.workers.code.environment import environment, variable
from cantata.workers.tools.mcp.stderr_tail import StderrTail, captured_stderr

SHORTEST_SECRET = 4  # shorter values are numbers and words, and would tear holes in every text

Read = MemoryObjectReceiveStream[SessionMessage | Exception]
Write = MemoryObjectSendStream[SessionMessage]
Streams = tuple[Read, Write]

logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs what a server wrote, which may be secret; what is wrong is told by us


def opened(server: McpServer, folder: str | None, words: StderrTail) -> AbstractAsyncContextManager[Streams]:
    """The streams from and to a server; a command runs in `folder`, and its last words are kept."""
    return _by_address(server, server.url) if server.url else _by_command(server, folder, words)


def secrets_of(server: McpServer) -> list[str]:
    """What a server is given and must not be told on, and whatever else is secret here, longest first."""
    values = [os.environ.get(variable, "").strip() for variable in (*server.env, *server.headers.values())]
    given = [value for value in values if len(value) >= SHORTEST_SECRET]
    parts = [part for value in given for part in value.split() if len(part) >= SECRET_SIZE]  # the key of "Bearer KEY", the lines of a file
    return sorted({*given, *parts, *secrets_in(os.environ)}, key=len, reverse=True)


@asynccontextmanager
async def _by_command(server: McpServer, folder: str | None, words: StderrTail) -> AsyncIterator[Streams]:
    command, *arguments = server.command
    parameters = StdioServerParameters(
        command=command, args=arguments, env=environment(server.env), cwd=folder, encoding_error_handler="replace"
    )
    async with captured_stderr(words) as errors, stdio_client(parameters, errors) as streams:
        errors.close()  # the command has its own
        yield streams


@asynccontextmanager
async def _by_address(server: McpServer, url: str) -> AsyncIterator[Streams]:
    headers = {header: variable(name).strip() for header, name in server.headers.items()}
    # How long an answer may take is for the calls to say, and how many may wait at once for the worker's slots.
    timeout = httpx.Timeout(server.connect_timeout_s, read=None)
    async with (
        httpx.AsyncClient(headers=headers, timeout=timeout, limits=httpx.Limits(max_connections=None)) as client,
        streamable_http_client(url, http_client=client) as (read, write, _),
    ):
        yield read, write
