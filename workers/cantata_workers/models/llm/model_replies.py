"""Replies of models, built from whole responses or from chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from pydantic import Field

from cantata.values import ToolCallRequest, Usage, Value
from cantata_workers.models.dialects.reasoning import Reasoning, ReasoningPieces, TagSplitter
from cantata_workers.models.llm.openai_messages import ToolNames

SIGNATURE = "__thought__"
"""Behind it LiteLLM writes Gemini's thought signature into the id of a call. Other providers must not get it, and refuse an id so long."""


class Reply(Value):
    """A model's reply."""

    text: str
    usage: Usage
    model: str = Field(description="the name by which the model was called")
    finish_reason: str = Field(description="stop, length, tool_calls or content_filter")
    tool_calls: tuple[ToolCallRequest, ...] = Field(
        default=(), description="the tool calls that it requests, in its order"
    )
    reasoning: Reasoning | None = Field(
        default=None, description="what the model thought before it answered; no part of the answer"
    )
    cached: bool = Field(default=False, description="whether it comes from the cache, and the model was not called")
    request: Mapping[str, str] = Field(
        default_factory=dict, description="the model that was asked first, and digests of the request"
    )


@dataclass(slots=True)
class ReplyBuilder:
    """Builds a reply from a whole response, or chunk by chunk."""

    text: str = ""
    """The answer so far, without reasoning in tags."""
    refusal: str = ""
    """The model's words where it refuses to answer."""
    message: object = None
    """The message of LiteLLM, with the provider's own fields."""
    tags: TagSplitter = field(default_factory=TagSplitter)
    pieces: ReasoningPieces = field(default_factory=ReasoningPieces)
    finish_reason: str = "no choices"
    calls: list[_Call] = field(default_factory=list)
    id: str = ""
    model: str = ""
    """The model that replied, as the provider names it."""
    high_surrogate: str = ""
    """The first half of a character whose second half comes with the next chunk: some servers escape and split a surrogate pair."""

    def set_response(self, response: object) -> None:
        """Set the reply from a whole response."""
        self._set_identity(response)
        for choice in _list(_get(response, "choices"))[:1]:
            self.message = message = _get(choice, "message")
            self.text = _join_surrogates(self.tags.add(_text(_get(message, "content"))) + self.tags.end())
            self.refusal = _text(_get(message, "refusal")) or _text(
                _get(_get(message, "provider_specific_fields"), "refusal")
            )
            self.finish_reason = _text(_get(choice, "finish_reason"))
            self.calls = [_call_parts(call, number) for number, call in enumerate(_list(_get(message, "tool_calls")))]

    def add_chunk(self, chunk: object) -> str:
        """Add the next chunk of a stream; return the part of the answer that is known by it."""
        if not self.id:
            self._set_identity(chunk)
        text = ""
        for choice in _list(_get(chunk, "choices"))[:1]:
            delta = _get(choice, "delta")
            text = self.high_surrogate + _text(_get(delta, "content"))
            self.high_surrogate = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
            text = self.tags.add(_join_surrogates(text.removesuffix(self.high_surrogate)))
            self.text += text
            self.refusal += _text(_get(_get(delta, "provider_specific_fields"), "refusal"))
            self.pieces.add(delta)
            self.finish_reason = _text(_get(choice, "finish_reason")) or self.finish_reason
            for piece in _list(_get(delta, "tool_calls")):
                self._add_call(_call_parts(piece, _get(piece, "index")))
        return text

    def end_stream(self, response: object) -> str:
        """End a stream, whose chunks together are this response; return the rest of the answer."""
        for choice in _list(_get(response, "choices"))[:1]:
            self.message = self.pieces.put_into(_get(choice, "message"))
        rest = self.tags.end()
        self.text += rest
        return rest

    def _set_identity(self, response: object) -> None:
        self.id, self.model = _text(_get(response, "id")), _text(_get(response, "model"))

    def _add_call(self, piece: _Call) -> None:
        known = next((call for call in reversed(self.calls) if call.index == piece.index), None)
        if known is None or (
            piece.id and known.id and piece.id != known.id
        ):  # some providers give every call the index 0
            self.calls.append(piece)
            return
        known.id, known.name = known.id or piece.id, known.name or piece.name
        known.arguments += piece.arguments

    def tool_calls(self, names: ToolNames, taken: Collection[str]) -> tuple[ToolCallRequest, ...]:
        """Return the calls with our names of tools.

        An id that is missing, or `taken` by an earlier call, is replaced by `call_<n>`; n continues the count of the taken ones.
        """
        return tuple(
            ToolCallRequest(
                id=call_id,
                name=names.own(call.name) if call.name else "",
                arguments=_join_surrogates(call.arguments) or "{}",
            )
            for call_id, call in zip(_ids(self.calls, taken), self.calls, strict=True)
        )


@dataclass(slots=True)
class _Call:
    """A tool call, or a piece of one."""

    index: object
    id: str
    name: str
    arguments: str


def _call_parts(call: object, index: object) -> _Call:
    """Read a call from a dict, an object, one in the other, or whatever has `model_dump`."""
    function = _get(call, "function")
    arguments = _get(function, "arguments")
    text = json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict | list) else _text(arguments)
    return _Call(index, _text(_get(call, "id")), _text(_get(function, "name")), text)


def _ids(calls: list[_Call], taken: Collection[str]) -> Iterator[str]:
    used = set(taken)
    for number, call in enumerate(calls, start=len(taken)):
        generated = (f"call_{next_number}" for next_number in count(number))
        own_id = call.id.partition(SIGNATURE)[0]
        call_id = own_id if own_id and own_id not in used else next(each for each in generated if each not in used)
        used.add(call_id)
        yield call_id


def _get(value: object, name: str) -> object:
    if isinstance(value, Mapping):
        return value.get(name)
    if (found := getattr(value, name, None)) is not None:
        return found
    dump = getattr(value, "model_dump", None)
    dumped = dump() if callable(dump) else None
    return dumped.get(name) if isinstance(dumped, Mapping) else None


def _join_surrogates(text: str) -> str:
    """Return the text with surrogate pairs joined, and lone surrogates replaced: they cannot be stored."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
