"""Inputs that a chain declares, by `name: type` or as a JSON Schema of an object; their validation; the names that expressions read."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import cast

from cantata.errors import StepError
from cantata.flows.chains import graph_of_nodes
from cantata.flows.chains.graph_of_nodes import ITEM_NAMES, Nodes
from cantata.flows.chains.steps_of_nodes import section_of
from cantata.flows.definitions import Chain, Definitions
from cantata.flows.expressions.expressions import Expression
from cantata.flows.json_schemas import (
    MAX_SCHEMA_BYTES,
    Allowance,
    SchemaFault,
    keyword_faults,
    schema_faults,
    value_faults,
)
from cantata.flows.wire import ChainNode
from cantata.text.suggestions import Nearest
from cantata.values import JsonValue

Schema = Mapping[str, JsonValue]
Faults = Iterator[tuple[str, str]]
"""Input and message."""

ANY = "any"
TYPES = ("string", "number", "integer", "boolean", "object", "array", "null", ANY)
KEYWORDS = frozenset(
    {
        "type", "enum", "const", "properties", "required", "additionalProperties", "items", "default", "description", "title", "examples",
        "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "$schema",
    }
)  # fmt: skip
"""The allowed keywords of a schema. What uses declared inputs, as the columns of a batch, need not follow references and choices."""

TURN_INPUTS = ("user_input", "user_query", "input")
"""The inputs of a chain that answers a turn: the text, under each of the names that workflows use for it."""

_MAX_LISTED = 20  # names in a message
_MAX_VALUE_FAULTS = 5  # of all inputs that do not match


@dataclass(frozen=True)
class DeclaredInputs:
    """The declared inputs of a chain."""

    schemas: Mapping[str, Schema]
    required: frozenset[str]
    is_open: bool = False
    """True if it accepts other inputs too."""

    def faults(self, given: Mapping[str, JsonValue], allowance: Allowance | None = None) -> Faults:
        """Yield the faults of an input; its validation uses an allowance of its own if it shares none."""
        yield from self.missing(given)
        yield from self.unknown(given)
        yield from self.misfits(given, allowance)

    def missing(self, given: Collection[str]) -> Faults:
        """Yield faults of the required inputs that are missing."""
        for name in sorted(self.required - set(given)):
            kind = self.schemas.get(name, {}).get("type")
            yield (
                name,
                f"is missing: the chain declares it as a required input{f' of type {kind!r}' if isinstance(kind, str) else ''}",
            )

    def unknown(self, given: Collection[str]) -> Faults:
        """Yield faults of the inputs that are not declared."""
        known = Nearest(self.schemas)
        for name in () if self.is_open else sorted(set(given) - self.schemas.keys()):
            yield name, f"is not an input of the chain{known.hint(name) or _listed(self.schemas)}"

    def misfits(self, given: Mapping[str, JsonValue], allowance: Allowance | None = None) -> Faults:
        """Yield the first faults of the inputs that do not match their schemas. One of all inputs has no name: they take too long."""
        values: dict[str, JsonValue] = {name: given[name] for name in sorted(given.keys() & self.schemas.keys())}
        whole = {"properties": {name: self.schemas[name] for name in values}}
        for fault in value_faults(values, whole, most=_MAX_VALUE_FAULTS, allowance=allowance):
            yield (
                (str(fault.path[0]), str(SchemaFault(fault.path[1:], fault.message)))
                if fault.path
                else ("", fault.message)
            )

    def filled(self, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Return an input with the defaults of missing values."""
        defaults = {name: schema["default"] for name, schema in self.schemas.items() if "default" in schema}
        return {**defaults, **given}


def read(declared: Mapping[str, JsonValue]) -> DeclaredInputs | None:
    """Return the inputs of a valid declaration; None if it is empty."""
    if not declared:
        return None
    if is_schema(declared):
        schemas = {name: _own(schema) for name, schema in cast("dict[str, JsonValue]", declared["properties"]).items()}
        required = cast("list[str]", declared.get("required") or [])
        is_open = declared.get("additionalProperties") is True
    else:
        schemas = {name: _own(said) for name, said in declared.items()}
        required = [name for name, said in declared.items() if not str(said).endswith("?")]
        is_open = False
    return DeclaredInputs(
        schemas, frozenset(name for name in required if "default" not in schemas.get(name, {})), is_open
    )


def sound(declared: Mapping[str, JsonValue], allowance: Allowance | None = None) -> DeclaredInputs | None:
    """Return the declared inputs; None if there are none, or the declaration has faults."""
    return None if any(True for _ in declaration_faults(declared, allowance)) else read(declared)


def is_schema(declared: Mapping[str, JsonValue]) -> bool:
    """Return whether a declaration is a JSON Schema of the whole input, instead of an entry for each."""
    return declared.get("type") == "object" and isinstance(declared.get("properties"), dict)


def declaration_faults(declared: Mapping[str, JsonValue], allowance: Allowance | None = None) -> Faults:
    """Yield the faults of a declaration: the path in it, and the message."""
    allowance = allowance or Allowance()
    schemas: Mapping[str, JsonValue] = {"": dict(declared)} if is_schema(declared) else declared
    types = Nearest(TYPES)
    if len(json.dumps(declared)) > MAX_SCHEMA_BYTES:
        yield "", f"all declared inputs together have more than {MAX_SCHEMA_BYTES:,} bytes of JSON"
    for place, said in schemas.items():
        if isinstance(said, dict):
            yield from _schema_faults(said, place, allowance)
        elif not isinstance(said, str):
            yield place, f"expected a type, such as 'string', or a JSON Schema; found {said!r}"
        elif said.removesuffix("?") not in TYPES:
            yield place, f"there is no type {said!r}{types.hint(said.removesuffix('?')) or _listed(TYPES)}"


