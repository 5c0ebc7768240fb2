"""How replies are read into prompt arguments, and the texts of what is wrong with them."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.errors import StepError
from cantata_workers.frontends.diskurs.replies import MAX_REPLY_CHARS, ReplyError, check_made, read_object, read_reply
from cantata_workers.frontends.diskurs.user_code.entities import (
    AccessMode,
    InputField,
    LockedField,
    OutputField,
    PerTurnField,
    PromptArgument,
    PromptValidationError,
    prompt_field,
)


class Colour(Enum):
    RED = "red"


@dataclass
class Link(PromptArgument):
    url: str
    note: str = "none"


@dataclass
class Arguments(PromptArgument):
    name: str = ""
    count: int = 0
    ratio: float = 0.0
    sure: bool = False
    maybe: str | None = None
    words: list[str] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    best: Link | None = None
    either: list[str] | str | None = None
    colour: Colour | None = None
    size: Literal["s", "m"] = "s"
    anything: Any = None
    given: InputField[str] = "given"
    locked: LockedField[str] = "locked"
    older: Annotated[str, prompt_field(mode=AccessMode.INPUT)] = "older"
    answer: OutputField[str] = ""
    fresh: PerTurnField[str] = ""


@dataclass
class Needy(PromptArgument):
    topic: str
    mood: str
    answer: str = ""


def refused(text: str, cls: type = Arguments) -> str:
    with pytest.raises(ReplyError) as caught:
        read_reply(text, cls)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Jo"}',
        '```json\n{"name": "Jo"}\n```',
        'Here it is:\n{"name": "Jo"}\nAnything else?',
        '{"name": "Jo",}',
        "{“name”: “Jo”}",
        '"{\\"name\\": \\"Jo\\"}"',
        json.dumps(json.dumps('{"name": "Jo"}')),
        '{“name”: "Jo",}',
    ],
)
def test_json_is_found_however_it_is_dressed(text: str) -> None:
    assert read_reply(text, Arguments) == {"name": "Jo"}


def test_raw_newlines_in_texts_stay() -> None:
    assert read_reply('{"name": "a\nb"}', Arguments) == {"name": "a\nb"}


def test_what_is_no_json_is_told_with_line_and_column() -> None:
    assert (
        refused("hello")
        == "Invalid JSON: Expecting value at line 1, column 1. Please ensure the response is valid JSON."
    )


def test_of_two_objects_none_is_chosen() -> None:
    fault = "Invalid JSON: Extra data at line 1, column 13. Please ensure the response is valid JSON."
    assert refused('{"name": ""}. My answer: {"name": "Ada"}') == fault


@pytest.mark.parametrize(
    "text",
    ['{"name": "Ada" "answer": "x"}', '{"name": "Ada" "x"}', "{'name': 'Ada'}", '{name: "Ada"}', '{"name": "Ada"'],
)
def test_what_would_have_to_be_guessed_is_a_fault(text: str) -> None:
    assert refused(text).startswith("Invalid JSON: ")


def test_positions_count_from_the_first_line_within_the_fence() -> None:
    assert refused('```json\n{"name": }\n```') == (
        "Invalid JSON: Expecting value at line 1, column 10. Please ensure the response is valid JSON."
    )


def test_repair_changes_nothing_within_texts() -> None:
    assert read_reply('Well: {"name": "a “b”,]", "answer": "x,}",}', Arguments) == {"name": "a “b”,]", "answer": "x,}"}


@pytest.mark.parametrize(
    "text", ["```" + " " * 200_000, '{"' + '\\"' * 200_000, "{" * 200_000 + "“" * 200_000, "{,}" * 200_000]
)
def test_a_reply_written_to_take_long_does_not(text: str) -> None:
    assert refused(text)


@pytest.mark.parametrize(
    ("text", "kind"), [("3", "int"), ("[1]", "list"), ("true", "bool"), ("null", "NoneType"), ("1.5", "float")]
)
def test_what_is_no_object_is_told_by_its_type(text: str, kind: str) -> None:
    assert refused(text) == f"Expected a JSON object, got {kind}."


def test_a_reply_is_not_too_long() -> None:
    assert refused(" " * (MAX_REPLY_CHARS + 1)) == "JSON response exceeds maximum size of 1000000 characters."


def test_json_within_json_has_an_end() -> None:
    text = '{"name": "Jo"}'
    for _ in range(5):
        text = json.dumps(text)
    assert refused(text) == "Maximum JSON nesting depth exceeded."


def test_a_reply_nested_without_end_is_told() -> None:
    assert refused('{"name": ' + "[" * 100_000) != ""


def test_fields_that_are_not_there_are_told() -> None:
    filled = "name, count, ratio, sure, maybe, words, links, best, either, colour, size, anything, answer, fresh"
    assert (
        refused('{"foo": 1, "bar": 2}')
        == f"Extra fields provided: bar, foo. Please remove them. Valid fields are: {filled}."
    )


def test_fields_that_are_missing_are_told() -> None:
    assert (
        refused('{"answer": "x"}', Needy)
        == "Missing required fields: mood, topic. Valid fields are: topic, mood, answer."
    )
    assert refused('{"topic": "x", "foo": 1}', Needy) == (
        "Missing required fields: mood. Extra fields provided: foo. Please remove them. Valid fields are: topic, mood, answer."
    )


@dataclass
class Page(PromptArgument):
    url: str
    note: str = "none"

    def __post_init__(self) -> None:
        if self.url == "odd":
            raise PromptValidationError("url is odd")
        if not self.url.startswith("http"):
            raise ValueError("url begins with http")
        if self.note == "bug":
            raise KeyError(self.note)


@dataclass
class Pages(PromptArgument):
    pages: list[Page] = field(default_factory=list)


def test_what_a_class_says_against_a_reply_is_told_to_the_model() -> None:
    assert read_reply('{"pages": [{"url": "http://a"}]}', Pages) == {"pages": [{"url": "http://a", "note": "none"}]}
    assert refused('{"pages": [{"url": "ftp"}]}', Pages) == "url begins with http"
    assert refused('{"pages": [{"url": "odd"}]}', Pages) == "url is odd"
    with pytest.raises(ReplyError, match="url begins with http"):
        check_made(Page, {"url": "ftp"})
    check_made(Page, {"url": "http://a"})


def test_what_a_class_does_wrong_itself_is_no_fault_of_the_reply() -> None:
    with pytest.raises(StepError, match="Page cannot be made: KeyError"):
        check_made(Page, {"url": "http://a", "note": "bug"})


def test_what_is_given_to_the_agent_is_no_reply() -> None:
    assert read_reply('{"given": "a", "locked": "b", "older": "c", "name": "Jo"}', Arguments) == {"name": "Jo"}
    assert read_reply('{"name": "Jo"}', Arguments, locked=["name"]) == {}


@pytest.mark.parametrize(
    ("text", "value"), [('"true"', True), ('" YES "', True), ('"1"', True), ('"no"', False), ("1", True), ("0", False)]
)
def test_words_are_read_as_booleans(text: str, value: bool) -> None:
    assert read_reply(f'{{"sure": {text}}}', Arguments) == {"sure": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"count": "3"}', {"count": 3}),
        ('{"ratio": "0.5"}', {"ratio": 0.5}),
        ('{"name": 7}', {"name": "7"}),
        ('{"maybe": null}', {"maybe": None}),
        ('{"words": [1, "b"]}', {"words": ["1", "b"]}),
        ('{"links": [{"url": "u"}]}', {"links": [{"url": "u", "note": "none"}]}),
        ('{"best": {"url": "u", "note": "n"}}', {"best": {"url": "u", "note": "n"}}),
        ('{"either": "one"}', {"either": "one"}),
        ('{"either": ["one"]}', {"either": ["one"]}),
        ('{"colour": "red"}', {"colour": "red"}),
        ('{"size": "m"}', {"size": "m"}),
        ('{"anything": {"a": [1]}}', {"anything": {"a": [1]}}),
    ],
)
def test_values_become_what_their_fields_are(text: str, value: dict[str, Any]) -> None:
    assert read_reply(text, Arguments) == value


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"count": "many"}', "Type conversion failed for field: expected <class 'int'>, got <class 'str'> (many)"),
        ('{"words": "abc"}', "Type conversion failed for field: expected list[str], got <class 'str'> (abc)"),
        (
            '{"size": "xl"}',
            "Type conversion failed for field: expected typing.Literal['s', 'm'], got <class 'str'> (xl)",
        ),
        ('{"colour": "blue"}', "Type conversion failed for field: expected <enum 'Colour'>, got <class 'str'> (blue)"),
        ('{"links": [{"note": "n"}]}', "Missing required fields: url. Valid fields are: url, note."),
        ('{"links": ["u"]}', f"Type conversion failed for field: expected {Link}, got <class 'str'> (u)"),
    ],
)
def test_values_that_cannot_be_converted_are_told(text: str, fault: str) -> None:
    assert refused(text) == fault


def test_a_class_of_the_folder_is_told_by_its_own_name() -> None:
    url = type("Url", (Link,), {"__module__": "diskurs_folder_1a/agents/x/prompt.py"})
    assert refused('{"best": "u"}', make_dataclass("Found", [("best", url, None)])) == (
        "Type conversion failed for field: expected <class 'Url'>, got <class 'str'> (u)"
    )


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity", "1" * 5000])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    assert refused(f'{{"count": {number}}}').startswith("Invalid JSON: ")
    assert refused(f'{{"ratio": {number}}}').startswith("Invalid JSON: ")


def test_half_a_character_is_refused() -> None:
    assert refused('{"name": "\\ud800"}').startswith("Invalid JSON: ")


def test_an_empty_text_says_nothing_of_any_field() -> None:
    empty = {"count": "", "ratio": "", "sure": "", "words": "", "best": "", "colour": "", "size": ""}
    assert read_reply(json.dumps(empty), Arguments) == dict.fromkeys(empty)
    assert read_reply('{"name": ""}', Arguments) == {"name": ""}


@given(st.text())
def test_every_text_is_read_or_refused(text: str) -> None:
    with suppress(ReplyError):
        read_reply(text, Arguments)


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans() | st.none()))
def test_an_object_is_read_as_it_is(value: dict[str, Any]) -> None:
    assert read_object(json.dumps(value)) == value
    assert read_object(json.dumps(json.dumps(value))) == value
