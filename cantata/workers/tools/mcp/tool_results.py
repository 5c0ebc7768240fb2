"""What a tool of an MCP server answered, as JSON for steps and as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from cantata.models.values import JsonValue

Answer = Mapping[str, JsonValue]
"""The result of a `tools/call`, as the protocol writes it."""


def output_of(answer: Answer) -> JsonValue:
    """The structured content if there is any, else the content: one part as it is, several as a list, none as null."""
    structured = answer.get("structuredContent")
    if structured is not None:
        return structured
    parts = [_part(part) for part in _content(answer)]
    return parts[0] if len(parts) == 1 else parts or None


def text_of(answer: Answer) -> str:
    """The texts of the content."""
    return "\n".join(str(part["text"]) for part in _content(answer) if part.get("type") == "text")


def _content(answer: Answer) -> list[dict[str, JsonValue]]:
    return cast("list[dict[str, JsonValue]]", answer.get("content") or [])


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
    """How many bytes a text in base64 stands for."""
    return len(base64) * 3 // 4 - base64[-2:].count("=")
