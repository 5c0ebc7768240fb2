"""Results of tools of MCP servers, as JSON for steps and as text for people; and the error of a lost connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from cantata.errors import StepError
from cantata.models.values import JsonValue

CallToolResult = Mapping[str, JsonValue]
"""The result of a `tools/call`, as the protocol writes it."""


def output_of(result: CallToolResult) -> JsonValue:
    """Return the structured content if there is any, else the content: one part as it is, several as a list, none as null."""
    structured = result.get("structuredContent")
    if structured is not None:
        return structured
    parts = [_part(part) for part in _content(result)]
    return parts[0] if len(parts) == 1 else parts or None


def text_of(result: CallToolResult) -> str:
    """Return the texts of the content."""
    return "\n".join(str(part["text"]) for part in _content(result) if part.get("type") == "text")


def _content(result: CallToolResult) -> list[dict[str, JsonValue]]:
    return cast("list[dict[str, JsonValue]]", result.get("content") or [])


def _part(part: dict[str, JsonValue]) -> JsonValue:
    match part:
        case {"type": "text", "text": text}:
            return text
        case {"type": kind, "data": str(data)}:
            return {"type": kind, "mimeType": part.get("mimeType"), "bytes": _bytes(data)}
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
