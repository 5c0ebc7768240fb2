"""Objects are found in what models write, and prose is left alone."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.flows.expressions import json_repair
from cantata.values import JsonValue

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        (" \n{} ", {}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('```\n{"a": "```x```"}```\n', {"a": "```x```"}),
        ('{"a": [1, 2,], "b": {"c": null,},}', {"a": [1, 2], "b": {"c": None}}),
        ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}),
        ('{"a": "one\ntwo",}', {"a": "one\ntwo"}),
        ("{'a': 'b', 'c': True, 'd': None}", {"a": "b", "c": True, "d": None}),
        ("{'a': 'it's here'}", {"a": "it's here"}),
        ('{"a": "he said "hi" to {x}", "b": null}', {"a": 'he said "hi" to {x}', "b": None}),
        ("{“a”: “b”}", {"a": "b"}),
        ('{a: 1, "b": 2}', {"a": 1, "b": 2}),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
        ('{"a": {"b": 1}', {"a": {"b": 1}}),
        ('{"a": "b"', {"a": "b"}),
        ('{"a": {"b": 1}}}', {"a": {"b": 1}}),
        ('```json\n{"a": "b", "c": 1\n```', {"a": "b", "c": 1}),
        ('```json\n{"a": "b", "c": true\n```', {"a": "b", "c": True}),
        ('{"a": "{\\"b\\": 1}",}', {"a": '{"b": 1}'}),
    ],
)
def test_an_object_that_is_almost_json_is_mended(text: str, value: JsonValue) -> None:
    assert json_repair.only_object(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello.",
        "{name} is put there",
        "Write {name}, then [x], and {1, 2, 3}: nice",
        "In C, write if (x) { return y; } please.",
        "{",
        "{}{",
        '{"a": "b", "c',
        '{"a": {"b": 1, "c": "d',
        '{"a": 1, "b": 2',
        '{"a": 1, "b": 2,',
        '{"a": "b", // no JSON\n "c": {"d": 1}\n}',
        '{"a": [{"b": {"c": 1}',
        '{"a": {"b": "c"',
        '{"a": "if (x) { y } else',
        '[{"a": 1}]',
        '"{}"',
        "12",
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        '{"a"}',
        'Here: {"a": 1}',
        '{"a": 1} is it',
        '{"a": 1}\n{"b": 2}',
        '{"a": ' * 1000,
        '{"a": ' * 400 + "1" + "}" * 400,
        "[" * 100_000,
    ],
)
def test_what_is_no_object_or_breaks_off_is_none(text: str) -> None:
    assert json_repair.only_object(text) is None


REPLY = '{"response": "Let me look", "mcp": {"tool": "fs", "params": {"path": "a \\"x\\" {b}", "n": [1, true]}}}'


@pytest.mark.parametrize("before", ["", "```json\n", "I will look. "])
def test_wherever_a_reply_breaks_off_it_is_truncated_or_only_its_last_brace_is_missing(before: str) -> None:
    for end in range(len('{"response":'), len(REPLY)):
        text = before + REPLY[:end]

        found = [each.value for each in json_repair.objects_in(text)]

        assert json_repair.is_truncated(text, ("response",)) is not bool(found)
        assert found in ([], [{"response": "Let me look"}], [json.loads(REPLY)])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{name} is put there",
        '{"a"} is a set',
        'In C {"a": x}',
        'Such as {"a": "b',
        '{"a": 1, ...}',
        '["{\\"a',
        REPLY,
        f"{REPLY}{{",
    ],
)
def test_a_text_with_a_brace_is_no_truncated_object(text: str) -> None:
    assert not json_repair.is_truncated(text, ("response",))


@pytest.mark.parametrize(
    "text",
    [
        '{\n "title": "x", // the title\n "n": 1\n}',
        '```json\n{"title": "x" /* the title */, "n": 1}\n```',
        '{"n": "a", b": 2}',
    ],
)
def test_an_object_with_its_last_brace_is_not_truncated_although_it_cannot_be_read(text: str) -> None:
    assert not json_repair.is_truncated(text, ())
    assert list(json_repair.objects_in(text)) == []


def test_after_a_comma_at_the_end_of_the_text_more_was_to_come() -> None:
    assert json_repair.is_truncated('{"title": "x", "n": 12,', ())
    assert json_repair.only_object('```\n{"title": "x", "n": 12,\n```') == {"title": "x", "n": 12}


def test_in_an_incomplete_text_a_missing_last_brace_is_not_added() -> None:
    text = '{"title": "x", "body": "the first part"'

    assert json_repair.only_object(text) == {"title": "x", "body": "the first part"}
    assert list(json_repair.objects_in(text, is_incomplete=True)) == []
    assert json_repair.is_truncated(text, (), is_incomplete=True)
    assert not json_repair.is_truncated(text + "}", (), is_incomplete=True)


def test_objects_are_found_among_words_in_their_order() -> None:
    text = 'First {"a": {"b": 1}}, see {x}; then\n```json\n{"c": [1,],}\n```\nand {d: 2}.'

    assert [each.value for each in json_repair.objects_in(text)] == [{"a": {"b": 1}}, {"c": [1]}, {"d": 2}]
    assert not any(each.is_whole_text for each in json_repair.objects_in(text))


def test_braces_that_are_no_object_hide_none_behind_them() -> None:
    text = 'The set {"a", "b"}, {x: y} and {"c": d} are none. {"e": 1}'

    assert [each.value for each in json_repair.objects_in(text)] == [{"e": 1}]


def test_texts_come_out_of_a_mended_object_as_they_were() -> None:
    content = "def f():\n\treturn {'a': \"b\"} # \f \\n 😀\n"

    assert json_repair.only_object(json.dumps({"content": content})[:-1] + ",}") == {"content": content}
    assert json_repair.only_object('{"path": "C:\\dir", "pattern": "\\d+\\u00"}') == {
        "path": "C:\\dir",
        "pattern": "\\d+\\u00",
    }


def test_nothing_in_an_object_that_breaks_off_is_found() -> None:
    assert list(json_repair.objects_in('{"mcp": [{"tool": "a"}, {"tool": "b", "par')) == []


def test_nothing_in_a_list_is_found() -> None:
    assert list(json_repair.objects_in('[{"mcp": {"tool": "a"}}]')) == []


@given(OBJECTS)
def test_json_is_read_as_it_is_however_it_is_wrapped(value: dict[str, JsonValue]) -> None:
    text = json.dumps(value)

    assert json_repair.only_object(text) == value
    assert json_repair.only_object(f"```json\n{text}\n```") == value
    assert [each.value for each in json_repair.objects_in(f"Here it is: {text} Done.")] == ([value])


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), JSON, min_size=1, max_size=4))
def test_a_trailing_comma_changes_nothing(value: dict[str, JsonValue]) -> None:
    assert json_repair.only_object(json.dumps(value)[:-1] + ",}") == value


@given(
    st.text()
    | st.text(alphabet="{}[]\"':,\\ \n`ab1“/#")
    | st.builds(lambda value, cut: json.dumps(value)[:cut], OBJECTS, st.integers())
)
def test_no_text_makes_it_raise_and_what_is_found_is_json(text: str) -> None:
    for found in json_repair.objects_in(text):
        assert json_repair.is_object(found.value)


UNITS = (
    "{", '{"a":', '{"a":1}', "{a:1}", '{"a":x} ', '\\"', '"', " ", "'", "`", '"x', "}", "{ ", '{"a": "b', "{a:[ ", '" “', "\" '", '": ',
)  # fmt: skip


@pytest.mark.parametrize(
    "head", ["", '{"a": ', '{"a": "', "{a: '", '{"a": 1}', '{"a": "b"', '{"a": "b" c}', '{"a": ["b"', '{"', '{"a": 1']
)
def test_the_time_grows_with_the_length(head: str) -> None:
    seconds = {}
    for unit in UNITS:
        began = time.process_time()
        list(json_repair.objects_in(head + unit * (40_000 // len(unit)) + " end"))
        seconds[unit] = time.process_time() - began

    assert {unit: taken for unit, taken in seconds.items() if taken >= 4} == {}


def test_a_text_made_of_beginnings_is_given_up_soon() -> None:
    begun = time.perf_counter()
    list(json_repair.objects_in('{"a":1' * 150_000))
    assert time.perf_counter() - begun < 20  # seconds, on a busy machine; it was minutes
