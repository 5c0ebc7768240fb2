"""Checks of what model providers refuse, in a request of OpenAI's form; each with where it was reported and when that was read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from pydantic import JsonValue

Body = Mapping[str, JsonValue]
Provider = Literal["openai", "anthropic", "gemini", "deepseek"]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)


@dataclass(frozen=True)
class ProviderCheck:
    """One thing that providers refuse."""

    find: Callable[[Body], Iterator[str]]
    """Yields the provider's messages about a request."""
    by: tuple[Provider, ...]
    source: str


@dataclass(frozen=True)
class Refusal:
    """A refused request: the reason in the provider's words, and the source of that knowledge."""

    message: str
    source: str


def refusal_of(body: Body, provider: Provider) -> Refusal | None:
    """Return why a provider would refuse a request; None if it would not, as far as it is known."""
    for check in CHECKS:
        if provider in check.by and (message := next(check.find(body), None)):
            return Refusal(message, check.source)
    return None


# --- messages ---------------------------------------------------------------------------------------------------------


def _unanswered_calls(body: Body) -> Iterator[str]:
    """Yield calls of tools without their results right behind them, and results without their calls."""
    waiting: set[str] = set()
    for number, message in enumerate(_objects(body.get("messages"))):
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in waiting:
                yield f"messages[{number}]: the result of a tool must follow a message with its call"
            waiting.discard(str(message.get("tool_call_id")))
            continue
        if waiting:
            break
        waiting = {str(call.get("id")) for call in _objects(message.get("tool_calls"))}
    if waiting:
        yield f"calls of tools have no results right behind them: {', '.join(sorted(waiting))}"


def _empty_messages(body: Body) -> Iterator[str]:
    for number, message in enumerate(_objects(body.get("messages"))):
        if message.get("tool_calls") == []:
            yield f"messages[{number}].tool_calls: [] is too short"
        if message.get("role") == "assistant" and not message.get("tool_calls") and message.get("content") is None:
            yield f"messages[{number}].content: null is not allowed without calls of tools"


def _empty_texts(body: Body) -> Iterator[str]:
    for number, message in enumerate(_objects(body.get("messages"))):
        texts = [part.get("text") for part in _objects(message.get("content")) if part.get("type") == "text"]
        if "" in texts or (
            message.get("content") == "" and not message.get("tool_calls") and message.get("role") != "tool"
        ):
            yield f"messages.{number}: text content blocks must be non-empty"


def _ends_with_a_space(body: Body) -> Iterator[str]:
    last = [*_objects(body.get("messages"))][-1:]
    for message in last:
        content = message.get("content")
        if message.get("role") == "assistant" and isinstance(content, str) and content != content.rstrip():
            yield "messages: final assistant content cannot end with trailing whitespace"


def _calls_before_a_user(body: Body) -> Iterator[str]:
    spoken = [
        message for message in _objects(body.get("messages")) if message.get("role") not in ("system", "developer")
    ]
    if spoken and spoken[0].get("role") == "assistant" and spoken[0].get("tool_calls"):
        yield "Please ensure that function call turn comes immediately after a user turn or after a function response turn."


def _lost_signatures(body: Body) -> Iterator[str]:
    """Yield calls without the signature that others of the conversation have: each message's first call keeps it."""
    calls = [
        [*_objects(message.get("tool_calls"))][:1]
        for message in _objects(body.get("messages"))
        if message.get("tool_calls")
    ]
    signed = ["thought_signature" in json.dumps(call) for call in calls]
    if any(signed) and not all(signed):
        yield f"Function call is missing a thought_signature in functionCall parts. Position {signed.index(False) + 1}."


def _lost_reasoning(body: Body) -> Iterator[str]:
    """Yield messages with calls of tools without the reasoning that others of the conversation have, or thinking demands."""
    asked = body.get("thinking")
    messages = [message for message in _objects(body.get("messages")) if message.get("tool_calls")]
    reasons = ["reasoning_content" in message for message in messages]
    is_thinking = any(reasons) or (isinstance(asked, dict) and asked.get("type") == "enabled")
    if is_thinking and not all(reasons):
        yield "The `reasoning_content` in the thinking mode must be passed back to the API."


