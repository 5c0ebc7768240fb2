"""A real HTTP server that answers as model providers do, each in its own wire form, with the replies of `models/replies`."""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "models" / "replies"
RESULT = "21 degrees"
"""What the tool `get_weather` returns; the server tells by it how many results of tools a request has."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """The replies of a provider that hold one promise, such as `tools` or `refusal`."""

    provider: str
    """The name of its file."""
    name: str
    model: str
    params: Json
    environment: Mapping[str, str]
    wire: str
    turns: Sequence[Json]
    sent_back: Sequence[Any] = ()
    """Parts of the second request: the reasoning that the provider wants back."""
    refused: Sequence[str] = ()
    """Fields of messages that the provider refuses."""
    thought: str = ""
    """The part of its reasoning that people can read."""
    words: str = ""
    """What its refusal or filter says."""

    @property
    def cities(self) -> list[str]:
        """The cities of which the replies ask the weather."""
        first = json.dumps(self.turns[0]["whole"]).replace("\\", "") if len(self.turns) > 1 else ""
        return [city for city in ("Paris", "London") if f'"city": "{city}"' in first]

    @property
    def column(self) -> str:
        """Its column of the matrix: a name may have a variant behind a colon."""
        return self.name.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.provider} {self.name}"


@cache
def read(provider: str) -> Json:
    """Return the file of a provider."""
    found: Json = json.loads((FOLDER / f"{provider}.json").read_text("utf-8"))
    return found


def providers() -> list[str]:
    """Return the names of the files."""
    return sorted(file.stem for file in FOLDER.glob("*.json"))


def cells() -> list[Cell]:
    """Return all cells that have replies."""
    return [cell(provider, name) for provider in providers() for name in read(provider)["replies"]]


def cell(provider: str, name: str) -> Cell:
    """Return one cell. The settings of a variant are those of its column, and its own."""
    found = read(provider)
    own: dict[str, Any] = {
        **found.get("cells", {}).get(name.partition(":")[0], {}),
        **found.get("cells", {}).get(name, {}),
    }
    whole, chunk = ({}, {}) if own.get("envelope") is False else (found["whole"], found["chunk"])
    turns = [
        {
            **turn,
            "whole": {**whole, **turn["whole"]} if turn.get("status", 200) == 200 else turn["whole"],
            "stream": [{**chunk, **event} for event in turn.get("stream", ())],
        }
        for turn in found["replies"][name]
    ]
    settings = {**found, **own}
    return Cell(
        provider=provider,
        name=name,
        model=settings["model"],
        params=settings.get("params", {}),
        environment=found["environment"],
        wire=settings["wire"],
        turns=turns,
        sent_back=own.get("sent_back", ()),
        refused=own.get("refused", ()),
        thought=own.get("thought", "I should look it up."),
        words=own.get("words", ""),
    )


class Upstream:
    """The server, what it answers with now, and the requests that it got."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.requests: list[Json] = []
        self.later: dict[str, list[Json]] = {}
        """The requests with results of tools of each cell that is named in them."""
        self.may_go_on = threading.Event()
        """Until it is set, requests with results of tools for cells that are named get no answer."""
        self._cell: Cell | None = None
        self._named: dict[str, Cell] = {}

    def answer_with(self, cell: Cell) -> None:
        """Answer with the replies of a cell from now on, and forget the requests."""
        self._cell, self.requests = cell, []

    def answer_where_named(self, cells: Mapping[str, Cell]) -> None:
        """Answer each request with the replies of the cell whose name is in its text."""
        self._named = dict(cells)

    def answer(self, path: str, raw: bytes) -> tuple[int, str, bytes]:
        """Return the status, the content type and the body of the answer to a request."""
        if path.endswith("/api/show"):  # LiteLLM asks Ollama what a model can do
            return 200, "application/json", json.dumps(SHOWN).encode()
        body: Json = json.loads(raw)
        self.requests.append(body)
        name = next((name for name in self._named if name.encode() in raw), "")
        cell = self._named.get(name) or self._cell
        assert cell is not None
        number = min(
            raw.count(RESULT.encode()), len(cell.turns) - 1
        )  # each turn but the last is answered by results of tools
        if name and number:
            self.later.setdefault(name, []).append(body)
            self.may_go_on.wait()
        if names := [name for name in cell.refused for message in body.get("messages", ()) if name in message]:
            refusal = {"error": {"message": f"property '{names[0]}' is unsupported", "type": "invalid_request_error"}}
            return 400, "application/json", json.dumps(refusal).encode()
        turn = cell.turns[number]
        is_stream = bool(body.get("stream")) or "stream" in path.rpartition("/")[2].lower()
        if not is_stream or turn.get("status", 200) != 200:
            return turn.get("status", 200), "application/json", json.dumps(turn["whole"]).encode()
        kind, encode = WIRES[cell.wire]
        has_done = cell.wire == "data" and "choices" in turn["whole"] and not turn.get("is_cut")
        return 200, kind, b"".join(encode(event) for event in turn["stream"]) + (DONE if has_done else b"")


SHOWN: Json = {"capabilities": ["completion", "tools", "thinking"], "template": "{{ .Tools }}", "model_info": {}}
"""The answer of Ollama's `/api/show`."""
DONE = b"data: [DONE]\n\n"


def _data(event: Json) -> bytes:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


def _named_event(event: Json) -> bytes:
    return f"event: {event['type']}\n".encode() + _data(event)


def _line(event: Json) -> bytes:
    return f"{json.dumps(event, ensure_ascii=False)}\n".encode()


def _aws_message(event: Json) -> bytes:
    """Encode a message of an event stream of AWS: lengths, a check sum, headers, the payload, a check sum."""
    ((name, payload),) = event.items()
    content = json.dumps(payload, ensure_ascii=False).encode()
    headers = b"".join(
        struct.pack("!B", len(key)) + key.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for key, value in ((":event-type", name), (":content-type", "application/json"), (":message-type", "event"))
    )
    prelude = struct.pack("!II", 16 + len(headers) + len(content), len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + content
    return message + struct.pack("!I", zlib.crc32(message))


WIRES = {
    "data": ("text/event-stream", _data),
    "events": ("text/event-stream", _named_event),
    "lines": ("application/x-ndjson", _line),
    "aws": ("application/vnd.amazon.eventstream", _aws_message),
}
"""Form of a stream → its content type, and the encoding of an event."""


def has_part(value: Any, part: Any) -> bool:
    """Return whether a value, or one within it, has all that is in a part."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return _fits(value, part) or any(has_part(each, part) for each in inner)


def _fits(value: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(value, dict) and all(
            name in value and _fits(value[name], each) for name, each in part.items()
        )
    return bool(value == part)


@contextmanager
def upstream() -> Iterator[Upstream]:
    """Serve on a free port."""
    served: list[Upstream] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            status, kind, content = served[0].answer(self.path.partition("?")[0], raw)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(OSError):  # the client was killed
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.append(Upstream(server.server_port))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield served[0]
    finally:
        served[0].may_go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
