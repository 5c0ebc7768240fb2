"""Messages and tools in the format of OpenAI's chat completions, with names and arguments that every provider accepts.

Providers accept letters, digits, `_` and `-` in names of tools, while ours may have dots (`files.read`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeGuard, cast

from cantata.errors import ModelError
from cantata.flows.provider_schemas import MAX_NAME_CHARS
from cantata.values import JsonValue, ToolSchema
from cantata_workers.models.dialects.call_parsing import UNKNOWN_FUNCTION
from cantata_workers.models.local.labels import EnumField

Message = Mapping[str, JsonValue]
Messages = Sequence[Message]
JsonObject = dict[str, JsonValue]

ANSWER = "Your answer is JSON, and nothing else, that fits this JSON schema:"
CHOICES = ("auto", "none", "required")


def with_examples(messages: Messages, examples: JsonValue, schema: Mapping[str, JsonValue] | None) -> list[Message]:
    """Return the messages with examples as turns after the system messages. Raises ModelError if one is not `{text, label}`."""
    field = EnumField.of(schema) if schema is not None else None
    turns: list[Message] = []
    for example in examples if isinstance(examples, list) else [examples]:
        match example:
            case {"text": str(text), "label": label}:
                turns += [{"role": "user", "content": text}, {"role": "assistant", "content": _answer(label, field)}]
            case _:
                raise ModelError(f"an example is {{text, label}}, not {example!r}", code="model_bad_request")
    first = next((number for number, message in enumerate(messages) if message.get("role") != "system"), len(messages))
    return [*messages[:first], *turns, *messages[first:]]


def with_schema(messages: Messages, schema: Mapping[str, JsonValue]) -> list[Message]:
    """Return the messages with the schema of the answer in the system message, for providers that take no schema."""
    text = f"{ANSWER}\n{json.dumps(schema, ensure_ascii=False)}"
    if messages and messages[0].get("role") == "system":
        return [{**messages[0], "content": f"{messages[0].get('content') or ''}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def text_of_parts(parts: Sequence[object]) -> str:
    """Return the text of a content that is a list of parts, without parts that are no answer, such as thinking."""
    return "".join(each if isinstance(each, str) else str(each.get("text") or "") for each in parts if _is_text(each))


def thoughts_of_parts(parts: Sequence[object]) -> str:
    """Return the text of the thinking parts of a content, as Mistral and Anthropic write them."""
    thoughts = [each["thinking"] for each in parts if isinstance(each, dict) and each.get("thinking")]
    return "".join(text_of_parts(each) if isinstance(each, list) else str(each) for each in thoughts)


def _is_text(part: object) -> TypeGuard[str | dict[str, object]]:
    return isinstance(part, str) or (isinstance(part, dict) and part.get("type", "text") in ("text", "output_text"))


def calls_in(messages: Messages) -> Iterator[JsonObject]:
    """Yield the tool calls in messages."""
    for message in messages:
        calls = message.get("tool_calls")
        yield from (call for call in calls if isinstance(call, dict)) if isinstance(calls, list) else ()


def tool_names_in(messages: Messages) -> Iterator[str]:
    """Yield the names of the tools that are called in messages."""
    return (str(cast(JsonObject, call.get("function") or {}).get("name") or "") for call in calls_in(messages))


def functions(tools: Sequence[ToolSchema], names: ToolNames) -> list[JsonObject]:
    """Return the tools as functions of a request."""
    return [
        {
            "type": "function",
            "function": {
                "name": names.wire(tool.name),
                "description": tool.description,
                "parameters": {"type": "object", "properties": {}, **tool.parameters},
            },
        }
        for tool in tools
    ]


def choice(tool_choice: str, names: ToolNames) -> JsonValue:
    """Return a tool choice: `auto`, `none` or `required` as they are, else the one tool that must be called."""
    return (
        tool_choice if tool_choice in CHOICES else {"type": "function", "function": {"name": names.wire(tool_choice)}}
    )


def on_the_wire(message: Message, names: ToolNames) -> Message:
    """Return the message with the provider's names of tools."""
    if message.get("role") == "tool" and "name" in message:
        return {**message, "name": names.wire(str(message["name"] or ""))}
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_call(call, names) if isinstance(call, dict) else call for call in calls]}


def _call(call: JsonObject, names: ToolNames) -> JsonObject:
    function = cast(JsonObject, call.get("function") or {})
    name, arguments = str(function.get("name") or ""), str(function.get("arguments") or "{}")
    return {
        **call,
        "type": "function",
        "function": {**function, "name": names.wire(name), "arguments": _arguments(arguments)},
    }


def _arguments(text: str) -> str:
    """Return a JSON object as it is, and any other text inside one: all providers but OpenAI refuse other arguments."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    return text if isinstance(value, dict) else json.dumps({"invalid": text}, ensure_ascii=False)


def _answer(label: JsonValue, field: EnumField | None) -> str:
    if not isinstance(label, str):
        return json.dumps(label, ensure_ascii=False)
    return field.to_json(label) if field and label in field.labels else label


@dataclass(frozen=True)
class ToolNames:
    """The mapping between our names of tools and those on the wire."""

    wires: Mapping[str, str]
    owns: Mapping[str, str]

    @classmethod
    def of(cls, names: Iterable[str]) -> ToolNames:
        """Return the names for these tools. Of two with one wire name, a name that needs no change keeps it; the other gets a hash."""
        wires: dict[str, str] = {}
        for name in sorted(dict.fromkeys(names), key=lambda name: _wire(name) != name):
            wire = _wire(name)
            wires[name] = wire if wire not in wires.values() else _hashed(wire, name)
        return cls(wires, {wire: name for name, wire in wires.items()})

    def wire(self, name: str) -> str:
        """Return the wire name of a tool."""
        return self.wires.get(name) or _wire(name)

    def own(self, wire: str) -> str:
        """Return our name for a wire name; an unknown one unchanged."""
        return self.owns.get(wire, wire)


def _wire(name: str) -> str:
    wire = re.sub(r"[^A-Za-z0-9_-]", "_", name.replace(".", "__")) or UNKNOWN_FUNCTION
    if not re.match(r"[A-Za-z_]", wire):
        wire = f"_{wire}"  # Gemini requires it
    return wire if len(wire) <= MAX_NAME_CHARS else _hashed(wire, name)


def _hashed(wire: str, name: str) -> str:
    digest = sha256(name.encode()).hexdigest()[:8]
    return f"{wire[: MAX_NAME_CHARS - len(digest) - 1]}_{digest}"
