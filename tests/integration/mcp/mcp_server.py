"""A real MCP server, made with the SDK: by standard input and output, or with `--http` at a port of loopback that it writes down."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.fastmcp import Context, FastMCP, Image
from pydantic import BaseModel

parser = argparse.ArgumentParser()
parser.add_argument("--journal", type=Path, required=True)
parser.add_argument("--http", type=Path, help="file for the port")
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--noisy", action="store_true", help="write to standard output what is no message")
parser.add_argument("--stubborn", action="store_true", help="stay when standard input ends")
options = parser.parse_args()


def note(what: str, **more: object) -> None:
    """Write a line to the journal."""
    with options.journal.open("a") as file:
        file.write(json.dumps({"what": what, "pid": os.getpid(), **more}) + "\n")


@asynccontextmanager
async def session(_: FastMCP) -> AsyncIterator[None]:
    """Note each client that comes."""
    note("session")
    yield


server = FastMCP("tests", lifespan=session)
AnyContext = Context[Any, Any, Any]


class Page(BaseModel):
    """A structured answer."""

    title: str
    lines: list[str]


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


@server.tool(structured_output=False)
def echo(text: str) -> str:
    """Says it again."""
    return text


@server.tool(structured_output=False)
def several() -> list[Any]:
    """Says many things."""
    return ["one", "two", Image(data=b"12345", format="png")]


@server.tool(structured_output=False)
def nothing() -> None:
    """Says nothing."""


@server.tool()
def page(title: str) -> Page:
    """Answers with structure."""
    return Page(title=title, lines=["a", "b"])


@server.tool(structured_output=False)
def large(kilobytes: int) -> str:
    """Says much."""
    return "x" * 1000 * kilobytes


@server.tool()
async def slow(seconds: float) -> str:
    """Takes its time."""
    note("slow started")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("slow cancelled")
        raise
    return "done"


@server.tool()
def fails(variable: str) -> None:
    """Tells a secret on its way out."""
    raise ValueError(f"no luck with {os.environ[variable]}")


@server.tool()
def fails_with_header(header: str, context: AnyContext) -> None:
    """Tells a secret header on its way out."""
    request: Any = context.request_context.request
    raise ValueError(f"no luck with {request.headers[header]} at all")


@server.tool()
def environment() -> dict[str, str]:
    """What it was given."""
    return dict(os.environ)


@server.tool()
def folder() -> str:
    """Where it runs."""
    return str(Path.cwd())


@server.tool()
def pid() -> int:
    """Who it is."""
    return os.getpid()


@server.tool()
def dies() -> None:
    """Takes the server down."""
    note("dies")
    os._exit(3)


@server.tool()
async def learn(name: str, context: AnyContext) -> str:
    """Adds a tool, and says so."""
    server.add_tool(lambda: name, name=name, description="Was learnt.")
    await context.session.send_tool_list_changed()
    return name


@server.tool()
def learn_silently(name: str) -> str:
    """Adds a tool, and tells nobody."""
    server.add_tool(lambda: name, name=name)
    return name


def serve_http() -> None:
    """Serve streamable HTTP."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", options.port))
        listening.listen()
        options.http.write_text(str(listening.getsockname()[1]))
        config = uvicorn.Config(server.streamable_http_app(), log_level="warning", timeout_graceful_shutdown=1)
        asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))


if options.noisy:
    sys.stdout.write("Welcome to this server\n")
    sys.stdout.flush()
    sys.stderr.write("and this is its log\n")
if options.http:
    serve_http()
else:
    server.run()
    if options.stubborn:
        note("stays")
        asyncio.run(asyncio.sleep(600))
