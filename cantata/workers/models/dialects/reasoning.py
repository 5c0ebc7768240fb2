"""Reasoning of models: parted from answers, recorded with its round, and sent back to the provider that it came from.

Providers that reason between tool calls want their reasoning back with the calls: Anthropic refuses a request without the signed thinking
blocks (docs.anthropic.com, "Extended thinking with tool use"), DeepSeek one without `reasoning_content` (api-docs.deepseek.com, "Thinking
Mode"), Gemini 3 one without thought signatures (ai.google.dev, "Thought signatures"); OpenAI's Responses API continues from reasoning items
(platform.openai.com, "Reasoning models"), and OpenRouter passes `reasoning_details` on. No other provider gets it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic import Field

from cantata.models.values import JsonValue, Value

KEY = "_reasoning"
"""The key of an assistant message under which its reasoning travels to the call of a model; it is never sent."""

MESSAGE_FIELDS = ("reasoning_content", "thinking_blocks", "reasoning_items", "reasoning_details")
"""The fields of an assistant message that have reasoning, as LiteLLM gives and takes them."""
SIGNATURES = ("thought_signatures", "response_thought_signature", "thought_signature")
"""Those of Gemini among the `provider_specific_fields` of messages and calls."""

ANTHROPIC = ("anthropic", "azure_ai", "bedrock", "bedrock_converse", "vertex_ai")
"""Providers whose Claude models have the parameter `thinking`."""

_OPEN = re.compile(r"\s*<(think|thinking)>")
_TAGS = ("<think>", "<thinking>")


class Reasoning(Value):
    """The reasoning of one reply."""

    provider: str = Field(description="LiteLLM's name of the provider that it came from, and may be sent back to")
    text: str = Field(default="", description="the part that people can read")
    fields: dict[str, JsonValue] = Field(default_factory=dict, description="fields of the assistant message that the provider wants back")
    calls: dict[str, dict[str, JsonValue]] = Field(default_factory=dict, description="id of a tool call → its fields, likewise")


def reasoning_of(message: object, provider: str, *, tagged: str, call_ids: Sequence[str]) -> Reasoning | None:
    """Return the reasoning of a reply; None if there is none.

    Args:
        message: The message of LiteLLM, whole, or built from the chunks of a stream.
        provider: LiteLLM's name of its provider.
        tagged: What stood between `<think>` tags in the content. It is for people: models do not want it back.
        call_ids: The ids under which we know the tool calls, in order.
    """
    dumped = _plain(message)
    extra = cast("dict[str, JsonValue]", dumped.get("provider_specific_fields") or {})
    fields: dict[str, JsonValue] = {name: value for name in MESSAGE_FIELDS if (value := dumped.get(name) or extra.get(name))}
    signatures: dict[str, JsonValue] = {name: extra[name] for name in SIGNATURES if extra.get(name)}
    if signatures:
        fields["provider_specific_fields"] = signatures
    own_calls = cast("list[dict[str, JsonValue]]", dumped.get("tool_calls") or [])
    calls = {call_id: found for call_id, call in zip(call_ids, own_calls, strict=False) if (found := _call_fields(call))}
    text = "\n\n".join(part for part in (tagged.strip(), readable(fields)) if part)
    return Reasoning(provider=provider, text=text, fields=fields, calls=calls) if text or fields or calls else None


def sent_back(message: Mapping[str, JsonValue], provider: str) -> Mapping[str, JsonValue]:
    """Return an assistant message with its reasoning as its own provider wants it; without it for any other."""
    if KEY not in message:
        return message
    plain = {name: value for name, value in message.items() if name != KEY}
    found = Reasoning.model_validate(message[KEY])
    if found.provider != provider:
        return plain
    calls = cast("list[dict[str, JsonValue]]", plain.get("tool_calls") or [])
    with_calls: dict[str, JsonValue] = {"tool_calls": [_merged(call, found.calls.get(str(call.get("id")), {})) for call in calls]}
    return {**plain, **found.fields, **(with_calls if calls else {})}


def may_think(messages: Iterable[Mapping[str, JsonValue]], provider: str) -> bool:
    """Return whether a request with these messages may ask a provider to think.

    Anthropic's models refuse it if an earlier call of tools has no thinking block: another model made that call.
    """
    if provider not in ANTHROPIC:
        return True
    return all(message.get("thinking_blocks") for message in messages if message.get("tool_calls"))


def without_reasoning(messages: Iterable[Mapping[str, JsonValue]]) -> list[Mapping[str, JsonValue]]:
    """Return messages without their reasoning: digests of requests do not depend on it."""
    return [{name: value for name, value in message.items() if name != KEY} if KEY in message else message for message in messages]


def readable(fields: Mapping[str, JsonValue]) -> str:
    """Return the part of reasoning that people can read: providers encrypt the rest, or keep it."""
    if isinstance(text := fields.get("reasoning_content"), str):
        return text.strip()
    blocks = fields.get("thinking_blocks") or fields.get("reasoning_details") or []
    texts = [block.get("thinking") or block.get("text") or "" for block in cast("list[dict[str, JsonValue]]", blocks)]
    return "\n\n".join(str(text) for text in texts if text)


def _call_fields(call: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the fields of a call beside OpenAI's own: thought signatures, and `extra_content` of Gemini's OpenAI-compatible API."""
    found: dict[str, JsonValue] = {}
    extra = call.get("provider_specific_fields")
    if isinstance(extra, dict) and (signatures := {name: extra[name] for name in SIGNATURES if extra.get(name)}):
        found["provider_specific_fields"] = signatures
    function = call.get("function")
    own = function.get("provider_specific_fields") if isinstance(function, dict) else None
    if isinstance(own, dict) and (signatures := {name: own[name] for name in SIGNATURES if own.get(name)}):
        found["function"] = {"provider_specific_fields": signatures}
    if call.get("extra_content"):
        found["extra_content"] = call["extra_content"]
    return found


