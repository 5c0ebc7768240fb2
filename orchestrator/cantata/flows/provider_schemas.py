"""Schemas of tools and of structured output, in the form that each model provider takes; a table says what that is. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from cantata.flows.json_schemas import has_bounded_copies
from cantata.values import JsonValue, ToolSchema

Schema = Mapping[str, JsonValue]


@dataclass(frozen=True)
class Takes:
    """The requests that a provider takes. None: there is no limit, as far as it is known."""

    json_schema: bool = True
    """Structured output by a schema; else JSON alone, and the schema goes into the prompt."""
    strict: bool = False
    """`strict` for structured output: then all objects are closed and all keys required."""
    array_items: bool = False
    """Each array of a tool's schema must have `items`, and a schema has no `anyOf` and the like at its top."""
    inlines: bool = False
    """LiteLLM replaces references by copies of what they mean."""
    max_tools: int | None = None
    max_description: int | None = None
    reasoning: bool = True
    """Messages with the reasoning that it gave before; else it refuses their fields."""
    source: str = ""


_OPENAI = Takes(
    strict=True,
    array_items=True,
    max_tools=128,
    max_description=1024,
    source="platform.openai.com/docs: guides/structured-outputs (supported schemas), guides/function-calling, api-reference/chat",
)
PROVIDERS: Mapping[str, Takes] = {
    "openai": _OPENAI,
    "azure": _OPENAI,
    "anthropic": Takes(
        array_items=True, source="docs.anthropic.com: build-with-claude/tool-use (input_schema is an object)"
    ),
    "bedrock": Takes(
        array_items=True, inlines=True, source="docs.aws.amazon.com/bedrock: Converse, toolSpec.inputSchema"
    ),
    "gemini": Takes(
        array_items=True, inlines=True, source="ai.google.dev/api/caching#Schema (items of an array are required)"
    ),
    "vertex_ai": Takes(
        array_items=True,
        inlines=True,
        source="cloud.google.com/vertex-ai: reference/rest Schema (items of an array are required)",
    ),
    "deepseek": Takes(
        json_schema=False,
        array_items=True,
        max_tools=128,
        source="api-docs.deepseek.com: guides/json_mode, function_calling",
    ),
    "groq": Takes(
        array_items=True,
        max_tools=128,
        reasoning=False,
        source="console.groq.com/docs: tool-use, structured-outputs; github.com/tashfeenahmed/freellmapi/issues/1070 (reasoning_content)",
    ),
    "cerebras": Takes(reasoning=False, source="github.com/Kilo-Org/kilocode/issues/10375 (reasoning_content)"),
    "mistral": Takes(
        array_items=True,
        reasoning=False,
        source="docs.mistral.ai: capabilities/function_calling; LiteLLM's MistralConfig (422 for fields that it does not know)",
    ),
}
"""LiteLLM's name of a provider → what it takes. Any other, as a server of your own, gets the plain form, with nothing left out."""

PLAIN = Takes()
MAX_NAME_CHARS = 64
"""Characters of a tool's name. OpenAI's limit, the lowest; all providers get a shorter one with a hash at its end."""
JSON_ALONE: JsonValue = {"type": "json_object"}
MAX_STRICT_DEPTH, MAX_STRICT_PROPERTIES = 10, 5000  # of OpenAI
_NOT_STRICT = frozenset(
    {
        "allOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties", "propertyNames", "prefixItems",
        "contains", "minContains", "maxContains", "minProperties", "maxProperties", "unevaluatedItems", "unevaluatedProperties",
        "uniqueItems",
    }
)  # fmt: skip
_NOTES = frozenset(
    {"default", "examples", "$schema", "$id", "$comment", "discriminator", "readOnly", "writeOnly", "deprecated"}
)
_COMBINATORS = ("anyOf", "oneOf", "allOf")


class UnfitError(ValueError):
    """A schema has no form that the provider takes. The message says why."""


def taken_by(provider: str) -> Takes:
    """Return what a provider takes, by LiteLLM's name."""
    return PROVIDERS.get(provider, PLAIN)


# --- structured output ----------------------------------------------------------------------------------------------


