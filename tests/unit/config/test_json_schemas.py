"""JSON schemas: patterns mean what jsonschema means by them, and give up in time."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator

from cantata.config import json_schemas
from cantata.config.json_schemas import errors_in

CATASTROPHE = "^(([a-z])+.)+[A-Z]([a-z])+$"
TEXT = "a" * 5000
SCHEMA = {"properties": {"a": {"pattern": "^x+$"}}, "patternProperties": {"^n": {"type": "integer"}, "z$": {"maximum": 3}}}


@pytest.mark.parametrize("value", [{"a": "xx"}, {"a": "y"}, {"a": 5}, {"n1": 1}, {"n1": "x", "nz": 7}, [], "x"])
def test_a_schema_finds_what_jsonschema_finds(value: object) -> None:
    expected = [(list(error.absolute_path), error.message) for error in Draft202012Validator(SCHEMA).iter_errors(value)]

    assert [(list(error.absolute_path), error.message) for error in errors_in(value, SCHEMA)] == expected


@pytest.mark.parametrize(
    ("schema", "value"),
    [({"pattern": CATASTROPHE}, "a" * 5000), ({"patternProperties": {CATASTROPHE: {"type": "string"}}}, {"a" * 5000: 1})],
)
def test_a_pattern_that_searches_for_years_is_given_up(schema: object, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_schemas, "PATTERN_TIMEOUT_S", 0.2)

    (error,) = errors_in(value, schema)

    assert "searched this text for more than 0.2 s" in error.message
