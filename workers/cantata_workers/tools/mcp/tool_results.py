"""Results of tools of MCP servers, as JSON for steps and as text for people; and the error of a lost connection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from cantata.errors import StepError
from cantata.values import JsonValue

CallToolResult = Mapping[str, JsonValue]
"""The result of a `tools/call`, as the server wrote it; any field may be missing, null or of another type."""


def output_of(result: CallToolResult) -> JsonValue:
    """Return the structured content if there is any, else the content: one part as it is, several as a list, none as null."""
    structured = result.get("structuredContent")
    if structured is not None:
        return structured
    parts = [_part(part) for part in _content(result)]
    return parts[0] if len(parts) == 1 else parts or None


def error_text(result: CallToolResult) -> str:
    """Return the texts of a failed call; if there are none, its structured content or the other parts as JSON; else nothing."""
    parts = [_part(part) for part in _content(result)]
    if texts := [part for part in parts if isinstance(part, str) and part]:
        return "\n".join(texts)
    rest = result.get("structuredContent")
    rest = [part for part in parts if part != ""] if rest is None else rest
    return json.dumps(rest, ensure_ascii=False) if rest not in (None, []) else ""


def _content(result: CallToolResult) -> list[JsonValue]:
    content = result.get("content")
    return content if isinstance(content, list) else [] if content is None else [content]


def _part(part: JsonValue) -> JsonValue:
    """Return the text of a part; a picture or file without its data; a part of an unknown type as it is."""
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind), "data": str(data)}:
            return {"type": kind, "mimeType": cast("dict[str, JsonValue]", part).get("mimeType"), "bytes": _bytes(data)}
        case {"type": kind, "resource": dict(resource)}:
            about = {key: value for key, value in resource.items() if key != "blob"}
            return {"type": kind, **about, **({"bytes": _bytes(str(resource["blob"]))} if "blob" in resource else {})}
    return part


def _bytes(base64: str) -> int:
    """Return the number of bytes that a base64 text encodes."""
    return len(base64) * 3 // 4 - base64[-2:].count("=")


class ConnectionLost(StepError):
    """The connection was lost. If the request `was_sent`, the server may have executed it."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message, code="mcp_unavailable", retryable=True)
        self.was_sent = was_sent