def response_format(schema: Schema, provider: str) -> JsonValue:
    """Return the `response_format` of a request for an answer that fits a schema."""
    takes = taken_by(provider)
    if not takes.json_schema or (takes.inlines and not has_bounded_copies(schema)):
        return JSON_ALONE
    if takes.strict:
        try:
            return _json_schema(strict_form(schema), strict=True)
        except UnfitError:  # without `strict` any schema is taken, as a hint
            pass
    return _json_schema(dict(schema))


def unfit_reason(schema: Schema, provider: str) -> str:
    """Return why a provider that takes strict schemas gets this one without `strict`; empty if it does not."""
    if not taken_by(provider).strict:
        return ""
    try:
        strict_form(schema)
    except UnfitError as error:
        return str(error)
    return ""


def _json_schema(schema: dict[str, JsonValue], **more: JsonValue) -> JsonValue:
    return {"type": "json_schema", "json_schema": {"name": "answer", **more, "schema": schema}}


def strict_form(schema: Schema) -> dict[str, JsonValue]:
    """Return a schema in OpenAI's strict form: closed objects, all keys required, optional ones nullable, no defaults.

    Raises UnfitError if there is none. `without_fillers` removes the nulls of optional keys from an answer.
    """
    form = _strict(schema, schema, ())
    if form.get("type") != "object":
        raise UnfitError(f"the schema is of type {json.dumps(schema.get('type'))}, not of an object")
    if sum(len(cast(Schema, each["properties"])) for each in _objects(form)) > MAX_STRICT_PROPERTIES:
        raise UnfitError(f"the schema has more than {MAX_STRICT_PROPERTIES:,} properties")
    return form


def _strict(
    schema: Schema, root: Schema, path: tuple[str, ...], inside: frozenset[str] = frozenset()
) -> dict[str, JsonValue]:
    where = ".".join(path) or "its top"
    if len(path) > 4 * MAX_STRICT_DEPTH:
        raise UnfitError(f"the schema is nested too deeply at {where}")
    found = {name: value for name, value in schema.items() if name not in _NOTES}
    if "$ref" in found:
        return _referred(found, root, path, inside)
    if isinstance(parts := found.get("allOf"), list) and len(parts) == 1:
        del found["allOf"]
        return _strict({**cast(Schema, parts[0]), **found}, root, path, inside)
    if unfit := sorted(found.keys() & _NOT_STRICT):
        raise UnfitError(f"strict schemas have no {unfit[0]!r}, which stands at {where}")
    if "const" in found:
        found["enum"] = [found.pop("const")]
    if "oneOf" in found:
        found["anyOf"] = found.pop("oneOf")
    for name in ("$defs", "definitions"):
        if name in found:
            found[name] = {
                key: _strict(cast(Schema, each), root, (*path, name, key), inside)
                for key, each in cast(Schema, found[name]).items()
            }
    if "anyOf" in found:
        options = cast("list[Schema]", found["anyOf"])
        found["anyOf"] = [
            _strict(each, root, (*path, "anyOf", str(number)), inside) for number, each in enumerate(options)
        ]
    if isinstance(items := found.get("items"), dict):
        found["items"] = _strict(items, root, (*path, "items"), inside)
    elif _has_type(found, "array"):
        raise UnfitError(f"an array has no schema for its items, at {where}")
    if _has_type(found, "object") or "properties" in found:
        found |= _closed(found, root, path, inside)
    elif not found.keys() & {"type", "enum", "anyOf"}:
        raise UnfitError(f"any value is allowed at {where}")
    return found


def _closed(schema: Schema, root: Schema, path: tuple[str, ...], inside: frozenset[str]) -> dict[str, JsonValue]:
    """Return the fields of a closed object. Raises UnfitError for one that may have other keys by its own words."""
    properties = cast("Mapping[str, Schema]", schema.get("properties") or {})
    if schema.get("additionalProperties", bool(properties) is False) is not False:
        raise UnfitError(f"an object may have any keys at {'.'.join(path) or 'its top'}")
    required = cast("list[str]", schema.get("required") or [])
    made = {name: _strict(each, root, (*path, "properties", name), inside) for name, each in properties.items()}
    nullable = {name: each if name in required else _nullable(each) for name, each in made.items()}
    return {
        "type": "object",
        "properties": cast(JsonValue, nullable),
        "required": [*properties],
        "additionalProperties": False,
    }


