"""Schemas in the form that each provider takes: nothing that it is known to refuse, and the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from cantata.flows.provider_schemas import (
    PROVIDERS,
    UnfitError,
    fit_tools,
    response_format,
    strict_form,
    without_fillers,
)
from cantata.values import JsonValue, ToolSchema


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]


class Line(BaseModel):
    sku: str = Field(description="of the shop")
    note: str | None = None
    pet: Cat | Dog = Field(discriminator="kind", description="one of them")


class Bill(BaseModel):
    lines: list[Line]
    parent: Bill | None = None
    total: float = Field(default=0.0, ge=0)


def refused(schema: JsonValue, path: str = "$") -> Iterator[str]:
    """What OpenAI refuses in a strict schema."""
    if not isinstance(schema, dict):
        return
    if "$ref" in schema and len(schema) > 1:
        yield f"{path}: $ref with other keywords"
    if schema.get("type") == "object" or "properties" in schema:
        if schema.get("additionalProperties") is not False:
            yield f"{path}: open"
        if schema.get("required") != [*schema.get("properties", {})]:  # type: ignore[misc]
            yield f"{path}: not all required"
    yield from (
        f"{path}: {name}"
        for name in schema.keys() & {"default", "oneOf", "allOf", "prefixItems", "patternProperties", "const"}
    )
    for name in ("properties", "$defs"):
        named = schema.get(name)
        for key, each in named.items() if isinstance(named, dict) else ():
            yield from refused(each, f"{path}.{key}")
    yield from refused(schema.get("items"), f"{path}[]")
    options = schema.get("anyOf")
    for each in options if isinstance(options, list) else ():
        yield from refused(each, f"{path}|")


@pytest.mark.parametrize("model", [Cat, Line, Bill])
def test_the_schema_of_a_pydantic_model_has_a_strict_form(model: type[BaseModel]) -> None:
    form = strict_form(model.model_json_schema())

    assert list(refused(form)) == []
    Draft202012Validator.check_schema(form)


def test_an_answer_by_the_strict_form_fits_the_schema_itself() -> None:
    schema = Bill.model_json_schema()
    answer: JsonValue = {
        "lines": [{"sku": "a", "note": None, "pet": {"kind": "cat", "lives": None}}],
        "parent": None,
        "total": None,
    }

    assert list(Draft202012Validator(strict_form(schema)).iter_errors(answer)) == []
    assert Bill.model_validate(without_fillers(answer, schema)) == Bill(lines=[Line(sku="a", pet=Cat(kind="cat"))])


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object"}, "an object may have any keys at its top"),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, "an object may have any keys at properties.a"),
        ({"type": "object", "properties": {"a": {}}}, "any value is allowed at properties.a"),
        (
            {"type": "object", "properties": {"a": {"type": "array"}}},
            "an array has no schema for its items, at properties.a",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "patternProperties": {}},
            "have no 'patternProperties'",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
            "an object may have any keys",
        ),
        ({"type": "array", "items": {"type": "string"}}, 'the schema is of type "array"'),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "there is no '#/.defs/b'"),
    ],
)
def test_a_schema_without_a_strict_form_is_sent_without_strict(schema: dict[str, JsonValue], reason: str) -> None:
    with pytest.raises(UnfitError, match=reason.replace("'", ".")):
        strict_form(schema)

    assert response_format(schema, "openai") == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema},
    }


def test_each_provider_gets_what_it_takes_and_a_server_of_your_own_the_plain_form() -> None:
    schema = Cat.model_json_schema()
    formats: dict[str, Any] = {
        name: response_format(schema, name) for name in (*PROVIDERS, "hosted_vllm", "ollama", "my-server")
    }

    assert {name for name, found in formats.items() if found.get("json_schema", {}).get("strict")} == {
        "openai",
        "azure",
    }
    assert formats["deepseek"] == {"type": "json_object"}
    assert formats["my-server"]["json_schema"]["schema"] == schema
    assert (
        fit_tools([ToolSchema(name="t", description="x" * 5000, parameters={"type": "array"})], "my-server").left_out
        == {}
    )
    assert all(found.source for found in PROVIDERS.values())


SCHEMAS = st.recursive(
    st.sampled_from(
        [{}, {"type": "array"}, {"type": "string"}, {"type": ["array", "null"]}, {"enum": [1]}, {"default": []}]
    ),
    lambda each: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["array", "object"]),
            "items": each,
            "prefixItems": st.lists(each, max_size=2),
            "anyOf": st.lists(each, max_size=2),
            "properties": st.dictionaries(st.sampled_from(["a", "type", "items", "enum"]), each, max_size=2),
            "additionalProperties": each,
        },
    ),
    max_leaves=8,
)


def arrays_without_items(schema: Any) -> Iterator[Any]:
    if isinstance(schema, dict):
        kind = schema.get("type")
        if (kind == "array" or (isinstance(kind, list) and "array" in kind)) and "items" not in schema:
            yield schema
        for name, each in schema.items():
            if name in ("properties", "$defs"):
                for part in each.values():
                    yield from arrays_without_items(part)
            elif name in ("items", "additionalProperties"):
                yield from arrays_without_items(each)
            elif name in ("anyOf", "oneOf", "allOf", "prefixItems"):
                for part in each:
                    yield from arrays_without_items(part)


@given(SCHEMAS)
def test_whatever_a_tool_declares_no_provider_refuses_all_tools_for_it(schema: dict[str, JsonValue]) -> None:
    ping = ToolSchema(name="ping", parameters={"type": "object", "properties": {}})

    for provider in ("openai", "gemini"):
        fitted = fit_tools([ToolSchema(name="odd", parameters=schema), ping], provider)
        assert fitted.tools[-1] == ping
        assert {tool.name for tool in fitted.tools} | fitted.left_out.keys() == {"odd", "ping"}
        for tool in fitted.tools:
            assert tool.parameters["type"] == "object"
            assert not tool.parameters.keys() & {"anyOf", "oneOf", "allOf", "not", "enum"}
            assert list(arrays_without_items(tool.parameters)) == []


def test_alternatives_at_the_top_become_one_object_with_what_all_of_them_require() -> None:
    by_id: JsonValue = {
        "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
        "required": ["id", "name"],
    }
    by_name: JsonValue = {"properties": {"name": {"type": "string"}}, "required": ["name"]}

    (tool,) = fit_tools([ToolSchema(name="t", parameters={"anyOf": [by_id, by_name]})], "openai").tools

    assert tool.parameters == {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
        "required": ["name"],
    }


def test_a_tuple_becomes_an_array_of_its_kinds() -> None:
    at: JsonValue = {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}], "minItems": 2}
    schema: dict[str, JsonValue] = {"type": "object", "properties": {"at": at}}

    (tool,) = fit_tools([ToolSchema(name="near", parameters=schema)], "openai").tools

    assert tool.parameters["properties"] == {"at": {"type": "array", "items": {"type": "number"}, "minItems": 2}}


def test_tools_beyond_the_limit_are_left_out_by_name_and_long_descriptions_are_cut() -> None:
    tools = [
        ToolSchema(name=f"t{number}", description="x" * 2000, parameters={"type": "object"}) for number in range(130)
    ]

    found = fit_tools(tools, "openai")

    assert len(found.tools) == 128
    assert found.left_out == dict.fromkeys(["t128", "t129"], "openai takes 128 tools, and 128 come before it")
    assert {len(tool.description) for tool in found.tools} == {1024}


def multiplying(levels: int) -> dict[str, JsonValue]:
    """A schema of a few hundred bytes, whose references stand for 2^levels copies."""
    definitions: dict[str, JsonValue] = {"a0": {"type": "string"}}
    for level in range(levels):
        reference: JsonValue = {"$ref": f"#/$defs/a{level}"}
        definitions[f"a{level + 1}"] = {"type": "object", "properties": {"x": reference, "y": reference}}
    return {"type": "object", "properties": {"a": {"$ref": f"#/$defs/a{levels}"}}, "$defs": definitions}


@pytest.mark.parametrize("provider", ["bedrock", "gemini", "vertex_ai"])
def test_references_are_not_copied_without_end_for_providers_that_take_none(provider: str) -> None:
    tools = [ToolSchema(name=f"t{levels}", description="", parameters=multiplying(levels)) for levels in (5, 60)]

    fitted = fit_tools(tools, provider)

    assert [tool.name for tool in fitted.tools] == ["t5"]
    assert fitted.left_out == {"t60": f"{provider} takes no references, and copies in their place are too many"}
    assert response_format(multiplying(60), provider) == {"type": "json_object"}
    assert response_format(multiplying(5), provider) != {"type": "json_object"}


def test_other_providers_get_the_references() -> None:
    tool = ToolSchema(name="t", description="", parameters=multiplying(60))

    assert fit_tools([tool], "anthropic").tools[0].parameters["$defs"] == multiplying(60)["$defs"]


@pytest.mark.parametrize(
    "parameters", [{"properties": {"a": 5}, "anyOf": 5}, {"anyOf": [{"properties": 5}]}, {"required": 5, "oneOf": [{}]}]
)
def test_parameters_that_are_no_schema_leave_their_tool_out(parameters: dict[str, JsonValue]) -> None:
    assert fit_tools([ToolSchema(name="t", description="", parameters=parameters)], "openai").left_out == {
        "t": "its parameters are no JSON Schema"
    }


def test_what_a_tool_loses_in_the_form_of_a_provider_is_said() -> None:
    tuples: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"p": {"type": "array", "prefixItems": [{"type": "number"}]}},
    }
    either: dict[str, JsonValue] = {"type": "object", "anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}
    tools = [
        ToolSchema(name="near", description="x" * 1025, parameters=tuples),
        ToolSchema(name="either", parameters=either),
        ToolSchema(name="n" * 65, parameters={"properties": {"a": {"type": "array", "items": {}}}}),
        ToolSchema(name="fine", description="x" * 1024, parameters={"type": "object", "properties": {}}),
    ]
    items = "an array of its schema has no 'items', or one schema for each place: it gets one for all"
    alternatives = "its schema has alternatives at the top, which become one object with the keys of all"
    name = "its name has more than 64 characters, and is cut"

    assert fit_tools(tools, "openai").changed == {
        "near": f"its description has 1,025 characters, and is cut to 1,024; {items}",
        "either": alternatives,
        "n" * 65: name,
    }
    assert fit_tools(tools, "mistral").changed == {"near": items, "either": alternatives, "n" * 65: name}
    assert fit_tools(tools, "my-server").changed == {"n" * 65: name}
