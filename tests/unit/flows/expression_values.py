"""Values that the expressions of tests refer to."""

from __future__ import annotations

from cantata.flows.expressions.expressions import parse
from cantata.values import JsonValue

NAMES = frozenset(
    {
        "read",
        "parse",
        "text",
        "wrapped",
        "list-files",
        "list",
        "2nd",
        "42",
        "2024-01-01",
        "merge",
        "null-check",
        "process_each",
    }
)
ROOT: dict[str, JsonValue] = {
    "read": {"data": [1, 2, 3], "n": 3},
    "parse": {"values": [4, 5], "data_type": "numeric"},
    "text": "hello",
    "wrapped": {"output": {"data": "inner"}},
    "list-files": {"files": [{"n": 1, "ok": True, "name": "a"}, {"n": 5, "ok": False, "name": "b"}]},
    "2nd": {"x": 9},
    "42": {"y": 7},
    "2024-01-01": {"z": 8},
    "merge": {"rows": []},
    "process_each": ["x", None],
    "numeric_transform": None,
    "text_transform": {"summary": "short"},
    "output": {"items": ["p", "q"]},
    "input": {"files": ["f1", "f2"]},
    "_item": {"path": "/tmp/a"},
    "a": {"b": "c"},
    "zero": 0,
    "empty": "",
    "none": [],
    "off": False,
    "on": True,
    "limit": 2,
    "word": "false",
    "D": "a field",
    "or": "a field called or",
    "true": "a field called true",
}


def value(text: str) -> JsonValue:
    return parse(text, NAMES).evaluate(ROOT)
