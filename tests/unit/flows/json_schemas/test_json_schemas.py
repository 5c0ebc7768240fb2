"""JSON Schemas that others write: what they mean, that nothing is retrieved, and that nothing takes longer than it may."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry

from cantata.flows.json_schemas import Allowance, has_bounded_copies, keyword_faults, schema_faults, value_faults
from cantata.text.patterns import SearchTime
from cantata.values import JsonValue
from tests.examples import examples
from tests.waiting import at_best

MAX_S = 1.5  # processor time of one validation on a slow machine; 0.75 s is its bound
CATASTROPHE = "^(([a-z])+.)+[A-Z]([a-z])+$"
TRIES = "a" * 5000
TWICE: dict[str, Any] = {
    "$ref": "#/$defs/a",
    "$defs": {"a": {"allOf": [{"items": {"$ref": "#/$defs/a"}}, {"items": {"$ref": "#/$defs/a"}}]}},
}
"""A schema that evaluates each level of a list twice as often as the one above."""


def faults(schema: object) -> list[str]:
    return [str(fault) for fault in schema_faults(schema)]


def doubling(levels: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {"a0": {"type": "string"}}
    for level in range(levels):
        definitions[f"a{level + 1}"] = {"allOf": [{"$ref": f"#/$defs/a{level}"}, {"$ref": f"#/$defs/a{level}"}]}
    return {"$ref": f"#/$defs/a{levels}", "$defs": definitions}


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


# --- as jsonschema --------------------------------------------------------------------------------------------------

_KEYS = ("a", "b", "nx", "y1")
_VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.0, 1.0, 1.5, -2.5, 1e300, "", "a", "b", "ab", "xx", "9"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3),
    max_leaves=8,
)
_TYPES = st.sampled_from(["string", "number", "integer", "boolean", "object", "array", "null"])
_PATTERNS = st.sampled_from(["^a", "b$", "^n", "[0-9]", "^(a|ab)+$", "x{2}"])
_SMALL = st.integers(0, 3)


def _schemas(inner: Any) -> Any:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.booleans() | st.fixed_dictionaries(
        {},
        optional={
            "type": _TYPES | st.lists(_TYPES, min_size=1, max_size=2, unique=True),
            "enum": st.lists(_VALUES, max_size=3),
            "const": _VALUES,
            "multipleOf": st.sampled_from([1, 2, 0.5]),
            "minimum": st.integers(-2, 2),
            "exclusiveMaximum": st.sampled_from([0, 1.5]),
            "minLength": _SMALL,
            "maxLength": _SMALL,
            "pattern": _PATTERNS,
            "minItems": _SMALL,
            "maxItems": _SMALL,
            "uniqueItems": st.booleans(),
            "minProperties": _SMALL,
            "maxProperties": _SMALL,
            "required": st.lists(st.sampled_from(_KEYS), max_size=2, unique=True),
            "dependentRequired": st.dictionaries(
                st.sampled_from(_KEYS), st.lists(st.sampled_from(_KEYS), max_size=2, unique=True), max_size=2
            ),
            "properties": st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3),
            "patternProperties": st.dictionaries(_PATTERNS, inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "items": inner,
            "prefixItems": several,
            "contains": inner,
            "minContains": _SMALL,
            "maxContains": _SMALL,
            "allOf": several,
            "anyOf": several,
            "oneOf": several,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "dependentSchemas": st.dictionaries(st.sampled_from(_KEYS), inner, max_size=2),
            "$ref": st.sampled_from(["#/$defs/one", "#two"]),
            "title": st.just("a title"),
        },
    )


_SCHEMAS = st.recursive(st.booleans() | st.fixed_dictionaries({}, optional={"type": _TYPES}), _schemas, max_leaves=6)
_DEFINITIONS = {
    "one": {"type": ["string", "array"]},
    "two": {"$anchor": "two", "items": {"type": "integer"}, "maxLength": 1},
}


def _comparable(path: Iterable[str | int], message: str) -> tuple[tuple[str | int, ...], str]:
    """Return an error without what differs: long messages are cut, and jsonschema leaves out the last part of a path to `false`."""
    return () if message.startswith("False schema") else tuple(path), message if len(message) < 150 else ""


@examples(300)
@given(schema=_SCHEMAS, value=_VALUES)
def test_a_schema_finds_what_jsonschema_finds(schema: Any, value: JsonValue) -> None:
    whole = {**schema, "$defs": _DEFINITIONS} if isinstance(schema, dict) else schema
    expected = [
        _comparable(error.absolute_path, error.message)
        for error in Draft202012Validator(whole, registry=Registry()).iter_errors(value)
    ]

    assert schema_faults(whole) == []
    found = [_comparable(*fault) for fault in value_faults(value, whole, most=1000)]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


@examples(300)
@given(
    schema=_SCHEMAS,
    place=st.sampled_from(["type", "minLength", "properties", "items", "anyOf", "required", "pattern", "$ref"]),
    bad=_VALUES,
)
def test_a_schema_is_valid_where_the_metaschema_says_so(schema: Any, place: str, bad: JsonValue) -> None:
    whole = {"properties": {"x": schema, "y": {place: bad}}, "$defs": _DEFINITIONS}
    bad_reference = place == "$ref" and isinstance(bad, str) and bad != ""
    is_valid = Draft202012Validator(Draft202012Validator.META_SCHEMA).is_valid(whole)

    assert (not schema_faults(whole)) == (is_valid and not bad_reference)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (
            {
                "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
                "then": {"$ref": "#/$defs/b"},
                "unevaluatedProperties": False,
                "$defs": {"b": {"properties": {"b": {"type": "string"}}}},
            },
            {"a": 1, "b": "x"},
        ),
        ({"anyOf": [{"items": True}], "unevaluatedItems": False}, [1, 2]),
        ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}]),
        ({"pattern": r"^\p{Lu}"}, "École"),
    ],
)
def test_a_value_that_fits_its_schema_has_no_faults(schema: object, value: object) -> None:
    assert value_faults(value, schema) == []


def test_a_schema_may_refer_to_itself() -> None:
    tree = {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "inner": {"items": {"$ref": "#"}}},
        "required": ["value"],
    }

    assert value_faults({"value": 1, "inner": [{"value": 2, "inner": []}]}, tree) == []
    assert [str(each) for each in value_faults({"value": 1, "inner": [{"value": "x"}]}, tree)] == [
        "inner.0.value: 'x' is not of type 'integer'"
    ]


# --- nothing is retrieved -------------------------------------------------------------------------------------------

_ADDRESSES = (
    "http://127.0.0.1:9/x",
    "https://example.org/schema#/a",
    "file:///etc/passwd",
    "other.json",
    "//host/x",
    "http://[",
    "ftp://x/y",
)


@pytest.mark.parametrize("address", _ADDRESSES)
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
@pytest.mark.parametrize(
    "around", ["{}", '{"items": {}}', '{"$defs": {"x": {"anyOf": [true, {}]}}}', '{"$ref": "#/x", "x": {}}']
)
def test_a_reference_to_another_document_is_an_error_and_never_followed(
    address: str, keyword: str, around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("it connects"))
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("it opens a file"))
    schema = json.loads(around.replace("{}", json.dumps({keyword: address})))

    (fault,) = schema_faults(schema)
    (refused,) = value_faults([1], schema)

    assert fault.message.startswith(
        f"{address!r} is outside of the schema, and nothing is retrieved; put what it means under '$defs'"
    )
    assert fault.path[-1] == keyword
    assert refused.message.startswith(f"its schema cannot be used: {fault.place}: ")


def test_keywords_are_refused_wherever_a_schema_may_stand() -> None:
    places = (
        "items",
        "additionalProperties",
        "not",
        "if",
        "then",
        "else",
        "contains",
        "propertyNames",
        "unevaluatedItems",
        "contentSchema",
    )
    lists, maps = (
        ("allOf", "anyOf", "oneOf", "prefixItems"),
        ("properties", "patternProperties", "$defs", "dependentSchemas"),
    )
    allowed = {*places, *lists, *maps, "unevaluatedProperties", "type"}
    hidden = {"pattern": "x"}

    for place in (*places, "unevaluatedProperties"):
        assert [each.place for each in keyword_faults({"items": {place: hidden}}, allowed)] == [
            f"items.{place}.pattern"
        ]
    for place in lists:
        assert [each.place for each in keyword_faults({place: [True, hidden]}, allowed)] == [f"{place}.1.pattern"]
    for place in maps:
        assert [each.place for each in keyword_faults({place: {"x": hidden}}, allowed)] == [f"{place}.x.pattern"]
    assert keyword_faults({"properties": {"pattern": {"type": "string"}}}, allowed) == []


# --- nothing takes long ---------------------------------------------------------------------------------------------


def test_references_that_multiply_are_refused() -> None:
    assert schema_faults(doubling(8)) == []
    (fault,) = faults(doubling(13))  # 940 bytes
    assert "its references ask for more than 10,000 evaluations of one value" in fault


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (
            TWICE,
            nested(1, 60),
            "its validation takes more than 500,000 evaluations; make it smaller, or its schema simpler",
        ),
        (
            {"unevaluatedItems": False, "contains": {"$ref": "#/$defs/a"}, "$defs": TWICE["$defs"]},
            nested(1, 60),
            "more than 500,000 evaluations",
        ),
        (
            {"additionalProperties": {"pattern": CATASTROPHE}},
            {f"k{i}": TRIES for i in range(100)},
            "the search has 0.25 s",
        ),
        ({"items": {"pattern": CATASTROPHE}}, [TRIES] * 100, "the search has 0.25 s"),
        (
            {"patternProperties": {CATASTROPHE: True}, "additionalProperties": False},
            {TRIES: 1},
            "the search has 0.25 s",
        ),
        (
            {"patternProperties": {CATASTROPHE: True}, "unevaluatedProperties": False},
            {TRIES: 1},
            "the search has 0.25 s",
        ),
        ({"propertyNames": {"anyOf": [{"pattern": CATASTROPHE}] * 10}}, {TRIES: 1}, "the search has 0.25 s"),
        ({"uniqueItems": True}, [n * (2**61 - 1) for n in range(600_000)], "more than 500,000 evaluations"),
        ({"items": {"enum": [[n] for n in range(1000)]}}, [[-1]] * 100_000, "more than 500,000 evaluations"),
        ({"items": {"required": [f"k{n}" for n in range(5000)]}}, [{}] * 100_000, "is a required property"),
        (
            {"items": {"not": {"required": [f"k{n}" for n in range(5000)]}}},
            [{}] * 500_000,
            "more than 500,000 evaluations",
        ),
        ({"anyOf": [{"minLength": 10**9}] * 1000}, "x" * 10_000_000, "more than 500,000 evaluations"),
        ({"items": {"$ref": "#"}}, nested(1, 900), "nested too deeply to be validated"),
        ({"items": {}}, [0] * 3_000_000, "more than 500,000 evaluations"),
    ],
)
def test_a_value_takes_a_bounded_time(schema: object, value: object, message: str) -> None:
    def taken_s() -> float:
        begun = time.thread_time()
        found = value_faults(value, schema, most=1000)
        assert message in str(found[-1])
        return time.thread_time() - begun

    assert at_best(taken_s, MAX_S) < MAX_S


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"pattern": "((a?){1000}){1000}"}, "it repeats more than 5,000 parts"),
        ({"pattern": "x" * 2001}, "it has 2,001 characters, more than 2,000"),
        (
            {"anyOf": [{"pattern": f"{n}" + "(?:a|" * 150 + "b" + ")" * 150} for n in range(100)]},
            "more than 10,000 characters",
        ),
        ({"enum": ["x" * 300_000]}, "bytes of JSON, more than 256,000"),
        (nested(True, 100_000), "it is nested too deeply"),
        (json.loads('{"not":' * 70 + "true" + "}" * 70), "it is nested more than 64 levels deep"),
    ],
)
def test_a_schema_takes_a_bounded_time(schema: object, message: str) -> None:
    begun = time.thread_time()
    found = faults(schema)
    taken_s = time.thread_time() - begun

    assert any(message in each for each in found)
    assert taken_s < MAX_S


def test_the_largest_schema_is_checked_in_a_bounded_time() -> None:
    schema = {"properties": {f"p{n}": {"minLength": 1, "enum": [1]} for n in range(6400)}}
    begun = time.thread_time()

    assert schema_faults(schema) == []
    assert time.thread_time() - begun < MAX_S


def test_a_large_value_of_a_plain_schema_is_validated() -> None:
    rows = [{"id": n, "name": f"n{n}", "tags": ["a", "b"]} for n in range(10_000)]
    fields = {
        "id": {"type": "integer"},
        "name": {"type": "string", "maxLength": 10},
        "tags": {"items": {"type": "string"}},
    }
    schema = {"type": "array", "items": {"type": "object", "properties": fields, "required": ["id"]}}

    assert value_faults(rows, schema) == []
    assert value_faults([0.5] * 100_000, {"items": {"type": "number"}}) == []
    assert [str(each) for each in value_faults([*rows, {"name": "x" * 11}], schema)] == [
        "10000.name: 'xxxxxxxxxxx' is too long",
        "10000: 'id' is a required property",
    ]


def test_copies_in_place_of_references_are_counted() -> None:
    tree = {
        "type": "object",
        "properties": {"inner": {"items": {"$ref": "#/$defs/t"}}},
        "$defs": {"t": {"items": {"$ref": "#/$defs/t"}}},
    }
    circle = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{other}"} for other in range(12)]} for n in range(12)}

    assert has_bounded_copies(tree)
    assert has_bounded_copies({"$ref": "http://example.org/x", "$defs": 5})
    assert has_bounded_copies(doubling(8))
    assert not has_bounded_copies(doubling(60))
    assert not has_bounded_copies({"$ref": "#/$defs/d0", "$defs": circle})
    assert not has_bounded_copies({"enum": [0] * 200_000})


def test_a_large_schema_leaves_a_value_what_it_may_take() -> None:
    schema = {"type": "object", "properties": {f"field{n}": {"type": "string", "title": str(n)} for n in range(4000)}}

    assert value_faults({"field1": "x"}, schema, allowance=Allowance(5_000, SearchTime(0.1))) == []


def test_several_validations_may_share_what_they_may_take() -> None:
    allowance = Allowance(1000, SearchTime(0.1))

    assert value_faults([1] * 300, {"items": {"type": "integer"}}, allowance=allowance) == []
    (fault,) = value_faults([1] * 300, {"items": {"type": "integer"}}, allowance=allowance)
    assert "more than 1,000 evaluations" in str(fault)
    (fault,) = schema_faults({"enum": [*range(3000)]}, allowance)
    assert "the check of all schemas together takes more than 1,000 evaluations" in str(fault)


def test_messages_are_short_whatever_they_quote() -> None:
    values: list[JsonValue] = ["x" * 100_000, [1] * 100_000, {str(n): n for n in range(100_000)}]

    for value in values:
        for schema in (
            {"type": "null"},
            {"enum": ["y" * 10_000]},
            {"not": True},
            {"maxProperties": 1, "maxItems": 1, "maxLength": 1},
        ):
            assert all(len(fault.message) < 400 for fault in value_faults(value, schema))
    (fault,) = value_faults([1] * 1000, {"type": "null"})
    assert fault.message.endswith("… is not of type 'null'")