# --- tools --------------------------------------------------------------------------------------------------------------


def _tools(body: Body) -> Iterator[Mapping[str, JsonValue]]:
    yield from (
        cast(Body, tool["function"]) for tool in _objects(body.get("tools")) if isinstance(tool.get("function"), dict)
    )


def _bad_names(body: Body) -> Iterator[str]:
    names = [str(tool.get("name")) for tool in _tools(body)]
    for number, name in enumerate(names):
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
            yield f"Invalid 'tools[{number}].function.name': string does not match pattern. Expected '^[a-zA-Z0-9_-]{{1,64}}$'"
    if len({*names}) < len(names):
        yield "Tool names must be unique"


def _too_many_tools(body: Body) -> Iterator[str]:
    if (count := len([*_tools(body)])) > 128:
        yield f"Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length {count} instead."
    if body.get("tools") == []:
        yield "[] is too short - 'tools'"


def _long_descriptions(body: Body) -> Iterator[str]:
    for number, tool in enumerate(_tools(body)):
        if (length := len(str(tool.get("description") or ""))) > 1024:
            what = f"Invalid 'tools[{number}].function.description': string too long"
            yield f"{what}. Expected a string with maximum length 1024, but got a string with length {length} instead."


def _alternatives_at_the_top(body: Body) -> Iterator[str]:
    for number, tool in enumerate(_tools(body)):
        parameters = cast(Body, tool.get("parameters") or {"type": "object"})
        if parameters.get("type") != "object" or parameters.keys() & {"oneOf", "anyOf", "allOf", "enum", "not"}:
            yield f"tools.{number}: the schema must be of type 'object', without oneOf, allOf or anyOf at the top level"


def _arrays_without_items(body: Body) -> Iterator[str]:
    for tool in _tools(body):
        for path in _without_items(tool.get("parameters"), ()):
            yield f"Invalid schema for function {tool.get('name')!r}: In context={path}, array schema missing items."


def _without_items(schema: JsonValue, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(schema, dict):
        if schema.get("type") == "array" and "items" not in schema:
            yield path
        for name, value in schema.items():
            yield from _without_items(value, (*path, name))
    elif isinstance(schema, list):
        for number, value in enumerate(schema):
            yield from _without_items(value, (*path, str(number)))


def _undefined_required(body: Body) -> Iterator[str]:
    for number, tool in enumerate(_tools(body)):
        parameters = cast(Body, tool.get("parameters") or {})
        properties, required = parameters.get("properties") or {}, parameters.get("required") or []
        for place, name in enumerate(cast("Sequence[str]", required)):
            if name not in cast(Body, properties):
                where = f"tools[0].function_declarations[{number}].parameters.required[{place}]"
                yield f"* GenerateContentRequest.{where}: property is not defined"


# --- structured output ------------------------------------------------------------------------------------------------


def _open_schemas(body: Body) -> Iterator[str]:
    """Yield what a strict schema lacks: each object is closed, and requires all its properties."""
    wanted = body.get("response_format")
    form = wanted.get("json_schema") if isinstance(wanted, dict) else None
    if not isinstance(form, dict) or not form.get("strict") or not isinstance(schema := form.get("schema"), dict):
        return
    if schema.get("type") != "object":
        yield f"Invalid schema for response_format: schema must be a JSON Schema of 'type: \"object\"', got {schema.get('type')!r}."
    for path, fault in _strict_faults(schema, ()):
        yield f"Invalid schema for response_format: In context={path}, {fault}"


def _strict_faults(schema: JsonValue, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" or "properties" in schema:
        properties = cast(Body, schema.get("properties") or {})
        if schema.get("additionalProperties") is not False:
            yield path, "'additionalProperties' is required to be supplied and to be false."
        if missing := sorted(properties.keys() - {*cast("list[str]", schema.get("required") or [])}):
            yield (
                path,
                f"'required' is required to be an array including every key in properties. Missing {missing[0]!r}.",
            )
    for name in ("properties", "$defs", "definitions"):
        for key, value in cast(Body, schema.get(name) or {}).items():
            yield from _strict_faults(value, (*path, name, key))
    yield from _strict_faults(schema.get("items"), (*path, "items"))
    for number, value in enumerate(cast("list[JsonValue]", schema.get("anyOf") or [])):
        yield from _strict_faults(value, (*path, "anyOf", str(number)))


def _json_schemas(body: Body) -> Iterator[str]:
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        yield "This response_format type is unavailable now"


def _json_unnamed(body: Body) -> Iterator[str]:
    wanted = body.get("response_format")
    if (
        isinstance(wanted, dict)
        and wanted.get("type") == "json_object"
        and "json" not in json.dumps(body.get("messages")).lower()
    ):
        yield "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'."


def _objects(value: JsonValue) -> Iterator[Body]:
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))


