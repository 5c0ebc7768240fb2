"""The LiteLLM provider `local/...`: a thin client of the model server with the interface of OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx
from pydantic import JsonValue

from cantata.errors import ModelError
from cantata_workers.models.local import model_server
from cantata_workers.models.local.labels import EnumField, LabelChoice, LabelQuestion, LabelScorer, Messages
from cantata_workers.models.local.tools import (
    NO_TOOL,
    JsonObject,
    ToolFunction,
    ToolOffer,
    inline_tool_results,
    text_of,
)

NAME = "smollm2"
MODEL = f"local/{NAME}"
MAX_TOKENS = 256  # the model drifts in longer texts
RESTART_DELAY_S = 0.2  # a killed process may keep its lock and its port for a moment
RESTART_S = 5.0  # in which a server that has just started may be gone again, or not listen yet
DEFAULT_PARAMETERS = {"temperature": 0.0, "seed": 0, "max_tokens": MAX_TOKENS}
"""The same prompt gives the same answer."""
ADAPTER_PARAMETERS = frozenset({"tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options"})
"""Parameters that the provider handles itself; the server does not get them."""


class Provider:
    """Answers for `local/smollm2`. A process has one, used from one event loop; the first call starts the server."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._scorer = LabelScorer()
        self._starting = asyncio.Lock()

    async def acompletion(
        self,
        model: str,
        messages: Messages,
        *,
        model_response: Any,
        optional_params: Mapping[str, JsonValue],
        **_: object,
    ) -> Any:
        """Return LiteLLM's reply to a chat. A schema of one enum is answered by scoring its labels. Raises ModelError."""
        return type(model_response)(**await self._answer(model, messages, optional_params))

    async def astreaming(
        self, model: str, messages: Messages, *, optional_params: Mapping[str, JsonValue], **_: object
    ) -> AsyncIterator[JsonObject]:
        """Yield the reply as a stream: the whole text, then the calls, then the end."""
        reply = cast("dict[str, Any]", await self._answer(model, messages, optional_params))
        (choice,) = reply["choices"]
        calls = [{**call, "index": number} for number, call in enumerate(choice["message"].get("tool_calls") or ())]
        for text, call in [(choice["message"]["content"] or "", None), *(("", call) for call in calls)]:
            yield {"index": 0, "text": text, "tool_use": call, "is_finished": False, "finish_reason": "", "usage": None}
        end = {"is_finished": True, "finish_reason": choice["finish_reason"], "usage": reply["usage"]}
        yield {"index": 0, "text": "", "tool_use": None, **end}

    async def _answer(self, model: str, messages: Messages, params: Mapping[str, JsonValue]) -> JsonObject:
        if model != NAME:
            raise ModelError(f"model 'local/{model}' is unknown; the embedded model is {MODEL!r}", code="model_unknown")
        offer, text = ToolOffer.of(messages, params), text_of(messages)
        chosen = await self._choose_tool(offer, text) if offer.functions else None
        if chosen and chosen.label != NO_TOOL:
            return await self._call(offer.labels()[chosen.label], text, chosen)
        field = _field(params.get("response_format"))
        reply = await (
            self._choose(field, inline_tool_results(messages))
            if field
            else self._write(inline_tool_results(messages), params)
        )
        return _with(reply, chosen) if chosen else reply

    async def _choose_tool(self, offer: ToolOffer, text: str) -> LabelChoice:
        """Choose the tool that the text asks for, or small talk."""
        if offer.must and len(offer.functions) == 1:
            return LabelChoice(next(iter(offer.labels())), 0, 0)
        return await self._scorer.choose(offer.question(text), self._ask)

    async def _call(self, function: ToolFunction, text: str, chosen: LabelChoice) -> JsonObject:
        arguments, usage = "{}", (0, 0)
        if request := function.request(text):
            reply = cast(
                "dict[str, Any]",
                await self._ask("/v1/chat/completions", {**DEFAULT_PARAMETERS, **request, "stream": False}),
            )
            arguments = str(reply["choices"][0]["message"]["content"])
            usage = reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]
        call: JsonObject = {
            "id": "call_0",
            "type": "function",
            "function": {"name": function.name, "arguments": arguments},
        }
        return _with(_reply({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls", *usage), chosen)

    async def _choose(self, requested: EnumField, messages: Messages) -> JsonObject:
        choice = await self._scorer.choose(LabelQuestion.of(requested, messages), self._ask)
        message: JsonObject = {"role": "assistant", "content": requested.to_json(choice.label)}
        return _reply(message, "stop", choice.input_tokens, choice.output_tokens)

    async def _write(self, messages: Messages, params: Mapping[str, JsonValue]) -> JsonObject:
        requested = {name: value for name, value in params.items() if name not in ADAPTER_PARAMETERS}
        reply = await self._ask(
            "/v1/chat/completions",
            {**DEFAULT_PARAMETERS, **requested, "messages": cast(JsonValue, messages), "stream": False},
        )
        kept = ("object", "created", "choices", "usage")
        return {"model": NAME, **{key: value for key, value in cast(JsonObject, reply).items() if key in kept}}

    async def _ask(self, path: str, body: Mapping[str, JsonValue]) -> JsonValue:
        """Post to the server. If it is gone, start it and post once more, and more often while RESTART_S have not passed."""
        give_up, has_failed = time.monotonic() + RESTART_S, False
        while True:
            try:
                return await _post(await self._address(), path, body)
            except httpx.TransportError as error:
                if has_failed and time.monotonic() > give_up:
                    message = f"the model server of {MODEL!r} went away ({error!r})"
                    raise ModelError(message, code="model_unavailable", retryable=True) from error
            has_failed = True
            await asyncio.sleep(RESTART_DELAY_S)

    async def _address(self) -> model_server.ServerAddress:
        if address := model_server.find_server(self._home):
            return address
        async with self._starting:  # so that one thread waits, not a hundred
            return await asyncio.to_thread(model_server.ensure_server, self._home)


def _reply(message: JsonObject, finish_reason: str, input_tokens: int, output_tokens: int) -> JsonObject:
    usage: JsonObject = {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }
    choices: list[JsonValue] = [{"index": 0, "message": message, "finish_reason": finish_reason}]
    return {"object": "chat.completion", "created": int(time.time()), "model": NAME, "usage": usage, "choices": choices}


def _with(reply: JsonObject, chosen: LabelChoice) -> JsonObject:
    """Return the reply with the tokens of the choice added to its usage."""
    usage = cast("dict[str, int]", reply["usage"])
    read, written = usage["prompt_tokens"] + chosen.input_tokens, usage["completion_tokens"] + chosen.output_tokens
    return {**reply, "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}}


async def _post(address: model_server.ServerAddress, path: str, body: Mapping[str, JsonValue]) -> JsonValue:
    """Return the JSON of the response. No timeout: the caller has one, and its cancellation closes the connection, which stops the work."""
    async with httpx.AsyncClient(base_url=address.url, timeout=None, trust_env=False, verify=False) as client:
        reply = await client.post(path, json=body, headers={"Authorization": f"Bearer {address.key}"})
    if reply.is_success:
        return cast(JsonValue, reply.json())
    raise _error_of(reply)


def _error_of(reply: httpx.Response) -> ModelError:
    detail = reply.text[:300]
    if "exceed_context_size" in detail:
        limit = f"{model_server.SLOT_TOKENS} tokens with the answer"
        text = f"the messages are too long for {MODEL!r}, which takes {limit}; shorten them or name another model"
        return ModelError(text, code="model_bad_request")
    if reply.status_code < 500:
        return ModelError(
            f"model {MODEL!r} refuses the request ({reply.status_code}): {detail}", code="model_bad_request"
        )
    return ModelError(
        f"the model server of {MODEL!r} failed ({reply.status_code}): {detail}",
        code="model_unavailable",
        retryable=True,
    )


def _field(response_format: JsonValue) -> EnumField | None:
    match response_format:
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return EnumField.of(schema)
    return None
