"""An MCP server, made without the SDK, that writes what it is told to: its tool `write` answers with the lines of its argument.

`ID` in a line becomes the id of the request. By standard input and output, or with `--http` at a port of loopback that it writes down.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("--greeting", help="a line that comes first")
parser.add_argument("--initialize", help="the answer to the first request")
parser.add_argument(
    "--list", help="the answer to a request for the tools", default='{"tools": [{"name": "write", "inputSchema": {}}]}'
)
parser.add_argument("--http", type=Path, help="file for the port")
options = parser.parse_args()


def answers(message: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is to be written upon a message, and the arguments that say how."""
    params, request_id = message.get("params") or {}, message.get("id")
    if message.get("method") == "initialize":
        capabilities: dict[str, Any] = {"tools": {}}
        result = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": capabilities,
            "serverInfo": {"name": "p", "version": "1"},
        }
        yield options.initialize or json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}), {}
    elif message.get("method") == "tools/list":
        yield f'{{"jsonrpc": "2.0", "id": {request_id}, "result": {options.list}}}', {}
    elif message.get("method") == "tools/call":
        given = params["arguments"]
        for line in given["lines"]:
            yield line.replace("ID", str(request_id)) * given.get("times", 1), given
    elif request_id is not None:  # a ping
        yield json.dumps({"jsonrpc": "2.0", "id": request_id, "result": {}}), {}


class Handler(BaseHTTPRequestHandler):
    """Answers a message with a line as the body, or with an event for each line."""

    def do_POST(self) -> None:
        """Answer."""
        lines = list(answers(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        kind = next((given["kind"] for _, given in lines if "kind" in given), "application/json")
        events = kind == "text/event-stream"
        body = "".join(f"event: message\ndata: {line}\n\n" if events else line for line, _ in lines).encode()
        self.send_response(200 if lines else 202)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def write(message: Any) -> None:
    """Write the lines upon a message, once the file is there that its argument `after` names."""
    for line, given in answers(message):
        while "after" in given and not Path(given["after"]).exists():
            time.sleep(0.01)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if options.greeting:
    sys.stdout.write(f"{options.greeting}\n")
    sys.stdout.flush()
if options.http:
    http_server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    options.http.write_text(str(http_server.server_address[1]))
    http_server.serve_forever()
for received in sys.stdin:
    threading.Thread(target=write, args=(json.loads(received),), daemon=True).start()