def _referred(
    schema: dict[str, JsonValue], root: Schema, path: tuple[str, ...], inside: frozenset[str]
) -> dict[str, JsonValue]:
    """Return a reference as it is; one with other keywords beside it inlined, since `$ref` stands alone."""
    name, others = (
        str(schema["$ref"]),
        {key: value for key, value in schema.items() if key not in ("$ref", "$defs", "definitions")},
    )
    target: JsonValue = dict(root)
    for part in name.removeprefix("#").strip("/").split("/") if name != "#" else ():
        target = cast(Schema, target).get(part) if isinstance(target, dict) else None
    if not name.startswith("#") or not isinstance(target, dict):
        raise UnfitError(f"there is no {name!r}")
    is_top = not path
    if (not others and not is_top) or name in inside:  # recursive schemas keep their references
        return {"$ref": name}
    defs = {key: value for key, value in schema.items() if key in ("$defs", "definitions")}
    return _strict({**target, **others, **defs}, root, path, inside | {name})


def _nullable(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if _accepts_null(schema):
        return schema
    if "enum" not in schema and isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _accepts_null(schema: Schema) -> bool:
    if not schema.keys() & {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"}:
        return True
    if _has_type(schema, "null") or None in cast("list[JsonValue]", schema.get("enum") or []):
        return True
    options = [*cast("list[Schema]", schema.get("anyOf") or []), *cast("list[Schema]", schema.get("oneOf") or [])]
    return any(_accepts_null(each) for each in options)


def _has_type(schema: Schema, name: str) -> bool:
    kind = schema.get("type")
    return kind == name or (isinstance(kind, list) and name in kind)


def _objects(schema: JsonValue) -> Iterator[Schema]:
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            yield schema
        for each in schema.values():
            yield from _objects(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _objects(each)


def without_fillers(value: JsonValue, schema: Schema, root: Schema | None = None) -> JsonValue:
    """Return an answer without the nulls of optional keys that do not accept null: the strict form requires these keys."""
    root = schema if root is None else root
    schema = _resolved(schema, root)
    if isinstance(value, list) and isinstance(items := schema.get("items"), dict):
        return [without_fillers(each, items, root) for each in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        options = [*cast("list[Schema]", schema.get("anyOf") or []), *cast("list[Schema]", schema.get("oneOf") or [])]
        objects = [each for each in (_resolved(option, root) for option in options) if _is_meant(value, each)]
        return without_fillers(value, objects[0], root) if len(objects) == 1 else value
    required = cast("list[str]", schema.get("required") or [])
    known = {name: _resolved(each, root) for name, each in properties.items() if isinstance(each, dict)}
    return {
        name: without_fillers(each, known.get(name, {}), root)
        for name, each in value.items()
        if each is not None or name not in known or name in required or _accepts_null(known[name])
    }


def _is_meant(value: Mapping[str, JsonValue], option: Schema) -> bool:
    """Return whether an object may be one of this option, by its fixed words, as of a discriminator."""
    properties = option.get("properties")
    if not isinstance(properties, dict):
        return False
    fixed = {name: each["const"] for name, each in properties.items() if isinstance(each, dict) and "const" in each}
    return all(name not in value or value[name] == word for name, word in fixed.items())


def _resolved(schema: Schema, root: Schema) -> Schema:
    """Return the schema that a local reference names; any other schema as it is."""
    target: JsonValue = dict(root)
    for part in str(schema["$ref"]).removeprefix("#").strip("/").split("/") if "$ref" in schema else ():
        target = target.get(part) if isinstance(target, dict) else None
    return target if "$ref" in schema and isinstance(target, dict) and "$ref" not in target else schema


# --- tools ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FittedTools:
    """Tools in the form that a provider takes."""

    tools: tuple[ToolSchema, ...]
    left_out: Mapping[str, str]
    """Tools that have no such form → why."""
    changed: Mapping[str, str]
    """Tools that say less in that form than they did → what is changed."""


def fit_tools(tools: Sequence[ToolSchema], provider: str) -> FittedTools:
    """Return tools as a provider takes them: descriptions cut, arrays with items, objects at the top; and those that do not fit."""
    takes, fitted, left_out, changed = taken_by(provider), list[ToolSchema](), dict[str, str](), dict[str, list[str]]()
    for tool in tools:
        if takes.max_tools is not None and len(fitted) >= takes.max_tools:
            left_out[tool.name] = f"{provider} takes {takes.max_tools} tools, and {len(fitted)} come before it"
            continue
        try:
            if takes.inlines and not has_bounded_copies(tool.parameters):
                raise UnfitError(f"{provider} takes no references, and copies in their place are too many")
            parameters = _tool_form(tool.parameters) if takes.array_items else tool.parameters
        except UnfitError as error:
            left_out[tool.name] = str(error)
            continue
        except (AttributeError, RecursionError, TypeError):  # of an MCP server, which declares what it likes
            left_out[tool.name] = "its parameters are no JSON Schema"
            continue
        text = tool.description
        if len(tool.name) > MAX_NAME_CHARS:
            changed[tool.name] = [f"its name has more than {MAX_NAME_CHARS} characters, and is cut"]
        if takes.max_description is not None and len(text) > takes.max_description:
            changed.setdefault(tool.name, []).append(
                f"its description has {len(text):,} characters, and is cut to {takes.max_description:,}"
            )
            text = f"{text[: takes.max_description - 1]}…"
        if takes.array_items and parameters != {"type": "object", **tool.parameters}:
            changed.setdefault(tool.name, []).append(_change(tool.parameters))
        fitted.append(tool.model_copy(update={"parameters": parameters, "description": text}))
    return FittedTools(tuple(fitted), left_out, {name: "; ".join(changes) for name, changes in changed.items()})


def _change(schema: Schema) -> str:
    if schema.keys() & {*_COMBINATORS, "enum", "not"}:
        return "its schema has alternatives at the top, which become one object with the keys of all"
    return "an array of its schema has no 'items', or one schema for each place: it gets one for all"


def _tool_form(schema: Schema) -> dict[str, JsonValue]:
    """Return the schema of a tool's arguments as an object without combinators at its top, whose arrays have items."""
    if schema.get("type", "object") != "object":
        raise UnfitError(f"its schema is of type {json.dumps(schema.get('type'))}, and arguments are an object")
    found = {name: value for name, value in schema.items() if name not in (*_COMBINATORS, "enum", "not")}
    if schema.keys() & {*_COMBINATORS}:
        found = _merged(
            found,
            [cast(Schema, each) for name in _COMBINATORS for each in cast("list[JsonValue]", schema.get(name) or [])],
            schema,
        )
    return cast("dict[str, JsonValue]", _with_items({"type": "object", **found}))


def _merged(found: dict[str, JsonValue], parts: Sequence[Schema], schema: Schema) -> dict[str, JsonValue]:
    """Return one object with the properties of all alternatives; required is what each of them requires."""
    properties = dict(cast(Schema, found.get("properties") or {}))
    for part in parts:
        if not isinstance(part, dict) or "$ref" in part:
            raise UnfitError("its schema has alternatives at the top that are references")
        properties |= {
            name: each for name, each in cast(Schema, part.get("properties") or {}).items() if name not in properties
        }
    own = set(cast("list[str]", found.get("required") or []))
    each_requires = [set(cast("list[str]", part.get("required") or [])) for part in parts]
    shared = (
        set.union(*each_requires) if "allOf" in schema else set.intersection(*each_requires) if each_requires else set()
    )
    return {**found, "properties": properties, "required": cast(JsonValue, sorted(own | shared))}


def _with_items(schema: JsonValue) -> JsonValue:
    """Return a schema whose arrays all have items; those of a tuple are any of its items."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name in ("properties", "$defs", "definitions", "patternProperties"):
        if isinstance(named := found.get(name), dict):
            found[name] = {key: _with_items(each) for key, each in named.items()}
    for name in (*_COMBINATORS, "prefixItems"):
        if isinstance(parts := found.get(name), list):
            found[name] = [_with_items(each) for each in parts]
    for name in ("items", "additionalProperties", "not"):
        if name in found:
            found[name] = _with_items(found[name])
    prefix = found.pop("prefixItems", None)
    if isinstance(prefix, list) and not isinstance(found.get("items"), dict):
        kinds = [each for number, each in enumerate(prefix) if each not in prefix[:number]]
        found["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {}
    elif _has_type(found, "array") and not isinstance(found.get("items"), dict):
        found["items"] = {}
    return found
