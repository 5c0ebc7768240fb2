"""What the scripted server refuses as a provider does, and that nothing which we send is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantata.flows.provider_schemas import fit_tools, response_format
from cantata.testing import ScriptedModels
from cantata.testing.refusals import CHECKS, PROVIDERS, Provider, refusal_of
from cantata.values import ToolSchema

USER = {"role": "user", "content": "go"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SIGNED = {**CALL, "extra_content": {"google": {"thought_signature": "s"}}}
CALLS, RESULT = (
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "1"},
)
OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
OPTIONAL = {**OBJECT, "properties": {"x": {}}, "additionalProperties": False}


def tool(name: str = "f", description: str = "", **parameters: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": {**OBJECT, **parameters}},
    }


def structured(schema: dict[str, Any], *, strict: bool = True) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


CASES: dict[str, tuple[tuple[Provider, ...], dict[str, Any], str]] = {
    "call without result": (PROVIDERS, {"messages": [USER, CALLS, USER]}, "no results right behind them: c1"),
    "result without call": (PROVIDERS, {"messages": [USER, RESULT]}, "must follow a message with its call"),
    "no calls": (("openai",), {"messages": [USER, {"role": "assistant", "content": "x", "tool_calls": []}]}, "too short"),
    "nothing said": (("openai",), {"messages": [USER, {"role": "assistant", "content": None}]}, "null"),
    "empty text": (("anthropic",), {"messages": [{"role": "user", "content": ""}]}, "non-empty"),
    "space": (("anthropic",), {"messages": [USER, {"role": "assistant", "content": "so "}]}, "trailing whitespace"),
    "call first": (("gemini",), {"messages": [CALLS, RESULT]}, "immediately after a user turn"),
    "no signature": (("gemini",), {"messages": [USER, {**CALLS, "tool_calls": [SIGNED]}, RESULT, CALLS, RESULT]}, "thought_signature"),
    "no reasoning": (("deepseek",), {"messages": [USER, {**CALLS, "reasoning_content": "r"}, RESULT, CALLS, RESULT]}, "passed back"),
    "bad name": (("openai", "anthropic", "deepseek"), {"tools": [tool("a b")]}, "does not match pattern"),
    "one name twice": (("openai", "anthropic", "deepseek"), {"tools": [tool(), tool()]}, "unique"),
    "many tools": (("openai", "deepseek"), {"tools": [tool(f"t{number}") for number in range(129)]}, "maximum length 128"),
    "long description": (("openai",), {"tools": [tool(description="x" * 1025)]}, "maximum length 1024"),
    "alternatives": (("openai", "anthropic"), {"tools": [tool(anyOf=[])]}, "at the top level"),
    "items": (("openai", "gemini"), {"tools": [tool(properties={"x": {"type": "array"}})]}, "array schema missing items"),
    "required": (("gemini",), {"tools": [tool(required=["x"])]}, "property is not defined"),
    "open": (("openai", "deepseek"), {"response_format": structured(OBJECT)}, ""),
    "optional": (("openai", "deepseek"), {"response_format": structured(OPTIONAL)}, ""),
    "schema": (("deepseek",), {"response_format": structured(OBJECT, strict=False)}, "unavailable now"),
    "json": (("openai", "deepseek"), {"messages": [USER], "response_format": {"type": "json_object"}}, "the word 'json'"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_provider_refuses_its_own(case: str) -> None:
    refusing, body, message = CASES[case]

    found = {provider: refusal_of(body, provider) for provider in PROVIDERS}

    assert {provider for provider, refusal in found.items() if refusal} == {*refusing}
    assert all(message in refusal.message and refusal.source for refusal in found.values() if refusal)


def test_each_check_has_a_case_and_a_source() -> None:
    refused = {
        (provider, refusal.source)
        for _, body, _ in CASES.values()
        for provider in PROVIDERS
        if (refusal := refusal_of(body, provider))
    }

    assert {(provider, check.source) for check in CHECKS for provider in check.by} == refused


def test_a_usual_conversation_is_refused_by_nobody() -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "system", "content": "s"}, USER, CALLS, RESULT, {"role": "assistant", "content": "done"}],
        "tools": [tool()],
    }

    assert [refusal_of(body, provider) for provider in PROVIDERS] == [None] * 4


def test_the_server_refuses_uses_no_rule_for_it_and_says_why_in_its_journal() -> None:
    with ScriptedModels([{"reply": "once", "times": 1}], refuse_like="deepseek") as server:
        url = f"{server.url}/chat/completions"
        refused = httpx.post(url, json={"model": "m", "messages": [USER], "response_format": structured(OBJECT)})
        answered = httpx.post(url, json={"model": "m", "messages": [USER]})
        first, second = server.journal()

    assert (refused.status_code, refused.json()["error"]["message"]) == (
        400,
        "This response_format type is unavailable now",
    )
    assert "litellm" in refused.json()["error"]["source"]
    assert answered.json()["choices"][0]["message"]["content"] == "once"
    assert first["refused"] == "This response_format type is unavailable now"
    assert "refused" not in second


SCHEMAS = st.recursive(
    st.sampled_from([{"type": "string"}, {"type": "array"}, {"type": "integer", "default": 1}, {}, {"enum": ["a", 1]}]),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"type": st.just("array"), "prefixItems": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3)}
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
    ),
    max_leaves=6,
)


@given(st.lists(st.tuples(SCHEMAS, st.integers(0, 2000)), max_size=3), SCHEMAS, st.sampled_from(PROVIDERS))
def test_nothing_that_is_sent_is_refused(
    given_tools: list[tuple[dict[str, Any], int]], answer: dict[str, Any], provider: Provider
) -> None:
    tools = [
        ToolSchema(
            name=f"t{number}", description="x" * length, parameters={"type": "object", "properties": {"x": schema}}
        )
        for number, (schema, length) in enumerate(given_tools)
    ]
    fitted = fit_tools(tools, provider).tools
    functions = [
        {"name": each.name, "description": each.description, "parameters": dict(each.parameters)} for each in fitted
    ]
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "answer in JSON"}],
        "response_format": response_format({"type": "object", "properties": {"a": answer}}, provider),
        **({"tools": [{"type": "function", "function": each} for each in functions]} if functions else {}),
    }  # fmt: skip

    assert refusal_of(body, provider) is None
