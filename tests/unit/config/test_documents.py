"""YAML and JSON texts: what they mean, where each value stands, and what is refused."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.config.documents import Document, parse, parse_json
from cantata.config.source_map import KeyPath, find, path_text
from cantata.errors import ConfigError
from cantata.values import JsonValue

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
    max_leaves=12,
)


def faults_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return [str(fault) for fault in caught.value.faults]


# What a text means


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("2026-01-31", "2026-01-31"),
        ("2026-01-31T10:00:00Z", "2026-01-31T10:00:00Z"),
        ("1:30", "1:30"),
        ("010", "010"),
        ("0x1f", "0x1f"),
        ("1_000", "1_000"),
        ("+1", "+1"),
        (".5", ".5"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("=", "="),
        ("1.2.3", "1.2.3"),
        ("٣", "٣"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("-12", -12),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 1", "1"),
        ("! 1", "1"),
    ],
)
def test_only_what_json_would_take_for_a_number_or_a_constant_is_one(text: str, value: JsonValue) -> None:
    data = parse(f"key: {text}").data

    assert data == {"key": value}
    assert isinstance(data, dict)
    assert type(data["key"]) is type(value)


@given(JSON_VALUES)
def test_json_is_read_as_json(value: JsonValue) -> None:
    assert parse(json.dumps(value)).data == value
    assert parse(json.dumps(value, ensure_ascii=False, indent="\t")).data == value


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "\ufeff"])
def test_an_empty_text_is_null(text: str) -> None:
    assert parse(text).data is None


@pytest.mark.parametrize(
    "text",
    ["{a: [1, two]}", '{"a": [1, "two",],}', "{'a': [1, 'two']} # so", "\ufeffa: [1, two]", "a:\r\n- 1\r\n- two\r\n"],
)
def test_yaml_may_look_like_json(text: str) -> None:
    assert parse(text).data == {"a": [1, "two"]}


def test_an_anchor_stands_for_its_value() -> None:
    data = parse(
        "first: &it {a: 1, b: [2]}\nsecond: *it\nthird: {<<: *it, a: 3}\nfourth: {<<: [{c: 4}, *it], b: 5}\n"
    ).data

    assert data == {
        "first": {"a": 1, "b": [2]},
        "second": {"a": 1, "b": [2]},
        "third": {"a": 3, "b": [2]},
        "fourth": {"b": 5, "c": 4, "a": 1},
    }


def test_a_merge_key_in_quotes_is_a_key() -> None:
    assert parse('"<<": 1').data == {"<<": 1}


# Lines

YAML = """\
# a comment
agents:
  analyst:
    model: small
    instructions:
      - first
      - |
        second
        more
  critic: {model: small,
    system: None}
other: &it
  key: 1
again: *it
merged:
  <<: *it
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 2),
        (("agents",), 2),
        (("agents", "analyst", "model"), 4),
        (("agents", "analyst", "instructions"), 5),
        (("agents", "analyst", "instructions", 0), 6),
        (("agents", "analyst", "instructions", 1), 7),
        (("agents", "critic", "system"), 11),
        (("agents", "analyst", "missing"), 3),
        (("agents", "analyst", "model", "deeper", 3), 4),
        (("missing",), 2),
        (("again",), 14),
        (("again", "key"), 13),
        (("merged", "key"), 13),
    ],
)
def test_every_value_has_the_line_of_its_key(path: KeyPath, line: int) -> None:
    assert parse(YAML).line(path) == line


@pytest.mark.parametrize(
    ("path", "line"),
    [((), 2), (("nodes",), 3), (("nodes", 1), 5), (("nodes", 1, "b\n"), 7), (("nodes", 0, "a"), 4), (("end",), 9)],
)
def test_json_has_lines_too(path: KeyPath, line: int) -> None:
    text = '\n{\n\t"nodes": [\n\t{"a": "{[\\""},\n\t{\n\n\t"b\\n": 1}\n],\n"end": null}'

    assert parse(text).line(path) == line


@given(JSON_VALUES, st.sampled_from([None, 1]))
def test_the_lines_of_json_never_get_out_of_step(value: JsonValue, indent: int | None) -> None:
    text = json.dumps({"value": value, "last": 0}, indent=indent)

    assert parse(text).line(("last",)) == (1 if indent is None else text.count("\n"))


def test_data_without_a_text_have_no_lines() -> None:
    assert Document({"a": 1}).line(("a",)) is None


