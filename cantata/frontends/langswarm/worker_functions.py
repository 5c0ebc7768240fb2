"""The functions of our own that workers run for LangSwarm's files."""

from __future__ import annotations

from cantata.frontends.langswarm.workflows.inputs import Schema, faults_in
from cantata.frontends.langswarm.workflows.reference_expressions import USER_INPUT
from cantata.models.values import JsonValue


def value(value: JsonValue = None) -> JsonValue:
    """Return the argument."""
    return value


def check(given: dict[str, JsonValue], schema: Schema) -> None:
    """Raise ValueError if a workflow's input is not valid; null counts as missing, and the user's input need not be declared."""
    declared = schema.get("properties")
    known = declared if isinstance(declared, dict) else {}
    named: JsonValue = {name: value for name, value in given.items() if value is not None and (name in known or name not in USER_INPUT)}
    if found := faults_in(named, schema):
        raise ValueError(f"the workflow's input does not fit its 'input_schema': {'; '.join(found)}")
