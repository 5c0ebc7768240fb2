"""Bad JSON Schemas, and values that do not fit theirs."""

from __future__ import annotations

from collections.abc import Iterator

from cantata.flows.json_schemas import schema_faults, value_faults
from cantata.text.patterns import compiled
from tests.unit.messages.entries import Entry, data, entries, said_by, text

SCHEMAS: dict[str, list[object]] = {
    "schemas that are no drafts": [
        {"$schema": "http://127.0.0.1:9/x"},
        {"items": {"$schema": "http://127.0.0.1:9/x"}},
        {"$schema": ""},
    ],
    "schemas that cannot be used": [
        {"$ref": "#/$defs/x"},
        {"$ref": "#x"},
        {"$ref": "#/enum", "enum": [1]},
        {"$ref": "#/x/0", "x": [{"type": "strin"}]},
        {"$ref": "#"},
        {"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"if": {"$ref": "#/$defs/a"}}}},
        {"properties": {"a": {"pattern": "("}}},
        {"patternProperties": {"[": True}},
        {"not": {"items": {"minLength": -1}}},
        {"$dynamicRef": "#a", "$defs": {"a": {"$id": "T", "$dynamicAnchor": "a"}}},
        7,
        {"default": {1, 2}},
    ],
}

VALUES: dict[str, list[tuple[object, object]]] = {
    "values that do not fit": [
        (
            {"allOf": [{"properties": {"a": True}}], "patternProperties": {"^b": True}, "unevaluatedProperties": False},
            {"a": 1, "b2": 2, "c": 3},
        ),
        (
            {
                "dependentSchemas": {"a": {"properties": {"a": True, "b": True}}},
                "unevaluatedProperties": {"type": "integer"},
            },
            {"a": "x", "b": "y", "c": "z"},
        ),
        (
            {"prefixItems": [{"type": "string"}], "contains": {"type": "null"}, "unevaluatedItems": False},
            ["x", None, 3],
        ),
        ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]),
        ({"$id": "http://a.example/s", "$ref": "http://a.example/s#/$defs/n", "$defs": {"n": {"type": "null"}}}, 1),
        ({"$ref": "T", "$defs": {"t": {"$id": "T", "$ref": "#/$defs/u", "$defs": {"u": {"type": "null"}}}}}, 1),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "definitions": {"n": {"minimum": 3}},
                "$ref": "#/definitions/n",
            },
            1,
        ),
        ({"$dynamicRef": "#n", "$defs": {"n": {"$dynamicAnchor": "n", "type": "null"}}}, 1),
        ({"multipleOf": 0.1}, 10**400),
        (False, 1),
    ],
}


PATTERNS: dict[str, list[str]] = {
    "patterns that cannot be used": [
        "((a?){1000}){1000}",
        "((a{9}){9}){9}" * 10,
        "((a?){1000}[[:alpha:])][[:alpha:](]){1000}",
        "((a?){1000}#)(\n){1000}(?x)",
        "(?ix:a)",
        "(?V1)[a--b]",
        "a)",
        "[a",
        "a\\",
        "(",
        "x" * 2001,
        "(" * 900 + ")" * 900,
        "(?<n>a)(?<n",
    ],
}


def found() -> Iterator[Entry]:
    """Check each schema, and each value by its schema."""
    yield from entries(SCHEMAS, lambda schema: [str(fault) for fault in schema_faults(schema)], data)
    yield from entries(PATTERNS, lambda pattern: said_by(lambda: compiled(pattern), ValueError), text)
    yield from entries(
        VALUES,
        lambda given: [str(fault) for fault in value_faults(given[1], given[0])],
        lambda given: f"{data(given[1])}\nschema: {data(given[0])}",
    )
