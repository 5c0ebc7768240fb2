"""The declared inputs of a chain, the validation of values against them, and the functions of ours that workers run for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from cantata.config.faults import shown
from cantata.flows.json_schemas import schema_faults, value_faults
from cantata.text.suggestions import did_you_mean
from cantata.values import JsonValue
from cantata_frontends.langswarm.chains.reference_expressions import USER_INPUT
from cantata_frontends.langswarm.config_part import ConfigPart

Schema = dict[str, JsonValue]

_DESCRIBES = frozenset({"default", "type", "description", "required"})
"""Keys of the description of an input; any other mapping is its default."""


@dataclass(frozen=True)
class ChainInputs:
    """The inputs that a chain declares."""

    defaults: Mapping[str, JsonValue]
    """Input → its default."""
    schema: Schema | None = None
    """The workflow's `input_schema`, in which inputs with a default are not required."""

    def check(self, given: Mapping[str, ConfigPart], known: Mapping[str, JsonValue], location: ConfigPart) -> None:
        """Record faults of a step's inputs: names not declared, missing ones, and `known` values that are not valid."""
        for name, part in given.items():
            if self.defaults and name not in (*self.defaults, *USER_INPUT):
                part.fault(f"the workflow has no input {name!r}{did_you_mean(name, [*self.defaults, *USER_INPUT])}")
        if self.schema is None:
            return
        for name in cast("list[str]", self.schema.get("required", [])):
            if name not in (*given, *USER_INPUT):
                location.fault(f"the workflow needs the input {name!r}")
        properties = self.schema.get("properties")
        for name, schema in properties.items() if isinstance(properties, dict) else ():
            if name in known and (faults := faults_in(known[name], schema)):
                given[name].fault(faults[0])


def read_inputs(part: ConfigPart) -> ChainInputs:
    """Return the inputs of a chain, in any of their forms."""
    defaults = dict(_declared(part))
    schema = read_schema(part.at("input_schema"))
    if schema is not None and isinstance(required := schema.get("required", []), list):
        defaults = {**dict.fromkeys(map(str, required)), **defaults}
        schema = {**schema, "required": [name for name in required if defaults[str(name)] is None]}
    return ChainInputs(defaults, schema)


def read_schema(part: ConfigPart) -> Schema | None:
    """Return the JSON schema in a part; None with a fault if it is not valid."""
    if part.value is None:
        return None
    if not isinstance(part.value, dict):
        part.fault(f"expected a JSON schema, found {shown(part.value)}")
        return None
    faults = schema_faults(part.value)
    for fault in faults:
        part.at(*fault.path).fault(f"not a JSON schema: {fault.message}")
    return None if faults else part.value


def faults_in(value: JsonValue, schema: JsonValue) -> list[str]:
    """Return the faults of a value against a schema."""
    return [str(fault) for fault in value_faults(value, schema)]


def _declared(part: ConfigPart) -> Iterator[tuple[str, JsonValue]]:
    """Yield the declared inputs of a chain, with their defaults."""
    for key in ("inputs", "variables"):
        inputs = part.at(key)
        if isinstance(inputs.value, dict):
            for name, each in inputs.entries():
                is_described = isinstance(each.value, dict) and not _DESCRIBES.isdisjoint(each.value)
                yield name, each.at("default").value if is_described else each.value
        else:
            yield from ((name, None) for _, name in inputs.texts())
    for name, each in part.at("input_schema").at("properties").entries():
        yield name, each.at("default").value


# --- functions that workers run -------------------------------------------------------------------------------------


def value(value: JsonValue = None) -> JsonValue:
    """Return the argument."""
    return value


def check(given: dict[str, JsonValue], schema: Schema) -> None:
    """Raise ValueError if a workflow's input is not valid; null counts as missing, and the user's input need not be declared."""
    declared = schema.get("properties")
    known = declared if isinstance(declared, dict) else {}
    named: JsonValue = {
        name: value for name, value in given.items() if value is not None and (name in known or name not in USER_INPUT)
    }
    if found := faults_in(named, schema):
        raise ValueError(f"the workflow's input does not fit its 'input_schema': {'; '.join(found)}")
