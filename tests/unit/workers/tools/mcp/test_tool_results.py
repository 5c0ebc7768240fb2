"""What tools of MCP servers answer, as steps see it; test_servers.py has real ones."""

from __future__ import annotations

import base64

import pytest

from cantata.values import JsonValue
from cantata_workers.tools.mcp.tool_results import error_text, output_of

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
            {
                "content": [
                    {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "image/png", "blob": PICTURE}}
                ]
            },
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


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({}, None),
        ({"content": None}, None),
        ({"content": [], "structuredContent": None, "isError": None}, None),
        ({"content": "a text"}, "a text"),
        ({"content": {"type": "text", "text": "alone"}}, "alone"),
        ({"content": said("one"), "_meta": {"a": 1}}, "one"),
        ({"content": [{"type": "text"}]}, {"type": "text"}),
        ({"content": [{"type": "audio", "data": 7}]}, {"type": "audio", "data": 7}),
        ({"content": ["plain", None, 7]}, ["plain", None, 7]),
        ({"content": [*said("one"), {"type": "dream", "of": "a"}]}, ["one", {"type": "dream", "of": "a"}]),
        ({"content": [], "structuredContent": [1, 2]}, [1, 2]),
    ],
)
def test_an_answer_of_another_shape_arrives_as_it_is(answer: dict[str, JsonValue], expected: JsonValue) -> None:
    assert output_of(answer) == expected


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            {"content": [*said("one"), {"type": "image", "data": PICTURE, "mimeType": "image/png"}, *said("two")]},
            "one\ntwo",
        ),
        ({"structuredContent": {"code": 7, "why": "größe"}}, '{"code": 7, "why": "größe"}'),
        ({"structuredContent": {"code": 7}, "content": []}, '{"code": 7}'),
        ({"structuredContent": {"code": 7}, "content": None}, '{"code": 7}'),
        ({"structuredContent": {"code": 7}, "content": said("")}, '{"code": 7}'),
        ({"structuredContent": {"code": 7}, "content": said("no luck")}, "no luck"),
        (
            {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]},
            '[{"type": "image", "mimeType": "image/png", "bytes": 3}]',
        ),
        ({"content": said("")}, ""),
        ({"content": []}, ""),
        ({}, ""),
    ],
)
def test_a_failure_says_what_there_is(answer: dict[str, JsonValue], message: str) -> None:
    assert error_text(answer) == message
