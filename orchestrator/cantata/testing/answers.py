"""Answers of a scripted model as OpenAI's chat completions. The same request always gets the same answer."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import cast

from pydantic import JsonValue

from cantata.testing.rules import Rule, ToolCall
from cantata.values import as_text

JsonObject = dict[str, JsonValue]

ARGUMENTS_PIECE = 8  # characters of a call's arguments in one piece of a stream
CREATED = 1_700_000_000  # a fixed time, so that answers can be compared


def last_user_text(body: Mapping[str, JsonValue]) -> str:
    """Return the text of the last user message of a request; "" if there is none."""
    texts = [_text(message) for message in _messages(body) if message.get("role") == "user"]
    return texts[-1] if texts else ""


def tool_results(body: Mapping[str, JsonValue]) -> int:
    """Return the number of tool results among the messages of a request."""
    return sum(1 for message in _messages(body) if message.get("role") == "tool")


def completion(rule: Rule, body: Mapping[str, JsonValue]) -> JsonObject:
    """Return the whole answer of a rule to a request."""
    text, calls = _content(rule, body)
    message: JsonObject = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = cast(JsonValue, calls)
    choice: JsonObject = {"index": 0, "message": message, "finish_reason": _finish(rule)}
    return {**_head(body, "chat.completion"), "choices": [choice], "usage": _usage(body, text, calls)}


def chunks(rule: Rule, body: Mapping[str, JsonValue]) -> Iterator[JsonObject]:
    """Yield the answer of a rule to a request as chunks of a stream: the text by words, the calls piece by piece, the end, the usage."""
    text, calls = _content(rule, body)
    head = _head(body, "chat.completion.chunk")
    deltas: list[JsonObject] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in re.findall(r"\S+\s*|\s+", text or "")]
    deltas += [{"tool_calls": [piece]} for index, call in enumerate(calls) for piece in _pieces(index, call)]
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(rule)}]}
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield {**head, "choices": [], "usage": _usage(body, text, calls)}


def fault(rule: Rule) -> JsonObject:
    """Return the body of an error response."""
    message = rule.reply if isinstance(rule.reply, str) else f"scripted error {rule.status}"
    return {"error": {"message": message, "type": "scripted", "param": None, "code": None}}


def instance(schema: Mapping[str, JsonValue], seed: int) -> JsonValue:
    """Return a value that a JSON schema accepts, chosen by `seed`; sufficient for schemas of answers, not for all of JSON Schema."""
    return _Instance(schema, seed).of(schema)


class _Instance:
    def __init__(self, root: Mapping[str, JsonValue], seed: int) -> None:
        self.root = root
        self.seed = seed

    def of(self, schema: Mapping[str, JsonValue]) -> JsonValue:
        if "$ref" in schema:
            return self.of(self._definition(str(schema["$ref"])))
        if "const" in schema:
            return schema["const"]
        options = schema.get("enum") or schema.get("anyOf") or schema.get("oneOf")
        if isinstance(options, list):
            option = options[self.seed % len(options)]
            return option if "enum" in schema else self.of(cast(JsonObject, option))
        kinds = schema.get("type", "object" if "properties" in schema else "string")
        return self._of_kind(str(kinds[0] if isinstance(kinds, list) else kinds), schema)

    def _of_kind(self, kind: str, schema: Mapping[str, JsonValue]) -> JsonValue:
        match kind:
            case "object":
                properties = cast("dict[str, JsonObject]", schema.get("properties", {}))
                return {name: self.of(inner) for name, inner in properties.items()}
            case "array":
                return [self.of(cast(JsonObject, schema.get("items", {})))] * max(
                    1, int(cast(int, schema.get("minItems", 1)))
                )
            case "integer" | "number":
                return schema.get("minimum", schema.get("maximum", self.seed % 10))
            case "boolean":
                return self.seed % 2 == 0
            case "null":
                return None
            case _:
                return f"text-{self.seed}"

    def _definition(self, reference: str) -> JsonObject:
        found: JsonValue = cast(JsonValue, self.root)
        for part in reference.removeprefix("#/").split("/"):
            found = cast(JsonObject, found)[part]
        return cast(JsonObject, found)


def _content(rule: Rule, body: Mapping[str, JsonValue]) -> tuple[str | None, list[JsonObject]]:
    before = sum(len(made) for message in _messages(body) if isinstance(made := message.get("tool_calls"), list))
    calls = [_call(before + number, call) for number, call in enumerate(rule.tool_calls)]
    if rule.reply is None:
        return (None if calls else _echo(body)), calls
    return as_text(rule.reply), calls


def _call(number: int, call: ToolCall) -> JsonObject:
    text = as_text(call.arguments)
    function: JsonObject = {"arguments": text} if call.name is None else {"name": call.name, "arguments": text}
    head: JsonObject = {} if call.id is None else {"id": call.id or f"call_{number}"}
    return {**head, "type": "function", "function": function}


def _pieces(index: int, call: JsonObject) -> Iterator[JsonObject]:
    """Yield a call as chunks of a stream: first all but its arguments, then these piece by piece."""
    function = cast(JsonObject, call["function"])
    text = str(function["arguments"])
    yield {"index": index, **call, "function": {**function, "arguments": ""}}
    for start in range(0, len(text), ARGUMENTS_PIECE):
        yield {"index": index, "function": {"arguments": text[start : start + ARGUMENTS_PIECE]}}


def _echo(body: Mapping[str, JsonValue]) -> str:
    """Return the last user message, or a value of the requested schema, chosen by that message."""
    text = last_user_text(body)
    match body.get("response_format"):
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return json.dumps(instance(schema, zlib.crc32(text.encode())), ensure_ascii=False)
        case {"type": "json_object"}:
            return json.dumps({"echo": text}, ensure_ascii=False)
    return f"echo: {text}"


def _head(body: Mapping[str, JsonValue], kind: str) -> JsonObject:
    return {"id": "chatcmpl-scripted", "object": kind, "created": CREATED, "model": str(body.get("model", ""))}


def _finish(rule: Rule) -> str | None:
    if rule.finish_reason is not None:
        return rule.finish_reason or None
    return "tool_calls" if rule.tool_calls else "stop"


def _usage(body: Mapping[str, JsonValue], text: str | None, calls: list[JsonObject]) -> JsonObject:
    """Return the usage; tokens are counted as words."""
    asked = sum(len(_text(message).split()) for message in _messages(body))
    answered = len((text or "").split()) + sum(len(json.dumps(call).split()) for call in calls)
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


def _messages(body: Mapping[str, JsonValue]) -> list[JsonObject]:
    messages = body.get("messages")
    return [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []


def _text(message: Mapping[str, JsonValue]) -> str:
    content = message.get("content")
    if isinstance(content, list):  # parts: [{type: text, text: ...}, {type: image_url, ...}]
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