def _merged(call: dict[str, JsonValue], fields: Mapping[str, JsonValue]) -> JsonValue:
    function = fields.get("function")
    if isinstance(function, dict):
        fields = {**fields, "function": {**cast("dict[str, JsonValue]", call["function"]), **function}}
    return {**call, **fields}


def _plain(message: object) -> Mapping[str, JsonValue]:
    if isinstance(message, Mapping):
        return message
    dump = getattr(message, "model_dump", None)
    return cast("Mapping[str, JsonValue]", dump(exclude_none=True)) if callable(dump) else {}


# --- tags in the content ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TagSplitter:
    """Parts what stands between `<think>` and `</think>` at the beginning of a content, however it is cut into pieces.

    Tags behind the first word of an answer are part of it. A block that is not closed is reasoning to its end.
    """

    reasoning: str = ""
    _held: str = ""
    _tag: str = ""
    _has_block: bool = False
    _is_answer: bool = False

    def add(self, piece: str) -> str:
        """Add a piece of the content; return the part of the answer that is now known."""
        if self._is_answer:
            return piece
        self._held += piece
        while True:
            if not self._tag:
                opening = _OPEN.match(self._held)
                if opening is None:
                    return self._answer() if not _may_open(self._held) else ""
                self._tag, self._held = opening[1], self._held[opening.end() :]
            text, closing, rest = self._held.partition(f"</{self._tag}>")
            if not closing:
                return ""
            self.reasoning += text
            self._tag, self._held, self._has_block = "", rest, True

    def end(self) -> str:
        """Return the rest of the answer, at the end of the content."""
        if self._tag:
            self.reasoning += self._held
            self._held = ""
            return ""
        return self._answer()

    def _answer(self) -> str:
        self._is_answer = True
        held, self._held = self._held, ""
        return held.lstrip() if self._has_block else held


def _may_open(text: str) -> bool:
    """Return whether a text may be the beginning of an opening tag."""
    start = text.lstrip()
    return not start or any(tag.startswith(start) for tag in _TAGS)