def call_faults(
    node: ChainNode, definitions: Definitions, allowance: Allowance | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the field and message of each fault in the input of a node that runs a named chain, as far as it is known before the run."""
    if section_of(node.kind, node.name, definitions) != "chains":
        return
    declared = sound(definitions.chains[node.name].inputs)
    if declared is None:
        return
    named = f"of chain {node.name!r}"
    given = {**node.input, **node.input_map}
    for name, message in declared.missing(given):
        yield "input", f"input {name!r} {named} {message}"
    for name, message in declared.unknown(given):
        yield f"{'input_map' if name in node.input_map else 'input'}.{name}", message.replace("of the chain", named)
    fixed = {name: value for name, value in node.input.items() if name not in node.input_map}
    for name, message in declared.misfits(fixed, allowance):
        yield f"input.{name}" if name else "input", message


def turn_faults(name: str, chain: Chain) -> Iterator[str]:
    """Yield faults of the required inputs of a chain that a turn does not provide."""
    declared = sound(chain.inputs)
    for each, _ in declared.missing(TURN_INPUTS) if declared else ():
        yield f"workflow {name!r} needs the input {each!r}, which a turn does not give: it gives {', '.join(map(repr, TURN_INPUTS))}"


def given_to(name: str, chain: Chain, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the input of a named chain, with defaults. Raises StepError if it does not match the declaration."""
    declared = read(chain.inputs)
    if declared is None:
        return dict(given)
    filled = declared.filled(given)
    faults = [
        f"{each}: {message}" if each else message
        for each, message in (*declared.missing(filled), *declared.misfits(filled))
    ]
    if faults:
        raise StepError(f"chain {name!r} cannot take its input: {'; '.join(faults)}", code="bad_input")
    return filled


def _listed(known: Collection[str]) -> str:
    """Return the end of a message about an unknown name that resembles no known one."""
    more = f" and {len(known) - _MAX_LISTED:,} more" if len(known) > _MAX_LISTED else ""
    return f"; known are {', '.join(map(repr, islice(known, _MAX_LISTED)))}{more}" if known else ""


def _own(said: JsonValue) -> dict[str, JsonValue]:
    if isinstance(said, dict):
        return said
    kind = str(said).removesuffix("?")
    return {} if kind == ANY else {"type": kind}


def _schema_faults(schema: dict[str, JsonValue], place: str, allowance: Allowance) -> Faults:
    for fault in keyword_faults(schema, KEYWORDS, allowance):
        yield _in(place, fault), fault.message
    for fault in schema_faults(schema, allowance):
        yield _in(place, fault), f"this is not a valid JSON Schema: {fault.message}"


def _in(place: str, fault: SchemaFault) -> str:
    return ".".join(filter(None, (place, fault.place)))


EVERYWHERE = frozenset({"input", "output"})


def read_from_input(nodes: Nodes) -> list[str]:
    """Return the names that a chain's expressions read and that are not nodes."""
    names: set[str] = set()
    for node_id, roots in nodes.roots.items():
        names |= roots - EVERYWHERE - nodes.all.keys() - (ITEM_NAMES if node_id in nodes.bodies else frozenset())
    return sorted(names.union(*(expression.inputs for expression in nodes.readable.values())))


def inputs_read(chain: Chain) -> list[str]:
    """Return the inputs of which a caller must give at least one: those that expressions of a chain read by their names.

    Empty if the chain declares its inputs, or uses its input as a whole.
    """
    if chain.inputs:
        return []
    nodes = graph_of_nodes.read(chain.nodes)
    uses_whole = any("input" in expression.roots and not expression.inputs for expression in nodes.readable.values())
    return [] if uses_whole or not nodes.roots[chain.entry_node] else read_from_input(nodes)


@dataclass(frozen=True)
class ReadableNames:
    """The names that the expressions of a chain may read."""

    nodes: Collection[str]
    declared: DeclaredInputs | None
    """The inputs that the chain declares."""
    given: Mapping[str, JsonValue] | None
    """The given input; None if it is not known yet."""

    def faults(self, expression: Expression, *, in_map: bool = False) -> Iterator[str]:
        """Yield the faults of the names that an expression reads; in a map's node it may read the item too."""
        known = self._inputs
        if known is None:
            return
        item_names = ITEM_NAMES if in_map else frozenset()
        for name in sorted(expression.roots - EVERYWHERE - item_names - known):
            if name not in self.nodes:
                yield f"{name!r} is neither a node of the chain nor an input{self._nearest.hint(name) or self._remedy(name)}"
        for name in sorted(expression.inputs - known) if self.declared else ():
            yield f"the chain declares no input {name!r}{self._nearest_input.hint(name)}"

    @property
    def _inputs(self) -> frozenset[str] | None:
        if self.declared is not None:
            return None if self.declared.is_open else frozenset(self.declared.schemas)
        return None if self.given is None else frozenset(self.given)

    def _remedy(self, name: str) -> str:
        if name in ITEM_NAMES:
            return "; only the map_node of a map has an item"
        return (
            "; declare it under 'inputs'"
            if self.declared
            else f"; of an input that may be absent, write 'input.{name}'"
        )

    @cached_property
    def _nearest(self) -> Nearest:
        return Nearest([*self.nodes, *(self._inputs or ())])

    @cached_property
    def _nearest_input(self) -> Nearest:
        return Nearest(self._inputs or ())
