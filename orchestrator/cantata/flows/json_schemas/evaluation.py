"""SchemaEvaluation of a value by a JSON Schema, with a limit on evaluations and one time-out for all patterns.

The assertions and the messages are those of `jsonschema`. The walk is our own: it is counted, and has no way to retrieve anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from cantata.text import patterns

MAX_EVALUATIONS = 500_000  # they take half a second of processor time
MAX_MESSAGE = 300  # characters of a message
MAX_QUOTED = 200  # characters of a value that a message quotes

Path = tuple[str | int, ...]
Node = dict[str, Any]
"""A schema that is an object."""
Schema = Node | bool

REFERENCES = ("$ref", "$dynamicRef")
SAME_LIST = ("allOf", "anyOf", "oneOf")


@dataclass(slots=True)
class Allowance:
    """The limits of one validation, or of several together, such as those of all values and schemas that come in with one request."""

    evaluations: int = MAX_EVALUATIONS
    searches: patterns.SearchTime = field(default_factory=patterns.SearchTime)
    _left: int = field(init=False)

    def __post_init__(self) -> None:
        self._left = self.evaluations

    def count(self, evaluations: int) -> None:
        """Count evaluations, of about a microsecond each. Raises TooMuchError."""
        self._left -= evaluations
        if self._left < 0:
            raise TooMuchError(f"takes more than {self.evaluations:,} evaluations")


class TooMuchError(Exception):
    """A value, or a schema, takes more evaluations than are allowed; make it smaller, or its schema simpler."""


class SchemaFault(NamedTuple):
    """One fault of a value, or of a schema itself."""

    path: Path
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.path else self.message

    @property
    def place(self) -> str:
        """The path as a text, such as `rows.0.name`."""
        return ".".join(map(str, self.path))


@dataclass(eq=False)
class CompiledSchema:
    """A schema that was read once: its faults, and what its references and patterns stand for."""

    root: Schema
    faults: list[SchemaFault] = field(default_factory=list)
    nodes: dict[int, tuple[Path, Node]] = field(default_factory=dict)
    """By the `id` of each schema in it that is an object: its path."""
    targets: dict[tuple[int, str], Schema] = field(default_factory=dict)
    """By the `id` of a schema and its keyword: the schema that it refers to."""
    patterns: dict[str, patterns.Pattern] = field(default_factory=dict)


_Place = tuple[Any, ...]  # (), or (the place around it, its key): cheaper to extend than a path
_Errors = Iterator[tuple[_Place, str]]


class SchemaEvaluation:
    """The evaluation of one value by a schema, or of one schema by the metaschema."""

    def __init__(self, compiled: CompiledSchema, allowance: Allowance) -> None:
        self.root = compiled.root
        self.targets = compiled.targets
        self.count = allowance.count
        self._search = allowance.searches.is_found
        self._patterns = compiled.patterns
        self._assertions = _assertions()

    def is_found(self, pattern: str, text: str) -> bool:
        """Return whether a pattern is found in a text. Raises TimeoutError."""
        self.count(2)
        return self._search(self._patterns[pattern], text)

    def is_valid(self, value: object, schema: Schema) -> bool:
        """Return whether a value is valid by a schema within the schema."""
        return next(self.errors(value, schema), None) is None

    def errors(self, value: object, schema: Schema, place: _Place = ()) -> _Errors:
        """Yield the errors of a value by a schema within the schema."""
        self.count(1)
        if schema is True:
            return
        if schema is False:
            self.count(10)
            yield place, f"False schema does not allow {quoted(value)}"
            return
        self.count(len(schema))
        for keyword, argument in schema.items():
            if keyword == "type" and _is_of(value, argument):
                continue
            if (assertion := self._assertions.get(keyword)) is not None:
                yield from self._asserted(assertion, keyword, argument, value, place)
            elif (applicator := _APPLICATORS.get(keyword)) is not None:
                yield from applicator(self, value, argument, schema, place)

    def _asserted(
        self, assertion: Callable[..., Any], keyword: str, argument: Any, value: object, place: _Place
    ) -> _Errors:
        if isinstance(argument, list | dict):
            self.count(
                2 * _size(argument) if keyword in _COMPARING and isinstance(value, dict | list) else len(argument) >> 3
            )
        if isinstance(value, str):
            self.count(len(value) >> 9)  # a long text is copied, at half a gigabyte a second
        try:
            for error in assertion(_JSON_TYPES, argument, _shown(value), None) or ():
                self.count(10 + (len(error.message) >> 4))
                yield place, cut(error.message)
        except (ArithmeticError, TypeError, ValueError) as error:  # 10⁴⁰⁰ divided by 0.1
            yield place, f"{keyword!r} cannot be evaluated for it: {cut(str(error))}"


_COMPARING = frozenset({"enum", "const", "dependentRequired"})
"""Keywords that compare an object or a list with each part of their argument, each in twice the time of an evaluation."""
_ASSERTIONS = (
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength", "minLength",
    "maxItems", "minItems", "maxProperties", "minProperties", "required", "dependentRequired",
)  # fmt: skip
"""Keywords whose time depends on their own size and on that of the value only; the library evaluates them."""


@cache
def _assertions() -> Mapping[str, Callable[..., Any]]:
    """Return the library's assertions."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415  # the choke-point: it takes 0.15 s, and few programs meet a schema

    return {keyword: Draft202012Validator.VALIDATORS[keyword] for keyword in _ASSERTIONS}


