"""Reasoning of models: parted from answers, recorded with its round, and sent back to the provider that it came from.

Providers that reason between tool calls want their reasoning back with the calls: Anthropic refuses a request without the signed thinking
blocks (docs.anthropic.com, "Extended thinking with tool use"), DeepSeek one without `reasoning_content` (api-docs.deepseek.com, "Thinking
Mode"), Gemini 3 one without thought signatures (ai.google.dev, "Thought signatures"); OpenAI's Responses API continues from reasoning items
(platform.openai.com, "Reasoning models"), and OpenRouter passes `reasoning_details` on. No other provider gets it, and none that
refuses it, as the table of `provider_schemas` has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from pydantic import Field

from cantata.flows.provider_schemas import taken_by
from cantata.values import JsonValue, Value

KEY = "_reasoning"
"""The key of an assistant message under which its reasoning travels to the call of a model; it is never sent."""

MESSAGE_FIELDS = ("reasoning_content", "thinking_blocks", "reasoning_items", "reasoning_details")
"""The fields of an assistant message that have reasoning, as LiteLLM gives and takes them."""
SIGNATURES = ("thought_signatures", "response_thought_signature", "thought_signature")
"""Those of Gemini among the `provider_specific_fields` of messages and calls."""

OWN_MODELS = ("anthropic", "deepseek", "gemini")
"""Providers that serve models of their own alone, which read each other's reasoning. Others, and servers that speak their protocol, serve
models of many makers: there reasoning goes back to the same model only."""

UNSIGNED = ("gemini", "vertex_ai")
"""Providers of whose thoughts LiteLLM makes thinking blocks too, without a signature and in whole replies only."""

ANTHROPIC = ("anthropic", "azure_ai", "bedrock", "bedrock_converse", "vertex_ai")
"""Providers whose Claude models have the parameter `thinking`."""

_OPEN = re.compile(r"\s*<(think|thinking)>")
_TAGS = ("<think>", "<thinking>")


class Reasoning(Value):
    """The reasoning of one reply."""

    provider: str = Field(description="the origin that it came from, and may be sent back to: as `origin_of` names it")
    text: str = Field(default="", description="the part that people can read")
    fields: dict[str, JsonValue] = Field(
        default_factory=dict, description="fields of the assistant message that the provider wants back"
    )
    calls: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict, description="id of a tool call → its fields, likewise"
    )


def origin_of(provider: str, model: str, address: str = "") -> str:
    """Return a name of the source of reasoning: the provider or the model, and the address if it is given.

    Args:
        provider: LiteLLM's name of the provider.
        model: The model's name in the configuration.
        address: The parameter `api_base` of the model.
    """
    where = urlsplit(address)
    name = provider if provider in OWN_MODELS else model
    return f"{name} {where.hostname}:{where.port or ''}{where.path.rstrip('/')}" if where.hostname else name


def reasoning_of(
    message: object, provider: str, origin: str, *, tagged: str, call_ids: Sequence[str]
) -> Reasoning | None:
    """Return the reasoning of a reply; None if there is none. What its provider refuses to take back is kept as text alone.

    Args:
        message: The message of LiteLLM, whole, or built from the chunks of a stream.
        provider: LiteLLM's name of its provider.
        origin: The name of `origin_of`.
        tagged: What stood between `<think>` tags in the content. It is for people: models do not want it back.
        call_ids: The ids under which we know the tool calls, in order.
    """
    dumped = _plain(message)
    extra = cast("dict[str, JsonValue]", dumped.get("provider_specific_fields") or {})
    fields: dict[str, JsonValue] = {
        name: value for name in MESSAGE_FIELDS if (value := dumped.get(name) or extra.get(name))
    }
    if (
        isinstance(text := dumped.get("reasoning") or extra.get("reasoning"), str) and text
    ):  # Groq, and newer versions of vLLM
        fields.setdefault("reasoning_content", text)
    if provider in UNSIGNED and (blocks := fields.pop("thinking_blocks", None)):
        signed = [block for block in cast("list[dict[str, JsonValue]]", blocks) if block.get("signature")]
        fields |= {"thinking_blocks": cast(JsonValue, signed)} if signed else {}
    signatures: dict[str, JsonValue] = {name: extra[name] for name in SIGNATURES if extra.get(name)}
    if signatures:
        fields["provider_specific_fields"] = signatures
    own_calls = cast("list[dict[str, JsonValue]]", dumped.get("tool_calls") or [])
    calls = {
        call_id: found for call_id, call in zip(call_ids, own_calls, strict=False) if (found := _call_fields(call))
    }
    text = "\n\n".join(part for part in (tagged.strip(), readable(fields)) if part)
    if not taken_by(provider).reasoning:
        fields, calls = {}, {}
    return Reasoning(provider=origin, text=text, fields=fields, calls=calls) if text or fields or calls else None


def sent_back(message: Mapping[str, JsonValue], origin: str) -> Mapping[str, JsonValue]:
    """Return an assistant message with its reasoning as its own origin wants it; without it for any other."""
    if KEY not in message:
        return message
    plain = {name: value for name, value in message.items() if name != KEY}
    found = Reasoning.model_validate(message[KEY])
    if found.provider != origin:
        return plain
    calls = cast("list[dict[str, JsonValue]]", plain.get("tool_calls") or [])
    with_calls: dict[str, JsonValue] = {
        "tool_calls": [_merged(call, found.calls.get(str(call.get("id")), {})) for call in calls]
    }
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
    return [
        {name: value for name, value in message.items() if name != KEY} if KEY in message else message
        for message in messages
    ]


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


# --- reasoning in the pieces of a stream ------------------------------------------------------------------------------------


@dataclass(slots=True)
class ReasoningPieces:
    """The reasoning fields of a streamed message, put together from its deltas.

    LiteLLM's own message of a stream has the text of signed thinking twice, which Anthropic refuses as modified, and neither reasoning
    items nor reasoning details.
    """

    text: str = ""
    blocks: list[dict[str, JsonValue]] = field(default_factory=list)
    items: list[JsonValue] = field(default_factory=list)
    details: list[dict[str, JsonValue]] = field(default_factory=list)

    def add(self, delta: object) -> None:
        """Add the next delta."""
        extra = _field(delta, "provider_specific_fields")
        if isinstance(text := _field(delta, "reasoning_content"), str):
            self.text += text
        for block in cast("list[object]", _field(delta, "thinking_blocks") or []):
            self._add_block(dict(_plain(block)))
        self.items += [
            cast(JsonValue, dict(_plain(item))) for item in cast("list[object]", _field(delta, "reasoning_items") or [])
        ]
        for detail in cast("list[object]", _field(extra, "reasoning_details") or []):
            self._add_detail(dict(_plain(detail)))

    def _add_block(self, piece: dict[str, JsonValue]) -> None:
        """Add a piece of a thinking block; with its signature the block ends, and some providers repeat its whole text."""
        last = self.blocks[-1] if self.blocks else {}
        if piece.get("type") != "thinking" or last.get("type") != "thinking" or last.get("signature"):
            self.blocks.append(piece)
            return
        before, text = str(last.get("thinking") or ""), str(piece.get("thinking") or "")
        is_whole = bool(piece.get("signature")) and text == before
        self.blocks[-1] = {**last, **piece, "thinking": before if is_whole else before + text}

    def _add_detail(self, piece: dict[str, JsonValue]) -> None:
        """Add a piece of OpenRouter's `reasoning_details`: those of one index and type are one, whose texts follow each other."""
        for number, known in enumerate(self.details):
            if (known.get("index"), known.get("type")) == (piece.get("index"), piece.get("type")) and "index" in piece:
                texts = {
                    name: f"{known.get(name) or ''}{piece.get(name) or ''}"
                    for name in _DETAIL_TEXTS
                    if name in {**known, **piece}
                }
                self.details[number] = {
                    **known,
                    **{name: value for name, value in piece.items() if value is not None},
                    **texts,
                }
                return
        self.details.append(piece)

    def put_into(self, message: object) -> Mapping[str, JsonValue]:
        """Return LiteLLM's message of the whole stream with these fields."""
        own = {
            "reasoning_content": self.text,
            "thinking_blocks": self.blocks,
            "reasoning_items": self.items,
            "reasoning_details": self.details,
        }
        plain = {name: value for name, value in _plain(message).items() if name not in own}
        extra = cast("dict[str, JsonValue]", plain.get("provider_specific_fields") or {})
        plain["provider_specific_fields"] = {name: value for name, value in extra.items() if name not in own}
        return {**plain, **{name: cast(JsonValue, value) for name, value in own.items() if value}}


_DETAIL_TEXTS = ("text", "summary", "data")


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


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
