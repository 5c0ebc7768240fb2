"""What models answer, in every shape that tool calls come in, and the names of tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cantata.flows.provider_schemas import MAX_NAME_CHARS
from cantata.values import ToolCallRequest
from cantata_workers.models.llm.model_replies import ReplyBuilder
from cantata_workers.models.llm.openai_messages import ToolNames

NO_NAMES = ToolNames.of([])


class Dumps:
    """Tells what it has by `model_dump` only."""

    def __init__(self, dumped: object) -> None:
        self._dumped = dumped

    def model_dump(self) -> object:
        return self._dumped


def calls_of(
    calls: Sequence[object], *, names: ToolNames = NO_NAMES, taken: Sequence[str] = ()
) -> tuple[ToolCallRequest, ...]:
    builder = ReplyBuilder()
    builder.set_response({"choices": [{"message": {"tool_calls": list(calls)}}]})
    return builder.tool_calls(names, taken)


@pytest.mark.parametrize(
    "call",
    [
        {"id": "x", "function": {"name": "add", "arguments": '{"a": 1}'}},
        SimpleNamespace(id="x", function=SimpleNamespace(name="add", arguments='{"a": 1}')),
        SimpleNamespace(id="x", function={"name": "add", "arguments": '{"a": 1}'}),
        {"id": "x", "function": SimpleNamespace(name="add", arguments='{"a": 1}')},
        Dumps({"id": "x", "function": {"name": "add", "arguments": '{"a": 1}'}}),
        {"id": "x", "function": {"name": "add", "arguments": {"a": 1}}},
    ],
)
def test_a_call_is_read_from_a_dict_an_object_a_mixture_and_a_model(call: object) -> None:
    assert calls_of([call]) == (ToolCallRequest(id="x", name="add", arguments='{"a": 1}'),)


@pytest.mark.parametrize(
    "call",
    [{}, {"function": None}, {"function": {"name": None}}, {"name": "add"}, "add", SimpleNamespace(), Dumps(None)],
)
def test_a_call_that_names_no_function_has_an_empty_name(call: object) -> None:
    assert calls_of([call]) == (ToolCallRequest(id="call_0", name="", arguments="{}"),)


def test_ids_that_are_missing_or_taken_are_counted_on() -> None:
    calls = [{"id": each, "function": {"name": "add"}} for each in (None, "x", "x", "old", "call_4")]

    ids = [call.id for call in calls_of(calls, taken=["old", "call_3"])]

    assert ids == ["call_2", "x", "call_4", "call_5", "call_6"]
    assert ids == [call.id for call in calls_of(calls, taken=["old", "call_3"])]


def test_the_signature_that_litellm_writes_behind_an_id_is_no_part_of_it() -> None:
    calls = [{"id": f"call_{each}__thought__{'c2lnbmVk' * 50}", "function": {"name": "add"}} for each in ("a", "b")]

    assert [call.id for call in calls_of(calls)] == [
        "call_a",
        "call_b",
    ]  # other providers get the id, and OpenAI takes 40 characters


def test_an_answer_without_choices_is_empty() -> None:
    builder = ReplyBuilder()
    builder.set_response({"choices": []})

    assert (builder.text, builder.finish_reason, builder.calls) == ("", "no choices", [])


def test_calls_in_pieces_are_put_together_by_index() -> None:
    pieces: list[tuple[int, dict[str, Any]]] = [
        (0, {"id": "a", "function": {"name": "add", "arguments": ""}}),
        (1, {"id": "b", "function": {"name": "sub", "arguments": '{"x"'}}),
        (0, {"function": {"arguments": '{"a": '}}),
        (1, {"id": "b", "function": {"name": "sub", "arguments": ": 2}"}}),  # some tell id and name with each piece
        (0, {"function": {"arguments": "1}"}}),
    ]
    builder = ReplyBuilder()
    for index, call in pieces:
        builder.add_chunk(piece(index, call))

    assert builder.tool_calls(NO_NAMES, ()) == (
        ToolCallRequest(id="a", name="add", arguments='{"a": 1}'),
        ToolCallRequest(id="b", name="sub", arguments='{"x": 2}'),
    )


def test_calls_that_all_have_the_index_0_are_distinguished_by_their_ids() -> None:
    builder = ReplyBuilder()
    for call_id in ("a", "b"):
        builder.add_chunk(piece(0, {"id": call_id, "function": {"name": "add", "arguments": "{"}}))
        builder.add_chunk(piece(0, {"function": {"arguments": "}"}}))

    assert [(call.id, call.arguments) for call in builder.tool_calls(NO_NAMES, ())] == [("a", "{}"), ("b", "{}")]


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("add", "add"),
        ("files.read", "files__read"),
        ("größe", "gr__e"),
        ("2fast", "_2fast"),
        ("-x", "_-x"),
        ("", "unknown_function"),
    ],
)
def test_a_name_becomes_one_that_providers_take(name: str, wire: str) -> None:
    names = ToolNames.of([name])

    assert names.wire(name) == wire
    assert names.own(wire) == name


def test_names_that_would_become_alike_stay_apart_and_long_ones_are_cut() -> None:
    several = ["a.b", "a__b", "a_.b", "x" * 80, "x" * 81, "a b", "a:b"]

    names = ToolNames.of(several)

    wires = [names.wire(name) for name in several]
    assert len(set(wires)) == len(several)
    assert max(map(len, wires)) <= MAX_NAME_CHARS
    assert wires[1] == "a__b"
    assert [names.own(wire) for wire in wires] == several
    assert ToolNames.of(several[::-1]).wire("a__b") == "a__b"


def piece(index: int, call: Mapping[str, Any]) -> dict[str, Any]:
    return {"choices": [{"delta": {"tool_calls": [{"index": index, **call}]}}]}


def test_a_character_whose_halves_come_in_two_pieces_is_joined() -> None:
    builder = ReplyBuilder()

    pieces = [builder.add_chunk({"choices": [{"delta": {"content": piece}}]}) for piece in ("a\ud83d", "\ude00b")]

    assert pieces == ["a", "😀b"]
    assert builder.text == "a😀b"


def test_half_a_character_is_replaced() -> None:
    builder = ReplyBuilder()

    builder.set_response(
        {
            "choices": [
                {
                    "message": {
                        "content": "a\ud83d.",
                        "tool_calls": [{"function": {"name": "add", "arguments": "\ude00"}}],
                    }
                }
            ]
        }
    )

    assert builder.text == "a\ufffd."
    assert builder.tool_calls(NO_NAMES, ())[0].arguments == "\ufffd"
