"""A conversation is rebuilt so that every provider takes it."""

from __future__ import annotations

import json
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.values import Usage
from cantata_workers.models.dialects.call_parsing import ParsedCall
from cantata_workers.models.dialects.conversation import (
    ROUNDS_EXHAUSTED,
    HistoryMode,
    Message,
    ModelRound,
    ToolResult,
    agentic_result,
    conversation,
    exchange,
)

BASE: list[Message] = [{"role": "system", "content": "Be."}, {"role": "user", "content": "Go."}]
ADD = ParsedCall(id="c1", name="add", arguments={"a": 1, "ä": "é"})
BAD = ParsedCall(id="c2", name="unknown_function", fault="The call names no tool.")
SAY = ParsedCall(id="call_3", name="files.read", arguments={}, dialect="json")
SPOKEN = '{"response": "I read", "mcp": {"tool": "files", "method": "read"}}'


def test_native_calls_are_answered_under_their_ids_in_order() -> None:
    messages = exchange(ModelRound(reply="I add", calls=(ADD, BAD)), [ToolResult({"sum": [1, None]}), ToolResult()])

    assert messages == [
        {
            "role": "assistant",
            "content": "I add",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"ä":"é"}'}},
                {"id": "c2", "type": "function", "function": {"name": "unknown_function", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "add", "content": '{"sum":[1,null]}'},
        {
            "role": "tool",
            "tool_call_id": "c2",
            "name": "unknown_function",
            "content": '{"error":"The call names no tool."}',
        },
    ]


def test_a_text_result_of_a_native_call_is_sent_as_it_is() -> None:
    assert exchange(ModelRound(calls=(ADD,)), [ToolResult("five\n")])[1]["content"] == "five\n"


def test_a_call_in_json_is_answered_by_the_user() -> None:
    messages = exchange(ModelRound(reply=SPOKEN, calls=(SAY,)), [ToolResult({"text": "x"})])

    assert messages == [
        {"role": "assistant", "content": SPOKEN},
        {"role": "user", "content": 'I read\n\nTool result: {"text":"x"}'},
    ]


def test_several_calls_in_json_are_answered_with_their_names() -> None:
    calls = (SAY, SAY.model_copy(update={"name": "files.drop"}))

    reply = '{"mcp": [{"tool": "files", "method": "read"}, {"tool": "files", "method": "drop"}]}'

    messages = exchange(ModelRound(reply=reply, calls=calls), [ToolResult("x"), ToolResult(error="denied")])

    assert messages[1]["content"] == 'Tool result (files.read): "x"\n\nTool error (files.drop): denied'


def test_both_dialects_mix_in_one_reply() -> None:
    messages = exchange(ModelRound(reply=SPOKEN, calls=(SAY, ADD)), [ToolResult(error="gone"), ToolResult(5)])

    assert [message["role"] for message in messages] == ["assistant", "tool", "user"]
    assert messages[0]["content"] == SPOKEN
    assert messages[1]["content"] == "5"
    assert messages[2]["content"] == "I read\n\nTool error: gone"


@pytest.mark.parametrize("call", [ADD, SAY])
@pytest.mark.parametrize("answer", [ToolResult("x" * 30_000), ToolResult(error="x" * 30_000)])
def test_what_is_too_long_is_cut_and_says_how_long_it_is(call: ParsedCall, answer: ToolResult) -> None:
    content = str(exchange(ModelRound(reply=SPOKEN, calls=(call,)), [answer])[-1]["content"])

    assert "[cut here: these are the first 20,000 of 30,00" in content
    assert len(content) < 20_200


def test_an_answer_for_each_call_is_needed() -> None:
    with pytest.raises(ValueError, match="zip"):
        exchange(ModelRound(calls=(ADD,)), [])


ROUNDS = (
    ModelRound(reply="I add", calls=(ADD,), note="n1"),
    ModelRound(reply="hm", note="n2"),
    ModelRound(reply=SPOKEN, calls=(SAY,)),
    ModelRound(reply=" ", note="n4"),
)
ANSWERS: tuple[list[ToolResult], ...] = ([ToolResult(1)], [], [ToolResult(2)], [])


@pytest.mark.parametrize(
    ("mode", "texts"),
    [
        ("minimal", ["I add", "1", SPOKEN, "I read\n\nTool result: 2", "n4"]),
        ("progressive", ["I add", "1", SPOKEN, "I read\n\nTool result: 2", "n4"]),
        ("kitchen_sink", ["I add", "1", "n1", "hm", "n2", SPOKEN, "I read\n\nTool result: 2", "n4"]),
    ],
)
def test_the_mode_selects_what_is_sent_again(mode: HistoryMode, texts: list[str | None]) -> None:
    messages = conversation(BASE, ROUNDS, ANSWERS, mode=mode)

    assert messages[:2] == BASE
    assert [message["content"] for message in messages[2:]] == texts


def test_the_last_reply_and_its_note_are_always_sent() -> None:
    messages = conversation(BASE, [ModelRound(reply="hm", note="wrong")], [[]])

    assert messages[2:] == [{"role": "assistant", "content": "hm"}, {"role": "user", "content": "wrong"}]


def test_notes_say_what_is_over() -> None:
    assert "all 3 rounds" in ROUNDS_EXHAUSTED.format(3)


IDS = st.uuids().map(str)
OBJECTS = st.dictionaries(st.text(), st.integers() | st.text() | st.none(), max_size=3)
CALLS = st.builds(
    ParsedCall,
    id=IDS,
    name=st.text(min_size=1),
    arguments=st.none() | OBJECTS,
    fault=st.sampled_from(["", "bad"]),
    dialect=st.sampled_from(["native", "json"]),
    intent=st.text(),
)
ROUND = st.builds(
    ModelRound,
    reply=st.text(),
    calls=st.lists(CALLS, max_size=3).map(tuple),
    note=st.text(),
    ms=st.floats(0, 1e9),
    usage=st.builds(Usage, input_tokens=st.integers(0, 99), cost_usd=st.none() | st.floats(0, 9)),
)


@given(ROUND)
def test_a_round_comes_back_from_json_as_it_was(done: ModelRound) -> None:
    assert ModelRound.model_validate(json.loads(json.dumps(done.to_json()))) == done


@given(st.lists(ROUND, max_size=4), st.sampled_from(["minimal", "progressive", "kitchen_sink"]), st.data())
def test_each_native_call_is_answered_once_right_after_its_message(
    rounds: list[ModelRound], mode: HistoryMode, data: st.DataObject
) -> None:
    came = st.builds(ToolResult, OBJECTS, st.sampled_from(["", "failed"]))
    answers = [[data.draw(came) for _ in done.calls] for done in rounds]

    messages = conversation(BASE, rounds, answers, mode=mode)

    open_ids: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == open_ids.pop(0)
        else:
            assert not open_ids
            open_ids = [call["id"] for call in cast("list[dict[str, str]]", message.get("tool_calls", []))]
    assert not open_ids
    sent = [str(message["tool_call_id"]) for message in messages if message["role"] == "tool"]
    assert sent == [call.id for done in rounds for call in done.calls if call.dialect == "native"]


def test_a_result_counts_what_the_rounds_did() -> None:
    calls = (ParsedCall(id="1", name="add", arguments={"a": 1}), ParsedCall(id="2", name="nope", fault="not there"))
    rounds = [
        ModelRound(calls=calls, ms=10.5, usage=Usage(input_tokens=5, output_tokens=2)),
        ModelRound(note="Say something.", ms=2, usage=Usage(input_tokens=8)),
        ModelRound(reply="2", ms=3),
    ]

    result = agentic_result("2", rounds, [[ToolResult([1] * 20_000), ToolResult()], [], []], "minimal")

    steps = result.pop("steps")
    assert result == {
        "final_answer": "2",
        "total_steps": 3,
        "max_steps_reached": False,
        "objective_achieved": True,
        "total_tools_called": 2,
        "total_tokens_used": 15,
        "total_execution_time_ms": 15.5,
        "history_mode": "minimal",
        "errors": ["nope: not there"],
        "warnings": [],
    }
    assert isinstance(steps, list)
    first, second, third = steps
    assert isinstance(first, dict)
    assert isinstance(first["tool_calls"], list)
    assert "[cut here" in str(first["tool_calls"][0])
    assert first["tool_calls"][1] == {"name": "nope", "args": None, "error": "not there"}
    assert first["error"] == "nope: not there"
    assert second == {
        "step_number": 2,
        "tool_calls": [],
        "tokens_used": 8,
        "execution_time_ms": 2,
        "clarification_attempts": 1,
        "error": None,
    }
    assert isinstance(third, dict)
    assert third["clarification_attempts"] == 0


def test_a_step_that_ran_out_has_not_achieved_its_objective() -> None:
    result = agentic_result("so far", [], [], "progressive", max_steps_reached=True)

    assert result["max_steps_reached"]
    assert not result["objective_achieved"]


def test_a_small_result_stays_what_it_was() -> None:
    rounds = [ModelRound(calls=(ParsedCall(id="1", name="add", arguments={}),))]

    result = agentic_result("x", rounds, [[ToolResult({"sum": 3})]], "minimal")

    assert result["steps"][0]["tool_calls"] == [{"name": "add", "args": {}, "result": {"sum": 3}}]  # type: ignore[index,call-overload]
