"""What tools of MCP servers answer, as steps see it; test_servers.py has real ones."""

from __future__ import annotations

import base64

import pytest

from cantata.models.values import JsonValue
from cantata.workers.tools.mcp.tool_results import output_of, text_of

PICTURE = base64.b64encode(b"1234567").decode()


def said(*texts: str) -> list[JsonValue]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"content": said("one")}, "one"),
        ({"content": said("one", "two")}, ["one", "two"]),
        ({"content": []}, None),
        ({"content": said('{"a": 1}'), "structuredContent": {"a": 1}}, {"a": 1}),
        ({"content": said("none"), "structuredContent": {}}, {}),
        (
            {"content": [{"type": "image", "data": PICTURE, "mimeType": "image/png"}]},
            {"type": "image", "mimeType": "image/png", "bytes": 7},
        ),
        (
            {"content": [*said("see"), {"type": "audio", "data": "", "mimeType": "audio/wav"}]},
            ["see", {"type": "audio", "mimeType": "audio/wav", "bytes": 0}],
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "file:///a", "mimeType": "image/png", "blob": PICTURE}}]},
            {"type": "resource", "uri": "file:///a", "mimeType": "image/png", "bytes": 7},
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "all of it"}}]},
            {"type": "resource", "uri": "file:///a", "text": "all of it"},
        ),
        (
            {"content": [{"type": "resource_link", "uri": "file:///a", "name": "a"}]},
            {"type": "resource_link", "uri": "file:///a", "name": "a"},
        ),
    ],
)
def test_an_answer_is_its_structure_or_its_parts_without_what_only_a_machine_reads(
    answer: dict[str, JsonValue], expected: JsonValue
) -> None:
    assert output_of(answer) == expected


def test_the_text_of_an_answer_leaves_out_what_is_none() -> None:
    assert text_of({"content": [*said("one"), {"type": "image", "data": PICTURE, "mimeType": "image/png"}, *said("two")]}) == "one\ntwo"
    assert text_of({"content": []}) == ""