_OPENAI: tuple[Provider, ...] = ("openai",)
CHECKS: Sequence[ProviderCheck] = (
    ProviderCheck(_empty_messages, _OPENAI, "platform.openai.com/docs/api-reference/chat/create: messages"),
    ProviderCheck(
        _unanswered_calls,
        PROVIDERS,
        "github.com/anthropics/claude-code/issues/8210, read 2026-11-27; OpenAI's API reference: messages",
    ),
    ProviderCheck(_empty_texts, ("anthropic",), "docs.anthropic.com/en/api/errors: invalid_request_error"),
    ProviderCheck(_ends_with_a_space, ("anthropic",), "docs.anthropic.com/en/api/errors: invalid_request_error"),
    ProviderCheck(
        _calls_before_a_user, ("gemini",), "github.com/google-gemini/gemini-cli/issues/11814, read 2026-11-27"
    ),
    ProviderCheck(
        _lost_signatures,
        ("gemini",),
        "ai.google.dev/gemini-api/docs/thought-signatures; github.com/nearai/ironclaw/issues/1510, read 2026-11-27",
    ),
    ProviderCheck(_lost_reasoning, ("deepseek",), "github.com/decolua/9router/issues/773, read 2026-11-27"),
    ProviderCheck(
        _bad_names, ("openai", "anthropic", "deepseek"), "platform.openai.com/docs/api-reference/chat/create: tools"
    ),
    ProviderCheck(_too_many_tools, ("openai", "deepseek"), "github.com/julep-ai/julep/issues/330, read 2026-11-27"),
    ProviderCheck(_long_descriptions, _OPENAI, "github.com/getsentry/sentry-mcp/issues/106, read 2026-11-27"),
    ProviderCheck(
        _alternatives_at_the_top,
        ("openai", "anthropic"),
        "github.com/dearlordylord/huly-mcp/issues/66, read 2026-11-27",
    ),
    ProviderCheck(
        _arrays_without_items,
        ("openai", "gemini"),
        "github.com/mark3labs/mcphost/issues/35, read 2026-11-27; for Gemini NoeFabris/opencode-antigravity-auth issue 80",
    ),
    ProviderCheck(_undefined_required, ("gemini",), "github.com/iBUHub/AIStudioToAPI/issues/154, read 2026-11-27"),
    ProviderCheck(_open_schemas, _OPENAI, "platform.openai.com/docs/guides/structured-outputs: supported schemas"),
    ProviderCheck(_json_schemas, ("deepseek",), "github.com/BerriAI/litellm/pull/31466, read 2026-11-27"),
    ProviderCheck(
        _json_unnamed, ("openai", "deepseek"), "github.com/browserbase/stagehand/issues/1204, read 2026-11-27"
    ),
)
