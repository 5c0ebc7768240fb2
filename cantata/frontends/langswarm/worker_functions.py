"""What workers run for LangSwarm's files besides the functions of their writers."""

from __future__ import annotations

from cantata.frontends.langswarm.workflows.inputs import Schema, faults_in
from cantata.frontends.langswarm.workflows.references import USER_INPUT
from cantata.models.values import JsonValue


def value(value: JsonValue = None) -> JsonValue:
    """What it is given."""
    return value


def check(given: dict[str, JsonValue], schema: Schema) -> None:
    """Raises ValueError with what is wrong with a workflow's input: null is not there, and what the user said need not be declared."""
    declared = schema.get("properties")
    known = declared if isinstance(declared, dict) else {}
    named: JsonValue = {name: value for name, value in given.items() if value is not None and (name in known or name not in USER_INPUT)}
    if found := faults_in(named, schema):
        raise ValueError(f"the workflow's input does not fit its 'input_schema': {'; '.join(found)}")