def _is_of(value: object, types: str | list[str]) -> bool:
    return any(_JSON_TYPES.is_type(value, each) for each in ((types,) if isinstance(types, str) else types))


class _JsonTypes:
    """The types of JSON, with the only method of a validator that the library's assertions call."""

    def is_type(self, value: object, name: str) -> bool:
        """Return whether a value is of a type."""
        match name:
            case "string":
                return isinstance(value, str)
            case "number":
                return isinstance(value, int | float) and not isinstance(value, bool)
            case "integer":
                return (isinstance(value, int) and not isinstance(value, bool)) or (
                    isinstance(value, float) and value.is_integer()
                )
            case "object":
                return isinstance(value, dict | _ShownObject)
            case "array":
                return isinstance(value, list | _ShownArray)
            case "boolean":
                return isinstance(value, bool)
            case _:
                return name == "null" and value is None


_JSON_TYPES = _JsonTypes()

# Applicators: (evaluation, value, the keyword's argument, the schema it stands in, place) → errors. Messages are the library's.


def _properties(run: SchemaEvaluation, value: Any, argument: Node, _schema: Node, place: _Place) -> _Errors:
    if isinstance(value, dict):
        run.count(len(argument) >> 3)
        for name, schema in argument.items():
            if name in value:
                yield from run.errors(value[name], schema, (place, name))


def _pattern_properties(run: SchemaEvaluation, value: Any, argument: Node, _schema: Node, place: _Place) -> _Errors:
    for pattern, schema in argument.items() if isinstance(value, dict) else ():
        for name, each in value.items():
            if run.is_found(pattern, name):
                yield from run.errors(each, schema, (place, name))


def _additional(run: SchemaEvaluation, value: Node, schema: Node) -> Iterator[str]:
    """Yield the keys of an object that neither `properties` nor `patternProperties` name."""
    run.count(len(value) >> 1)
    named, matched = schema.get("properties", {}), schema.get("patternProperties", ())
    for name in value:
        if name not in named and not any(run.is_found(pattern, name) for pattern in matched):
            yield name


def _additional_properties(run: SchemaEvaluation, value: Any, argument: Schema, schema: Node, place: _Place) -> _Errors:
    if not isinstance(value, dict) or argument is True:
        return
    if isinstance(argument, dict):
        for name in _additional(run, value, schema):
            yield from run.errors(value[name], argument, (place, name))
    elif names := sorted(_additional(run, value, schema)):
        run.count(10 + len(names))
        if "patternProperties" in schema:
            regexes = ", ".join(map(repr, sorted(schema["patternProperties"])))
            yield (
                place,
                cut(f"{_listed(names)} {'does' if len(names) == 1 else 'do'} not match any of the regexes: {regexes}"),
            )
        else:
            yield place, f"Additional properties are not allowed ({_listed(names)} {_were(names)} unexpected)"


def _property_names(run: SchemaEvaluation, value: Any, argument: Schema, _schema: Node, place: _Place) -> _Errors:
    for name in value if isinstance(value, dict) else ():
        yield from run.errors(name, argument, place)


def _items(run: SchemaEvaluation, value: Any, argument: Schema, schema: Node, place: _Place) -> _Errors:
    if not isinstance(value, list) or argument is True:
        return
    first = len(schema.get("prefixItems", ()))
    if argument is False:
        if (extra := len(value) - first) > 0:
            rest = quoted(value[first] if extra == 1 else value[first : first + MAX_QUOTED])
            yield (
                place,
                cut(f"Expected at most {first} item{'' if first == 1 else 's'} but found {extra} extra: {rest}"),
            )
        return
    for index in range(first, len(value)):
        yield from run.errors(value[index], argument, (place, index))


def _prefix_items(run: SchemaEvaluation, value: Any, argument: list[Schema], _schema: Node, place: _Place) -> _Errors:
    for index, schema in enumerate(argument[: len(value)] if isinstance(value, list) else ()):
        yield from run.errors(value[index], schema, (place, index))


