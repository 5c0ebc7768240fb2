"""Rows whose values are texts, of CSV and TSV: their conversion to the types that a chain declares for its inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cantata.errors import ConfigError
from cantata.flows.chains.declared_inputs import DeclaredInputs, Schema
from cantata.flows.values import JsonValue

BAD_VALUE = "bad_value"
"""The code of an error in a row's values, which says nothing about other rows."""

_INTEGER = re.compile(r"[+-]?\d{1,4000}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?", re.ASCII)
_WANTED = {"integer": "an integer", "number": "a number", "boolean": "true or false"}


class TextRow(dict[str, JsonValue]):
    """A row of CSV or TSV, and its place: file and line."""

    def __init__(self, values: Mapping[str, str], place: str) -> None:
        super().__init__(values)
        self.place = place


def converted(row: TextRow, columns: Mapping[str, str], declared: DeclaredInputs, chain: str) -> dict[str, JsonValue]:
    """Return the chain's input: texts of integers, numbers and booleans as such, without the empty cells of optional inputs.

    Args:
        row: The row.
        columns: Column → input, where they differ.
        declared: The inputs that the chain declares.
        chain: Its name, for messages.

    Raises:
        ConfigError: A text is not of its input's type (BAD_VALUE).
    """
    found: dict[str, JsonValue] = {}
    for column, text in row.items():
        name = columns.get(column, column)
        if text == "" and name in declared.schemas and name not in declared.required:
            continue
        try:
            found[name] = _value(str(text), declared.schemas.get(name, {}))
        except ValueError as error:
            shown = f"{str(text)[:40]!r}" if text else "an empty cell"
            message = f"{row.place}: column {column!r}: the input {name!r} of chain {chain!r} is {error}, not {shown}"
            raise ConfigError(message, source="batch", code=BAD_VALUE) from None
    return found


def _value(text: str, schema: Schema) -> JsonValue:
    """Return the value of a text. Raises ValueError with the name of what is wanted."""
    kind, plain = schema.get("type"), text.strip()
    if not isinstance(kind, str) or kind not in _WANTED:
        return text
    if kind == "boolean" and plain.lower() in ("true", "false"):
        return plain.lower() == "true"
    if kind != "boolean" and _INTEGER.fullmatch(plain):
        return int(plain)
    if kind == "number" and _NUMBER.fullmatch(plain):
        return float(plain)
    raise ValueError(_WANTED[kind])
