"""Tool calls of a model that is too small to generate them: tools are chosen as labels, their arguments are taken from the message.

Each tool is a label with its description as the example; the label `small talk` stands for no call. Measured with SmolLM2-135M on eight
sets of one to three tools: 47 of 52 messages right.

Texts and numbers among the arguments are taken from the message, as spans of at most three words. So 15 of 17 messages gave the right
arguments; generated freely, 10 did.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic import JsonValue

from cantata.values import as_text
from cantata_workers.models.local.labels import LabelQuestion, Messages

JsonObject = dict[str, JsonValue]

NO_TOOL = "small talk"
CHAT = ("Hello, how are you?", "Thank you very much, goodbye.", "Who are you, and what can you do?")
SPAN_WORDS = 3  # in a span taken from the message
MAX_WORDS = 60  # of the message, from which spans are taken
MAX_ITEMS = 3
MAX_TEXT_CHARS = 60  # of a generated text, where there is no message to take it from
MAX_RESULT_CHARS = 1500  # of a tool's result; it shares 2048 tokens with everything else


@dataclass(frozen=True)
class ToolFunction:
    """A tool that may be called."""

    name: str
    description: str
    parameters: Mapping[str, JsonValue]

    @property
    def words(self) -> str:
        """The name as words."""
        return " ".join(re.split(r"[_-]+", self.name)).strip()

    def request(self, text: str) -> JsonObject | None:
        """Return the request for the arguments in a message; None if the tool has none."""
        if not self.parameters.get("properties"):
            return None
        system = f"You fill in the arguments of the function {self.name} ({self.description}) from the user's message, as JSON."
        schema = cast(JsonValue, bounded(self.parameters, text))
        return {
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
        }


@dataclass(frozen=True)
class ToolOffer:
    """The tools that may be called now, and whether one must be."""

    functions: tuple[ToolFunction, ...]
    must: bool

    @classmethod
    def of(cls, messages: Messages, params: Mapping[str, JsonValue]) -> ToolOffer:
        """Return the tools that a request offers by its tools and tool choice; none if it has results, which the answer is about."""
        tools, choice = params.get("tools"), params.get("tool_choice")
        functions = [_function(tool) for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
        match choice:
            case {"function": {"name": str(name)}}:
                return cls(tuple(function for function in functions if function.name == name), must=True)
            case "required":
                return cls(tuple(functions), must=True)
        has_results = any(message.get("role") == "tool" for message in messages[_last_user(messages) :])
        return cls(() if choice == "none" or has_results else tuple(functions), must=False)

    def question(self, text: str) -> LabelQuestion:
        """Return the question which tool the text asks for."""
        labels = self.labels()
        examples = [(function.description or label, label) for label, function in labels.items()]
        no_tool = () if self.must else tuple((each, NO_TOOL) for each in CHAT)
        return LabelQuestion((*labels, *(() if self.must else (NO_TOOL,))), text, (*examples, *no_tool))

    def labels(self) -> dict[str, ToolFunction]:
        """Return the functions by their names as words, or by their exact names if the words are not unique."""
        by_words = {function.words: function for function in self.functions}
        return (
            by_words
            if len(by_words) == len(self.functions)
            else {function.name: function for function in self.functions}
        )


def text_of(messages: Messages) -> str:
    """Return the last user message."""
    return str(messages[_last_user(messages)].get("content") or "") if messages else ""


def inline_tool_results(messages: Messages) -> list[Mapping[str, JsonValue]]:
    """Return the messages with tool results moved into the user message that they belong to; the model was not trained on tool messages."""
    names: dict[JsonValue, str] = {}
    plain: list[Mapping[str, JsonValue]] = []
    known: dict[int, list[str]] = {}
    for message in messages:
        calls = message.get("tool_calls")
        if message.get("role") == "tool":
            name = names.get(message.get("tool_call_id")) or str(message.get("name") or "tool")
            users = [number for number, each in enumerate(plain) if each["role"] == "user"]
            known.setdefault(users[-1] if users else 0, []).append(
                f"What is known ({name}): {_as_prose(message.get('content'))}."
            )
        elif isinstance(calls, list) and calls:
            names |= {call.get("id"): _function(call).words for call in calls if isinstance(call, dict)}
        else:
            plain.append({"role": message.get("role"), "content": message.get("content") or ""})
    for number, lines in known.items():
        if number < len(plain):
            text = "\n\n".join([str(plain[number]["content"]), *lines, "Answer in one sentence."])
            plain[number] = {**plain[number], "content": text}
    return plain


def bounded(schema: Mapping[str, JsonValue], text: str) -> JsonObject:
    """Return the schema with strings and numbers limited to those in the text, and without optional properties."""
    if schema.keys() & {"enum", "const", "pattern", "format", "$ref"}:
        return dict(schema)
    inner = {
        key: [bounded(each, text) for each in _objects(schema[key])]
        for key in ("anyOf", "oneOf", "allOf")
        if key in schema
    }
    definitions = {"$defs": _each(schema["$defs"], text)} if "$defs" in schema else {}
    found = cast(JsonObject, {**schema, **inner, **definitions})
    match schema.get("type"):
        case "object":
            properties = _each(schema.get("properties"), text)
            required = schema.get("required")
            if isinstance(required, list) and required:
                properties = {name: each for name, each in properties.items() if name in required}
            return {**found, "properties": cast(JsonValue, properties)}
        case "array":
            items = schema.get("items")
            return {**found, "items": bounded(items, text) if isinstance(items, dict) else {}, "maxItems": MAX_ITEMS}
        case "string":
            spans = _word_spans(text)
            return {"enum": cast(JsonValue, spans)} if spans else {"type": "string", "maxLength": MAX_TEXT_CHARS}
        case "integer" | "number" as kind:
            numbers = list(_numbers(text, whole=kind == "integer"))
            return {"enum": cast(JsonValue, numbers)} if numbers else found
    return found


def _function(tool: JsonObject) -> ToolFunction:
    given = tool.get("function")
    function: JsonObject = given if isinstance(given, dict) else {}
    parameters = function.get("parameters")
    return ToolFunction(
        str(function.get("name") or ""),
        str(function.get("description") or ""),
        parameters if isinstance(parameters, dict) else {},
    )


def _last_user(messages: Messages) -> int:
    return max((number for number, message in enumerate(messages) if message.get("role") == "user"), default=0)


def _each(schemas: JsonValue, text: str) -> dict[str, JsonObject]:
    found = schemas if isinstance(schemas, dict) else {}
    return {name: bounded(schema, text) for name, schema in found.items() if isinstance(schema, dict)}


def _objects(values: JsonValue) -> list[JsonObject]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _word_spans(text: str) -> list[str]:
    """Return the spans of a text, from one word to SPAN_WORDS words."""
    words = [bare for word in text.split()[:MAX_WORDS] if (bare := word.strip(".,;:!?\"'()#"))]
    rows = (words[first : first + size] for size in range(1, SPAN_WORDS + 1) for first in range(len(words) - size + 1))
    return list(dict.fromkeys(" ".join(row) for row in rows))


def _numbers(text: str, *, whole: bool) -> Iterator[JsonValue]:
    for number in dict.fromkeys(re.findall(r"\d+(?:\.\d+)?", text)):
        if "." not in number:
            yield int(number)
        elif not whole:
            yield float(number)


def _as_prose(content: JsonValue) -> str:
    """Return a result as prose: a model this small does not understand JSON."""
    text = as_text(content)
    try:
        value = cast(JsonValue, json.loads(text))
    except json.JSONDecodeError:
        value = text
    return _as_words(value)[:MAX_RESULT_CHARS].rstrip(".")


def _as_words(value: JsonValue) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_as_words(each)}" for name, each in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "; ".join(_as_words(each) for each in value)
    return str(value)