def _contains(run: SchemaEvaluation, value: Any, argument: Schema, schema: Node, place: _Place) -> _Errors:
    if not isinstance(value, list):
        return
    least, most, found = schema.get("minContains", 1), schema.get("maxContains", len(value)), 0
    for each in value:
        found += run.is_valid(each, argument)
        if found > most:
            yield place, f"Too many items match the given schema (expected at most {most})"
            return
    if found < least and not found:
        yield place, f"{quoted(value)} does not contain items matching the given schema"
    elif found < least:
        yield place, f"Too few items match the given schema (expected at least {least} but only {found} matched)"


def _unique_items(run: SchemaEvaluation, value: Any, argument: bool, _schema: Node, place: _Place) -> _Errors:
    if argument and isinstance(value, list):
        run.count(_size(value))
        if len({_canonical(each) for each in value}) < len(value):
            yield place, f"{quoted(value)} has non-unique elements"


def _pattern(run: SchemaEvaluation, value: Any, argument: str, _schema: Node, place: _Place) -> _Errors:
    if isinstance(value, str) and not run.is_found(argument, value):
        run.count(10)
        yield place, cut(f"{quoted(value)} does not match {argument!r}")


def _all_of(run: SchemaEvaluation, value: Any, argument: list[Schema], _schema: Node, place: _Place) -> _Errors:
    for schema in argument:
        yield from run.errors(value, schema, place)


def _any_of(run: SchemaEvaluation, value: Any, argument: list[Schema], _schema: Node, place: _Place) -> _Errors:
    if not any(run.is_valid(value, schema) for schema in argument):
        run.count(10)
        yield place, f"{quoted(value)} is not valid under any of the given schemas"


def _one_of(run: SchemaEvaluation, value: Any, argument: list[Schema], _schema: Node, place: _Place) -> _Errors:
    valid = [schema for schema in argument if run.is_valid(value, schema)]
    if len(valid) != 1:
        run.count(10)
    if not valid:
        yield place, f"{quoted(value)} is not valid under any of the given schemas"
    elif len(valid) > 1:
        yield place, cut(f"{quoted(value)} is valid under each of {', '.join(map(quoted, [*valid[1:], valid[0]]))}")


def _not(run: SchemaEvaluation, value: Any, argument: Schema, _schema: Node, place: _Place) -> _Errors:
    if run.is_valid(value, argument):
        run.count(10)
        yield place, cut(f"{quoted(value)} should not be valid under {quoted(argument)}")


def _if(run: SchemaEvaluation, value: Any, argument: Schema, schema: Node, place: _Place) -> _Errors:
    yield from run.errors(value, schema.get("then" if run.is_valid(value, argument) else "else", True), place)


def _dependent_schemas(run: SchemaEvaluation, value: Any, argument: Node, _schema: Node, place: _Place) -> _Errors:
    if isinstance(value, dict):
        run.count(len(argument) >> 3)
        for name, schema in argument.items():
            if name in value:
                yield from run.errors(value, schema, place)


def _reference(run: SchemaEvaluation, value: Any, _argument: str, schema: Node, place: _Place) -> _Errors:
    yield from run.errors(value, run.targets[id(schema), "$ref"], place)


def _dynamic_reference(run: SchemaEvaluation, value: Any, _argument: str, schema: Node, place: _Place) -> _Errors:
    yield from run.errors(value, run.targets[id(schema), "$dynamicRef"], place)


def _unevaluated_items(run: SchemaEvaluation, value: Any, argument: Schema, schema: Node, place: _Place) -> _Errors:
    if isinstance(value, list):
        evaluated = _evaluated(run, value, schema, but="unevaluatedItems")
        items = [
            each for index, each in enumerate(value) if index not in evaluated and not run.is_valid(each, argument)
        ]
        if items:
            yield place, f"Unevaluated items are not allowed ({_listed(items)} {_were(items)} unexpected)"


def _unevaluated_properties(
    run: SchemaEvaluation, value: Any, argument: Schema, schema: Node, place: _Place
) -> _Errors:
    if isinstance(value, dict):
        evaluated = _evaluated(run, value, schema, but="unevaluatedProperties")
        names = [name for name, each in value.items() if name not in evaluated and not run.is_valid(each, argument)]
        if names and argument is False:
            yield place, f"Unevaluated properties are not allowed ({_listed(sorted(names))} {_were(names)} unexpected)"
        elif names:
            reason = f"({_listed(names)} {_were(names)} unevaluated and invalid)"
            yield place, f"Unevaluated properties are not valid under the given schema {reason}"


