"""Reasoning of models: parted from answers, recorded, and sent back to the provider that it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.values import JsonValue
from cantata_workers.models.dialects.call_parsing import ParsedCall
from cantata_workers.models.dialects.conversation import ModelRound, ToolResult, conversation
from cantata_workers.models.dialects.reasoning import (
    KEY,
    Reasoning,
    ReasoningPieces,
    TagSplitter,
    may_think,
    origin_of,
    reasoning_of,
    sent_back,
    without_reasoning,
)

CALL = ParsedCall(id="c1", name="ping", arguments={})
BLOCK: JsonValue = {"type": "thinking", "thinking": "I should ping.", "signature": "SIG"}


def split(pieces: Sequence[str]) -> tuple[str, str]:
    """The reasoning and the answer in a content that comes in pieces."""
    tags = TagSplitter()
    answer = "".join(map(tags.add, pieces)) + tags.end()
    return tags.reasoning, answer


@pytest.mark.parametrize(
    ("content", "reasoning", "answer"),
    [
        ("<think>a plan</think>42", "a plan", "42"),
        ("\n <think>a plan</think>\n\n42\n", "a plan", "42\n"),
        ("<thinking>a <think> plan</thinking>42", "a <think> plan", "42"),
        ("<think>one</think><think>two</think>42", "onetwo", "42"),
        ("<think>never closed", "never closed", ""),
        ("<think></think>42", "", "42"),
        ("42 <think>a plan</think>", "", "42 <think>a plan</think>"),
        ("  42", "", "  42"),
        ("<thi", "", "<thi"),
        ("<b>bold</b>", "", "<b>bold</b>"),
        ("", "", ""),
    ],
)
def test_tags_at_the_beginning_of_a_content_are_reasoning(content: str, reasoning: str, answer: str) -> None:
    assert split([content]) == (reasoning, answer)
    assert split(list(content)) == (reasoning, answer)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "a", " ", "<", "\n"])).map("".join),
    st.lists(st.integers(0, 30)),
)
def test_a_content_is_split_alike_however_it_is_cut(content: str, cuts: list[int]) -> None:
    ends = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})

    assert split([content[first:last] for first, last in pairwise(ends)]) == split([content] if content else [])


@pytest.mark.parametrize(
    ("message", "fields", "text"),
    [
        ({"reasoning_content": "because"}, {"reasoning_content": "because"}, "because"),
        ({"thinking_blocks": [BLOCK]}, {"thinking_blocks": [BLOCK]}, "I should ping."),
        ({"reasoning_items": [{"id": "rs_1"}]}, {"reasoning_items": [{"id": "rs_1"}]}, ""),
        (
            {"provider_specific_fields": {"reasoning_details": [{"text": "hm"}], "refusal": None}},
            {"reasoning_details": [{"text": "hm"}]}, "hm",
        ),
        (
            {"provider_specific_fields": {"thought_signatures": ["s"], "citations": [1]}},
            {"provider_specific_fields": {"thought_signatures": ["s"]}}, "",
        ),
    ],
)  # fmt: skip
def test_what_a_provider_wants_back_is_kept(
    message: Mapping[str, JsonValue], fields: Mapping[str, JsonValue], text: str
) -> None:
    found = reasoning_of(message, "p", "p", tagged="", call_ids=[])

    assert found == Reasoning(provider="p", text=text, fields=dict(fields))


def test_a_reply_without_reasoning_has_none() -> None:
    assert (
        reasoning_of({"content": "hi", "provider_specific_fields": {"refusal": None}}, "p", "p", tagged="", call_ids=[])
        is None
    )
    assert reasoning_of(None, "p", "p", tagged="", call_ids=[]) is None


def test_reasoning_in_tags_is_for_people_only() -> None:
    assert reasoning_of({"content": "42"}, "p", "p", tagged=" a plan ", call_ids=[]) == Reasoning(
        provider="p", text="a plan"
    )


def test_the_fields_of_calls_go_back_with_them() -> None:
    extra: JsonValue = {"google": {"thought_signature": "s"}}
    own: dict[str, JsonValue] = {"provider_specific_fields": {"thought_signature": "t"}, "extra_content": extra}
    found = reasoning_of(
        {"tool_calls": [{"id": "x", "function": {"name": "ping"}, **own}]},
        "gemini",
        "gemini",
        tagged="",
        call_ids=["c1"],
    )

    sent, _ = conversation([], [ModelRound(calls=(CALL,), reasoning=found)], [[ToolResult("pong")]])
    (call,) = cast("list[dict[str, JsonValue]]", sent_back(sent, "gemini")["tool_calls"])

    assert {name: call[name] for name in own} == own
    assert call["id"] == "c1"


def test_only_the_provider_that_it_came_from_gets_it_back() -> None:
    thought = Reasoning(provider="anthropic", text="I should ping.", fields={"thinking_blocks": [BLOCK]})
    recorded = ModelRound(reply="let me see", calls=(CALL,), reasoning=thought)
    info: JsonValue = json.loads(json.dumps({"reasoning": thought.model_dump(mode="json", exclude_defaults=True)}))

    read = ModelRound.read(json.dumps(recorded.to_json()), info)  # type: ignore[arg-type]
    message = conversation([], [read], [[ToolResult("pong")]])[0]

    assert read == recorded
    assert "reasoning" not in json.dumps(recorded.to_json())  # workers of an older version read it
    assert sent_back(message, "anthropic")["thinking_blocks"] == [BLOCK]
    assert sent_back(message, "openai") == {name: value for name, value in message.items() if name != KEY}
    assert without_reasoning([message]) == [sent_back(message, "openai")]


def test_claude_is_not_asked_to_think_behind_the_calls_of_another_model() -> None:
    others: Sequence[Mapping[str, JsonValue]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [{"id": "c1"}]},
    ]

    assert not may_think(others, "anthropic")
    assert may_think(others, "openai")
    assert may_think([{**others[1], "thinking_blocks": [BLOCK]}], "anthropic")


def joined(*deltas: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """The reasoning fields of a message that comes in these deltas."""
    pieces = ReasoningPieces()
    for delta in deltas:
        pieces.add(delta)
    return {name: value for name, value in pieces.put_into({}).items() if value}


def piece(text: str, **more: JsonValue) -> JsonValue:
    return {"type": "thinking", "thinking": text, **more}


@pytest.mark.parametrize("last", ["I should ping.", ""])
def test_signed_thinking_comes_once_whether_its_whole_text_comes_again_with_the_signature_or_not(last: str) -> None:
    deltas = [
        {"thinking_blocks": [each]}
        for each in (piece("I should "), piece("ping."), piece(last, signature="SIG"), piece("So."))
    ]

    assert joined(*deltas) == {"thinking_blocks": [BLOCK, piece("So.")]}


def test_redacted_thinking_ends_no_block_and_keeps_its_place() -> None:
    sealed: JsonValue = {"type": "redacted_thinking", "data": "x"}
    deltas = [
        {"thinking_blocks": [each]}
        for each in (piece("a", signature="1"), sealed, piece("b"), piece("b", signature="2"))
    ]

    assert joined(*deltas) == {"thinking_blocks": [piece("a", signature="1"), sealed, piece("b", signature="2")]}


def test_pieces_of_details_are_joined_by_their_index_and_items_are_kept() -> None:
    text: dict[str, JsonValue] = {"type": "reasoning.text", "index": 0}
    sealed: JsonValue = {"type": "reasoning.encrypted", "data": "x", "index": 1}
    parts: list[JsonValue] = [
        {**text, "text": "I ", "signature": None},
        {**text, "text": "think."},
        {**text, "text": "", "signature": "SIG"},
        sealed,
    ]
    deltas: list[Mapping[str, JsonValue]] = [
        {"provider_specific_fields": {"reasoning_details": [part]}} for part in parts
    ]

    found = joined(
        *deltas, {"reasoning_items": [{"id": "rs_1"}]}, {"reasoning_content": "I "}, {"reasoning_content": "think."}
    )

    assert found == {
        "reasoning_content": "I think.",
        "reasoning_items": [{"id": "rs_1"}],
        "reasoning_details": [{**text, "text": "I think.", "signature": "SIG"}, sealed],
    }


@pytest.mark.parametrize("provider", ["groq", "cerebras", "mistral"])
def test_a_provider_that_refuses_its_reasoning_gets_none_of_it_back(provider: str) -> None:
    found = reasoning_of({"reasoning": "because"}, provider, "origin", tagged="", call_ids=[])

    assert found == Reasoning(provider="origin", text="because")


def test_thoughts_of_gemini_that_are_not_signed_are_no_blocks() -> None:
    found = reasoning_of({"thinking_blocks": [piece("hm"), BLOCK]}, "vertex_ai", "o", tagged="", call_ids=[])

    assert found is not None
    assert found.fields == {"thinking_blocks": [BLOCK]}


def test_the_origin_is_the_maker_of_the_model_at_one_address() -> None:
    here, key = "https://u:secret@host/v1/", "http://127.0.0.1:8000/v1"

    assert origin_of("anthropic", "anthropic/claude-a") == origin_of("anthropic", "anthropic/claude-b") == "anthropic"
    assert origin_of("bedrock", "bedrock/claude") != origin_of("bedrock", "bedrock/nova")
    assert origin_of("openai", "openai/r1", key) == "openai/r1 127.0.0.1:8000/v1"
    assert origin_of("anthropic", "anthropic/claude-a", here) == "anthropic host:/v1"