# Places


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ((), ""),
        (("agents", "analyst", "modle"), "agents.analyst.modle"),
        (("models", "openai/gpt-4o"), "models.openai/gpt-4o"),
        (("models", "v1.5 x"), "models.'v1.5 x'"),
        (("nodes", 1), "nodes[1] 'fetch'"),
        (("nodes", 1, "next_nod"), "nodes[1] 'fetch'.next_nod"),
        (("nodes", 0, "kind"), "nodes[0].kind"),
        (("nodes", 7), "nodes[7]"),
    ],
)
def test_a_place_is_told_as_people_write_it(path: KeyPath, words: str) -> None:
    assert path_text(path, {"nodes": [{"node_id": 3}, {"node_id": "fetch"}]}) == words


def test_values_are_found_by_the_pattern_of_their_path() -> None:
    data: JsonValue = {
        "agents": {"a": {"texts": ["x", "y"]}, "b": {}, "c": 1, "d": {"texts": "z"}},
        "others": {"a": {"texts": ["w"]}},
    }

    assert list(find(data, "agents.*.texts.*")) == [
        (("agents", "a", "texts", 0), "x"),
        (("agents", "a", "texts", 1), "y"),
    ]


# What is refused


def test_a_number_of_too_many_digits_is_told_shortened() -> None:
    assert faults_of(f'{{"a": {"9" * 5000}}}') == ["line 1: a: the number 99999999999999999999... is too large"]


def test_all_faults_are_told_together() -> None:
    assert len(faults_of("a: *x\nb: !y 1\n2: c\na: 1")) == 4


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: [1, 2\nb: 3", 2, "not YAML: .*flow sequence"),
        ("a: 1\n  b: 2", 2, "not YAML: mapping values are not allowed"),
        ("a:\n\tb: 1", 2, "not tabs"),
        ('a: "x', 1, "not YAML: .*end of stream"),
        ('{"a": 1,\n "b" 2}', 2, "not JSON: Expecting ':' delimiter"),
        ('{"a": 1', 1, "not JSON: Expecting ',' delimiter"),
        ("{a: 1,\n b: [2}", 2, "not YAML"),
        ("a: \x01", None, "control character"),
        ('{"a": \x01}', 1, "not JSON"),
        ("a: \ud800", None, "does not allow"),
    ],
)
def test_a_syntax_error_tells_its_line(text: str, line: int | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse(text)

    assert caught.value.faults[0].line == line


@pytest.mark.parametrize("text", ["{a: 1}", "{'a': 1}", '{"a": 1,}', '{"a": 010}', "a: 1", ""])
def test_where_json_is_wanted_yaml_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="line 1: this is not JSON") as caught:
        parse_json(text)

    assert caught.value.code == "no_json"
    assert parse_json('\ufeff{"a": [1]}').data == {"a": [1]}


def test_the_source_stands_before_each_fault() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("a: *x\nb: *y", source="team.yaml")

    assert [line.split(": line")[0] for line in str(caught.value).splitlines()] == ["team.yaml", "team.yaml"]


def test_aliases_cannot_blow_up_a_document() -> None:
    lines = [
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)),
    ]

    (fault,) = faults_of("\n".join(lines))

    assert "more than 1,000,000 values" in fault


def test_aliases_of_long_texts_count_as_what_they_stand_for() -> None:
    text = f"a: &a {'x' * 1_000_000}\nb: [{', '.join(['*a'] * 1000)}]\n"

    with pytest.raises(ConfigError, match="more than 1,000,000 values"):
        parse(text)


@pytest.mark.parametrize("value", ["[]", "{}", "1", '""'])
def test_json_of_very_many_values_is_refused_before_they_are_made(value: str) -> None:
    with pytest.raises(ConfigError, match="more than 1,000,000 values"):
        parse_json(f"[{','.join([value] * 1_000_002)}]")


def test_commas_and_brackets_in_a_text_of_json_are_no_values() -> None:
    text = ',[{"\\' * 500_000

    assert parse_json(json.dumps({"a": text})).data == {"a": text}


def test_aliases_cannot_nest_deeper_than_brackets_may() -> None:
    (fault,) = faults_of("\n".join(["a0: &a0 []", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 200))]))

    assert "nested" in fault


@given(st.text(alphabet="{}[]:,-#&*!|>'\"%@`?~ \n\tab01<", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ConfigError):
        document = parse(text)

        assert json.dumps(document.data)
        assert document.line(("nowhere",))
