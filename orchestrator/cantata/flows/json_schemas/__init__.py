"""JSON Schemas that others write: one validator for all of them, which is bounded and never retrieves anything.

Schemas are read as Draft 2020-12. References lead to places in the same schema only: there is no code here that could fetch another one.
A schema, and a value that is validated, each take at most about a second of processor time; what would take more is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any, cast
from urllib.parse import unquote, urljoin

from cantata.flows.json_schemas.evaluation import (
    REFERENCES,
    SAME_LIST,
    Allowance,
    CompiledSchema,
    Node,
    Path,
    Schema,
    SchemaEvaluation,
    SchemaFault,
    TooMuchError,
    cut,
    flat,
    quoted,
)
from cantata.text import patterns
from cantata.text.suggestions import hint, nearest

__all__ = ["Allowance", "SchemaFault", "has_bounded_copies", "keyword_faults", "schema_faults", "value_faults"]

MAX_SCHEMA_BYTES = 256_000  # as JSON; pydantic's schemas of large models have 100 kB
MAX_SCHEMA_DEPTH = 64  # levels of JSON
MAX_PATTERN_CHARS = 10_000  # of all patterns of a schema: they compile in 0.5 s at most
MAX_SAME = (
    10_000  # schemas that are evaluated with one value, each as often as references lead to it; all within one schema
)
MAX_COPIED = 100_000  # values of JSON in a schema whose references are replaced by copies: 0.1 s and 20 MB
MAX_FAULTS = 20  # that are reported of one value or schema

_IN_VALUE = (
    "additionalProperties",
    "items",
    "contains",
    "propertyNames",
    "contentSchema",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_IN_LIST = ("prefixItems",)
_IN_MAP = ("properties", "patternProperties", "$defs", "definitions")
_SAME_VALUE = ("not", "if", "then", "else")
_SAME_MAP = ("dependentSchemas",)
"""Keywords that hold a schema, a list of schemas, or schemas by name; those of `_SAME` are evaluated with the same value."""
_SAME = frozenset((*_SAME_VALUE, *SAME_LIST, *_SAME_MAP))
_ANCHORS = ("$anchor", "$dynamicAnchor")

_DRAFTS = frozenset(
    {
        "json-schema.org/draft/2020-12/schema", "json-schema.org/draft/2019-09/schema", "json-schema.org/draft-07/schema",
        "json-schema.org/draft-06/schema", "json-schema.org/draft-04/schema", "json-schema.org/schema",
    }
)  # fmt: skip
"""Names of drafts in `$schema`. Each is read as 2020-12: generators write an older name above schemas that are the same in all of them."""


def schema_faults(schema: object, allowance: Allowance | None = None) -> list[SchemaFault]:
    """Return the faults of a schema, which is JSON values; empty if it is valid. Several may share an allowance."""
    try:
        return _compiled(schema, allowance or Allowance()).faults
    except TooMuchError as error:
        return [SchemaFault((), f"the check of all schemas together {error}; make them smaller")]


def keyword_faults(schema: object, allowed: Collection[str], allowance: Allowance | None = None) -> list[SchemaFault]:
    """Return a fault for each keyword that is not allowed, in a schema and in all schemas within it; none for one too large to be read."""
    try:
        nodes = _compiled(schema, allowance or Allowance()).nodes.values()
    except TooMuchError:
        return []
    found = islice(((path, word) for path, node in nodes for word in node if word not in allowed), MAX_FAULTS)
    return [
        SchemaFault((*path, word), f"the keyword {word[:100]!r} is not available here{hint(nearest(word, allowed))}")
        for path, word in found
    ]


def has_bounded_copies(schema: object) -> bool:
    """Return whether a schema stays of a bounded size where all references are replaced by copies of what they mean.

    Some libraries do so for providers without references, by the last part of a reference. A few hundred bytes may ask for 2⁵⁰ copies.
    """
    named: dict[str, list[object]] = {}
    parts: list[object] = [schema]
    for part in parts:  # it gets longer meanwhile
        if isinstance(part, dict):
            for keyword in ("$defs", "definitions"):
                for name, each in part[keyword].items() if isinstance(part.get(keyword), dict) else ():
                    named.setdefault(name, []).append(each)
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        if len(parts) > MAX_COPIED:
            return False
    waiting: list[tuple[object, frozenset[str]]] = [(schema, frozenset())]
    copied = 0
    while waiting:
        part, within = waiting.pop()
        copied += 1
        if isinstance(part, dict) and isinstance(reference := part.get("$ref"), str):
            name = reference.rpartition("/")[2]
            waiting += ((each, within | {name}) for each in named.get(name, ()) if name not in within)
        elif isinstance(part, dict | list):
            waiting += ((each, within) for each in (part.values() if isinstance(part, dict) else part))
        if copied + len(waiting) > MAX_COPIED:
            return False
    return True


def value_faults(
    value: object, schema: object, *, most: int = MAX_FAULTS, allowance: Allowance | None = None
) -> list[SchemaFault]:
    """Return the first faults of a value by a schema, empty if it is valid. A schema that is not valid is a fault too.

    Args:
        value: JSON values.
        schema: The schema, as JSON values.
        most: The number of faults to return.
        allowance: What this validation may take, and others with the same one; None for one of its own.
    """
    found: list[SchemaFault] = []
    try:
        compiled = _compiled(schema, Allowance())  # its own: whoever declared it was bounded then, and it is read once
        if compiled.faults:
            return [SchemaFault((), cut(f"its schema cannot be used: {compiled.faults[0]}"))]
        for place, message in islice(
            SchemaEvaluation(compiled, allowance or Allowance()).errors(value, compiled.root), most
        ):
            found.append(SchemaFault(flat(place), message))
    except TooMuchError as error:
        found.append(SchemaFault((), f"its validation {error}; make it smaller, or its schema simpler"))
    except TimeoutError as error:
        found.append(SchemaFault((), str(error)))
    except RecursionError:
        found.append(SchemaFault((), "it is nested too deeply to be validated by its schema"))
    return found


@lru_cache(maxsize=32)
def _known(text: str) -> list[CompiledSchema]:
    """Return the list that has the schema once it was read. One and its patterns take 10 MB at most."""
    return []


def _compiled(schema: object, allowance: Allowance) -> CompiledSchema:
    """Return a schema as it was read before, else read it at the cost of an allowance. Raises TooMuchError."""
    try:
        text = json.dumps(schema)
    except (TypeError, ValueError, RecursionError):
        return _refused("it is nested too deeply, or has values that are not JSON")
    if len(text) > MAX_SCHEMA_BYTES:
        return _refused(f"it has {len(text):,} bytes of JSON, more than {MAX_SCHEMA_BYTES:,}")
    known = _known(text)
    if not known:
        allowance.count(150 + len(text))  # a megabyte takes 0.8 s
        known.append(_read(text))
        allowance.count(20 * sum(map(len, known[0].patterns)))
    return known[0]


def _read(text: str) -> CompiledSchema:
    schema = json.loads(text)
    if not isinstance(schema, dict | bool):
        return _refused(f"expected a JSON Schema, which is an object, true or false; found {quoted(schema)}")
    if _is_deeper(schema, MAX_SCHEMA_DEPTH):
        return _refused(f"it is nested more than {MAX_SCHEMA_DEPTH} levels deep")
    compiled = CompiledSchema(schema)
    try:
        compiled.faults += islice(_SchemaReader(compiled).faults(), MAX_FAULTS)
    except TooMuchError:
        return _refused("it is too large to be checked")
    return compiled


def _refused(message: str) -> CompiledSchema:
    return CompiledSchema(False, [SchemaFault((), message)])


def _is_deeper(value: object, levels: int) -> bool:
    """Return whether a value of JSON is nested more than so many levels deep."""
    if not isinstance(value, dict | list):
        return False
    return levels == 0 or any(
        _is_deeper(each, levels - 1) for each in (value.values() if isinstance(value, dict) else value)
    )


@dataclass(frozen=True, eq=False)
class _Resource:
    """A schema with a URI of its own, which references within it start from: the whole one, or one below it with an `$id`."""

    uri: str
    root: Schema
    path: Path


@dataclass(frozen=True)
class _Reference:
    """A reference, where it stands."""

    path: Path
    node: Node
    keyword: str
    resource: _Resource

    @property
    def text(self) -> str:
        return str(self.node[self.keyword])

    def fault(self, message: str) -> SchemaFault:
        """Return a fault of it."""
        return SchemaFault((*self.path, self.keyword), f"{self.text[:100]!r} {message}")


class _SchemaReader:
    """Reads all schemas of a schema, wherever one may stand or a reference leads."""

    def __init__(self, compiled: CompiledSchema) -> None:
        self._compiled = compiled
        self._check = SchemaEvaluation(_metaschema(), Allowance())
        self._resources: dict[str, _Resource] = {}
        self._anchors: dict[tuple[str, str], tuple[Path, Node]] = {}
        self._references: list[_Reference] = []
        self._edges: dict[int, set[int]] = {}
        """From each schema to those that are evaluated with the same value."""
        self._pattern_chars = 0

    def faults(self) -> Iterator[SchemaFault]:
        """Yield the faults, and fill the compiled schema."""
        whole = self._resources[""] = _Resource("", self._compiled.root, ())
        yield from self._read_all((), self._compiled.root, whole)
        for (
            reference
        ) in self._references:  # it gets longer meanwhile: a reference may lead to where no schema was looked for
            yield from self._resolve(reference)
        yield from self._same_value_faults()

    def _same_value_faults(self) -> Iterator[SchemaFault]:
        """Yield a fault if one value would be evaluated for ever, or by too many schemas."""
        counts: dict[int, int] = {}
        try:
            for each in TopologicalSorter(self._edges).static_order():
                counts[each] = 1 + sum(counts[inner] for inner in self._edges.get(each, ()))
                if counts[each] > MAX_SAME:
                    message = f"its references ask for more than {MAX_SAME:,} evaluations of one value"
                    yield SchemaFault(self._compiled.nodes[each][0], message)
                    return
        except CycleError as error:
            cycle = [self._compiled.nodes[each][0] for each in reversed(error.args[1])]
            names = " → ".join(repr("/".join(("#", *map(str, path)))) for path in cycle)
            yield SchemaFault(
                cycle[0], cut(f"these refer to each other for ever, with one and the same value: {names}")
            )

    def _read_all(self, path: Path, schema: Schema, resource: _Resource) -> Iterator[SchemaFault]:
        """Read a schema and all schemas within it, but those that are read already."""
        waiting: list[tuple[Path, Schema, _Resource]] = [(path, schema, resource)]
        while waiting:
            path, schema, resource = waiting.pop()
            if isinstance(schema, dict) and id(schema) not in self._compiled.nodes:
                resource = self._resource_of(path, schema, resource)
                yield from self._read(path, schema, resource)
                waiting += reversed([(place, each, resource) for place, each in _within(path, schema)])

    def _resource_of(self, path: Path, node: Node, around: _Resource) -> _Resource:
        identifier = node.get("$id")
        if not isinstance(identifier, str):
            return around
        uri = _joined(around.uri, identifier.rstrip("#"))
        return self._resources.setdefault(uri, _Resource(uri, node, path))

    def _read(self, path: Path, node: Node, resource: _Resource) -> Iterator[SchemaFault]:
        self._compiled.nodes[id(node)] = path, node
        self._edges[id(node)] = {
            id(each) for (keyword, *_), each in _within((), node) if keyword in _SAME and isinstance(each, dict)
        }
        errors = [
            SchemaFault((*path, *flat(where)), message) for where, message in self._check.errors(node, self._check.root)
        ]
        if errors:
            yield from errors
            return
        draft = node.get("$schema", "https://json-schema.org/schema")
        if draft.partition("://")[2].rstrip("#") not in _DRAFTS:
            yield SchemaFault(
                (*path, "$schema"),
                f"{draft[:100]!r} is no draft of JSON Schema, and nothing is retrieved; leave it out",
            )
        self._references += (_Reference(path, node, keyword, resource) for keyword in REFERENCES if keyword in node)
        for anchor in (node[keyword] for keyword in _ANCHORS if keyword in node):
            self._anchors.setdefault((resource.uri, anchor), (path, node))
        if "pattern" in node:
            yield from self._read_pattern((*path, "pattern"), node["pattern"])
        for pattern in node.get("patternProperties", ()):
            yield from self._read_pattern((*path, "patternProperties", pattern), pattern)

    def _read_pattern(self, path: Path, pattern: str) -> Iterator[SchemaFault]:
        if pattern in self._compiled.patterns:
            return
        self._pattern_chars += len(pattern)
        try:
            if self._pattern_chars > MAX_PATTERN_CHARS:
                raise ValueError(f"all patterns of the schema have more than {MAX_PATTERN_CHARS:,} characters")
            self._compiled.patterns[pattern] = patterns.compiled(pattern)
        except ValueError as error:
            yield SchemaFault(path, cut(f"{pattern[:100]!r} is not a pattern that can be used: {error}"))

    def _resolve(self, reference: _Reference) -> Iterator[SchemaFault]:
        """Note the schema that a reference means, and read it."""
        uri, _, fragment = reference.text.partition("#")
        resource = self._resources.get(_joined(reference.resource.uri, uri)) if uri else reference.resource
        if resource is None:
            remedy = "put what it means under '$defs', and refer to it as '#/$defs/NAME'"
            yield reference.fault(f"is outside of the schema, and nothing is retrieved; {remedy}")
            return
        if reference.keyword == "$dynamicRef" and len({id(each.root) for each in self._resources.values()}) > 1:
            yield reference.fault("is not supported beside schemas with an '$id' of their own; write '$ref'")
            return
        target: Schema | None
        if fragment and not fragment.startswith("/"):
            path, target = self._anchors.get((resource.uri, fragment), ((), None))
        else:
            path, target = _at(resource, fragment)
        if target is None:
            yield reference.fault("names no schema within this one")
            return
        self._compiled.targets[id(reference.node), reference.keyword] = target
        if isinstance(target, dict):
            self._edges[id(reference.node)].add(id(target))
            yield from self._read_all(path, target, resource)


def _joined(base: str, uri: str) -> str:
    try:
        return urljoin(base, uri)
    except ValueError:  # 'http://[', for instance
        return uri


def _within(path: Path, node: Node) -> Iterator[tuple[Path, Schema]]:
    """Yield the schemas that stand directly in a schema, and their paths."""
    for keyword, held in node.items():
        if keyword in _IN_VALUE or keyword in _SAME_VALUE:
            yield (*path, keyword), held
        elif (keyword in _IN_MAP or keyword in _SAME_MAP) and isinstance(held, dict):
            yield from (((*path, keyword, name), each) for name, each in held.items())
        elif (keyword in _IN_LIST or keyword in SAME_LIST) and isinstance(held, list):
            yield from (((*path, keyword, index), each) for index, each in enumerate(held))


def _at(resource: _Resource, pointer: str) -> tuple[Path, Schema | None]:
    """Return the path and the schema at a JSON pointer; None if there is none."""
    held: Any = resource.root
    path: list[str | int] = [*resource.path]
    for part in unquote(pointer).split("/")[1:]:
        key: str | int = part.replace("~1", "/").replace("~0", "~")
        if isinstance(held, list):
            key = int(part) if part.isascii() and part.isdigit() and len(part) < 10 else len(held)
            held = held[key] if key < len(held) else None
        else:
            held = held.get(key) if isinstance(held, dict) else None
        path.append(key)
    return tuple(path), held if isinstance(held, dict | bool) else None


@cache
def _metaschema() -> CompiledSchema:
    """Return the metaschema for one schema without those within it: they are checked one by one, as they are read.

    The library's own metaschema takes half a millisecond for each schema, and recurses.
    """
    from jsonschema_specifications import REGISTRY  # noqa: PLC0415  # as jsonschema: see `evaluation`

    vocabularies = ("core", "applicator", "unevaluated", "validation", "meta-data", "format-annotation", "content")
    names = ("schema", *(f"meta/{name}" for name in vocabularies))
    root: Node = {"properties": {}, "$defs": {}}
    for name in names:
        part = cast("Node", REGISTRY.contents(f"https://json-schema.org/draft/2020-12/{name}"))
        root["properties"] |= _flattened(part.get("properties", {}))
        root["$defs"] |= _flattened(part.get("$defs", {}))
    compiled, whole = CompiledSchema(root), _Resource("", root, ())
    waiting: list[Any] = [root]
    while waiting:
        each = waiting.pop()
        waiting += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        if isinstance(each, dict) and isinstance(reference := each.get("$ref"), str):
            compiled.targets[id(each), "$ref"] = cast("Schema", _at(whole, reference[1:])[1])
        if isinstance(each, dict) and isinstance(pattern := each.get("pattern"), str):
            compiled.patterns[pattern] = patterns.compiled(pattern)
    return compiled


def _flattened(part: Any) -> Any:
    """Return a part of the metaschema, with references within one document, and any schema where it asks for a valid one."""
    if isinstance(part, dict):
        if isinstance(part.get("$dynamicRef"), str):
            return {"type": ["object", "boolean"]}
        flattened = {key: _flattened(each) for key, each in part.items()}
        if isinstance(reference := flattened.get("$ref"), str):
            flattened["$ref"] = "#" + reference.partition("#")[2]
        return flattened
    return [_flattened(each) for each in part] if isinstance(part, list) else part
