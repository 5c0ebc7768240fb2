"""What a workflow says it is given, and holds what it is given against that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from cantata.config.faults import did_you_mean, shown
from cantata.frontends.langswarm.config_part import ConfigPart
from cantata.frontends.langswarm.workflows.references import USER_INPUT
from cantata.models.values import JsonValue

Schema = dict[str, JsonValue]

_DESCRIBES = frozenset({"default", "type", "description", "required"})
"""Keys by which a declared input is described; any other mapping is its default."""


@dataclass(frozen=True)
class WorkflowInputs:
    """The inputs that a workflow declares."""

    defaults: Mapping[str, JsonValue]
    """Input → its default."""
    schema: Schema | None = None
    """JSON schema of all of them: the workflow's `input_schema`, in which what has a default need not be given."""

    def check(self, given: Mapping[str, ConfigPart], known: Mapping[str, JsonValue], place: ConfigPart) -> None:
        """Fault what a step gives by name: what is not declared, is missing, or does not fit, as far as its value is `known`."""
        for name, part in given.items():
            if self.defaults and name not in (*self.defaults, *USER_INPUT):
                part.fault(f"the workflow has no input {name!r}{did_you_mean(name, [*self.defaults, *USER_INPUT])}")
        if self.schema is None:
            return
        for name in cast("list[str]", self.schema.get("required", [])):
            if name not in (*given, *USER_INPUT):
                place.fault(f"the workflow needs the input {name!r}")
        properties = self.schema.get("properties")
        for name, schema in properties.items() if isinstance(properties, dict) else ():
            if name in known and (said := faults_in(known[name], schema)):
                given[name].fault(said[0])


def read_inputs(part: ConfigPart) -> WorkflowInputs:
    """The inputs of a workflow, whatever its shape."""
    defaults = dict(_declared(part))
    schema = read_schema(part.at("input_schema"))
    if schema is not None and isinstance(required := schema.get("required", []), list):
        defaults = {**dict.fromkeys(map(str, required)), **defaults}
        schema = {**schema, "required": [name for name in required if defaults[str(name)] is None]}
    return WorkflowInputs(defaults, schema)


def read_schema(part: ConfigPart) -> Schema | None:
    """The JSON schema that a part is; None with a fault if it is none."""
    from jsonschema import Draft202012Validator, SchemaError  # noqa: PLC0415  # only workflows with a schema need it

    if part.value is None:
        return None
    if not isinstance(part.value, dict):
        part.fault(f"expected a JSON schema, found {shown(part.value)}")
        return None
    try:
        Draft202012Validator.check_schema(part.value)
    except SchemaError as error:
        part.at(*error.absolute_path).fault(f"this is no JSON schema: {error.message}")
        return None
    return part.value


def faults_in(value: JsonValue, schema: JsonValue) -> list[str]:
    """What is wrong with a value."""
    from cantata.config.json_schemas import errors_in  # noqa: PLC0415  # as above

    return [": ".join(filter(None, (".".join(map(str, error.absolute_path)), error.message))) for error in errors_in(value, schema)]


def _declared(part: ConfigPart) -> Iterator[tuple[str, JsonValue]]:
    """The inputs that a workflow names, with their defaults."""
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
