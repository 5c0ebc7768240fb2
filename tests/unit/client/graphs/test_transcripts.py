"""What was roles_and_texts between us and a model, put together from what is recorded."""

from __future__ import annotations

from cantata.client.graphs.page_views import MessageView
from cantata.client.graphs.transcripts import RecordedStep, calls_in, conversation_of, transcript, turns_of
from cantata.values import JsonValue

PROMPT: JsonValue = [
    {"role": "system", "text": "Be kind."},
    {"role": "user", "text": "Add 1 and 2", "cut": True, "omitted": 3},
]


def roles_and_texts(messages: list[MessageView]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


def test_a_reply_follows_its_prompt() -> None:
    messages = transcript([("a", RecordedStep("done", "hello", {"prompt": PROMPT}))], {})

    assert roles_and_texts(messages) == [("system", "Be kind."), ("user", "Add 1 and 2"), ("assistant", "hello")]
    assert (messages[1].cut, messages[1].omitted) == (True, 3)


def test_an_answer_that_is_json_is_told_as_text_even_if_it_looks_like_a_round() -> None:
    answers: list[JsonValue] = [{"reply": "yes", "calls": [], "usage": {}}, {"n": 1}, [1], None, 3]
    for answer in answers:
        (message,) = transcript([("a", RecordedStep("done", answer, {}))], {})

        assert (message.role, message.calls) == ("assistant", [])
        assert message.text.startswith(("{", "[", "null", "3"))


def test_rounds_of_tools_are_told_with_calls_results_and_notes() -> None:
    calls: list[JsonValue] = [
        {"id": "c1", "name": "add", "arguments": {"a": 1}}, {"id": "c2", "name": "nope", "arguments": None, "fault": "no such tool"},
        {"id": "c3", "name": "add", "arguments": {}}, {"id": "c4", "name": "add", "arguments": {}},
    ]  # fmt: skip
    first: JsonValue = {"reply": "let me see", "calls": calls, "note": "give your answer now", "usage": {}}
    answers = {
        "a/t0": RecordedStep("done", 3, {}), "a/t2": RecordedStep("failed", None, {"error": {"code": "x", "message": "broke"}}),
        "a/t3": RecordedStep("running", None, {}),
    }  # fmt: skip

    messages = transcript(
        [
            ("a", RecordedStep("done", first, {"prompt": PROMPT}, is_round=True)),
            ("a/r1", RecordedStep("done", "it is 3", {})),
        ],
        answers,
    )

    assert roles_and_texts(messages)[2:] == [
        ("assistant", "let me see"),
        ("tool", "3"),
        ("tool", "no such tool"),
        ("tool", "Error: broke"),
        ("user", "give your answer now"),
        ("assistant", "it is 3"),
    ]
    assert [(call.id, call.name, call.arguments) for call in messages[2].calls][:2] == [
        ("c1", "add", '{"a": 1}'),
        ("c2", "nope", "null"),
    ]
    assert [(m.call_id, m.name) for m in messages if m.role == "tool"] == [("c1", "add"), ("c2", "nope"), ("c3", "add")]


def test_a_turn_that_is_not_over_has_said_nothing_yet() -> None:
    assert transcript([("a", RecordedStep("running", None, {}))], {}) == []


def test_a_large_text_is_cut() -> None:
    (message,) = transcript([("a", RecordedStep("done", "x" * 30_000, {}))], {})

    assert (len(message.text), message.cut) == (20_000, True)


def test_the_turns_of_a_conversation_are_found_by_their_names() -> None:
    known = dict.fromkeys(("a", "a/t0", "a/r1", "a/r2", "a/r4"))

    assert conversation_of("a", {}) == ("a", None)
    assert conversation_of("a/r1", {"round": 1, "base": "a"}) == ("a", 1)
    assert turns_of("a", known) == ["a", "a/r1", "a/r2"]
    calls: JsonValue = {"calls": [{"id": "1", "name": "f"}, {"id": "2", "name": "g"}]}
    assert calls_in("a", RecordedStep("done", calls, {}, is_round=True)) == ["a/t0", "a/t1"]
    assert calls_in("a", RecordedStep("done", calls, {})) == []