def _evaluated(run: SchemaEvaluation, value: Any, schema: Schema, but: str = "") -> set[Any]:
    """Return the keys or indices of a value that the keywords of a schema evaluate, save the keyword `but`."""
    if isinstance(schema, bool):
        return set()
    run.count(len(schema) + len(value))
    found: set[Any] = set()
    names = (
        ("additionalProperties", "unevaluatedProperties") if isinstance(value, dict) else ("items", "unevaluatedItems")
    )
    if any(name in schema for name in names if name != but):
        return set(value if isinstance(value, dict) else range(len(value)))
    if isinstance(value, dict):
        found |= schema.get("properties", {}).keys() & value.keys()
        found |= {
            name for pattern in schema.get("patternProperties", ()) for name in value if run.is_found(pattern, name)
        }
    else:
        found |= set(range(len(schema.get("prefixItems", ()))))
        if "contains" in schema:
            found |= {index for index, each in enumerate(value) if run.is_valid(each, schema["contains"])}
    within: list[Schema] = [run.targets[id(schema), keyword] for keyword in REFERENCES if keyword in schema]
    within += (each for keyword in SAME_LIST for each in schema.get(keyword, ()) if run.is_valid(value, each))
    if isinstance(value, dict):
        within += (each for name, each in schema.get("dependentSchemas", {}).items() if name in value)
    if "if" in schema:
        is_so = run.is_valid(value, schema["if"])
        within += [schema["if"]] if is_so else []
        within.append(schema.get("then" if is_so else "else", True))
    return found.union(*(_evaluated(run, value, each) for each in within))


_APPLICATORS: Mapping[str, Callable[[SchemaEvaluation, Any, Any, Node, _Place], _Errors]] = {
    "properties": _properties, "patternProperties": _pattern_properties, "additionalProperties": _additional_properties,
    "propertyNames": _property_names, "items": _items, "prefixItems": _prefix_items, "contains": _contains, "uniqueItems": _unique_items,
    "pattern": _pattern, "allOf": _all_of, "anyOf": _any_of, "oneOf": _one_of, "not": _not, "if": _if,
    "dependentSchemas": _dependent_schemas, "$ref": _reference, "$dynamicRef": _dynamic_reference,
    "unevaluatedItems": _unevaluated_items, "unevaluatedProperties": _unevaluated_properties,
}  # fmt: skip


# --- messages -------------------------------------------------------------------------------------------------------


class _ShownArray(Sequence[Any]):
    """A list whose `repr` is short: the library quotes a value as a whole."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __repr__(self) -> str:
        return quoted(self._items)


class _ShownObject(Mapping[str, Any]):
    """An object whose `repr` is short."""

    def __init__(self, items: Node) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __repr__(self) -> str:
        return quoted(self._items)


class _ShownText(str):
    """A text whose `repr` is short."""

    __slots__ = ()

    def __repr__(self) -> str:
        return quoted(str(self))


def _shown(value: object) -> object:
    if isinstance(value, str):
        return value if len(value) <= MAX_QUOTED else _ShownText(value)
    return _ShownObject(value) if isinstance(value, dict) else _ShownArray(value) if isinstance(value, list) else value


def quoted(value: object) -> str:
    """Return the beginning of a value as Python writes it."""
    text = ""
    for part in _parts(value):
        text += part
        if len(text) > MAX_QUOTED:
            return f"{text[:MAX_QUOTED]}…"
    return text


def _parts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield repr(value if len(value) <= MAX_QUOTED else value[: MAX_QUOTED + 1])
    elif isinstance(value, list | dict):
        yield "[" if isinstance(value, list) else "{"
        for number, each in enumerate(value):
            yield ", " if number else ""
            yield from _parts(each)
            if isinstance(value, dict):
                yield ": "
                yield from _parts(value[each])
        yield "]" if isinstance(value, list) else "}"
    else:
        yield repr(value)


def _listed(values: Sequence[object]) -> str:
    return cut(", ".join(map(quoted, values[:MAX_QUOTED])))


def _were(values: Sequence[object]) -> str:
    return "was" if len(values) == 1 else "were"


def cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"


def _size(value: object) -> int:
    """Return the number of values in a value, a text counted for each 100 of its characters."""
    if isinstance(value, dict):
        return 1 + sum(map(_size, value.values())) + len(value)
    if isinstance(value, list):
        return 1 + sum(map(_size, value))
    return 1 + len(value) // 100 if isinstance(value, str) else 1


def _canonical(value: object) -> str:
    """Return a text that is the same for equal values of JSON: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, dict):
        return f"{{{','.join(sorted(f'{json.dumps(name)}:{_canonical(each)}' for name, each in value.items()))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def flat(place: _Place) -> Path:
    path: list[str | int] = []
    while place:
        place, key = place
        path.append(key)
    return tuple(reversed(path))
