"""`local/...` for LiteLLM: a thin client of the model server that answers in the words of OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import httpx
from pydantic import JsonValue

from orchestrator.errors import ModelError
from workers.local_llm import server
from workers.local_llm.fields import Field
from workers.local_llm.labels import Chooser, Messages, Question

NAME = "smollm2"
MODEL = f"local/{NAME}"
MAX_TOKENS = 256  # it drifts when it writes longer
DYING_S = 0.2  # a killed process may keep its lock and its port for a moment
FIXED = {"temperature": 0.0, "seed": 0, "max_tokens": MAX_TOKENS}
"""Defaults: the same prompt gives the same answer."""


class Provider:
    """Answers for `local/smollm2`. One a process, used from one event loop; the server is started at the first call."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._chooser = Chooser()
        self._starting = asyncio.Lock()

    async def acompletion(
        self, model: str, messages: Messages, *, model_response: Any, optional_params: Mapping[str, JsonValue], **_: object
    ) -> Any:
        """LiteLLM's reply to a chat. A schema of one enum is answered by scoring its labels. Raises ModelError."""
        if model != NAME:
            raise ModelError(f"model 'local/{model}' is unknown; the embedded model is {MODEL!r}", code="model_unknown")
        if optional_params.get("tools"):
            raise ModelError(f"model {MODEL!r} calls no tools; name another model for agents with tools", code="model_bad_request")
        asked = _field(optional_params.get("response_format"))
        reply = await (self._choose(asked, messages) if asked else self._write(messages, optional_params))
        return type(model_response)(**reply)

    def completion(self, model: str, messages: Messages, **options: Any) -> Any:
        """The same for those who are not async."""
        return asyncio.run(Provider(self._home).acompletion(model, messages, **options))

    async def _choose(self, asked: Field, messages: Messages) -> dict[str, JsonValue]:
        choice = await self._chooser.choose(Question.of(asked, messages), self._ask)
        usage: dict[str, JsonValue] = {
            "prompt_tokens": choice.input_tokens, "completion_tokens": choice.output_tokens,
            "total_tokens": choice.input_tokens + choice.output_tokens,
        }  # fmt: skip
        message: dict[str, JsonValue] = {"role": "assistant", "content": asked.to_json(choice.label)}
        return {
            "object": "chat.completion", "created": int(time.time()), "model": NAME, "usage": usage,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }  # fmt: skip

    async def _write(self, messages: Messages, params: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        plain: list[JsonValue] = [{"role": message.get("role"), "content": message.get("content") or ""} for message in messages]
        reply = await self._ask("/v1/chat/completions", {**FIXED, **params, "messages": plain, "stream": False})
        kept = ("object", "created", "choices", "usage")
        return {"model": NAME, **{key: value for key, value in cast("dict[str, JsonValue]", reply).items() if key in kept}}

    async def _ask(self, path: str, body: Mapping[str, JsonValue]) -> JsonValue:
        """Post to the server; one that goes away meanwhile is started and asked again, once."""
        try:
            return await _post(await self._address(), path, body)
        except httpx.TransportError:
            await asyncio.sleep(DYING_S)
        try:
            return await _post(await self._address(), path, body)
        except httpx.TransportError as error:
            raise ModelError(f"the model server of {MODEL!r} went away ({error!r})", code="model_unavailable", retryable=True) from error

    async def _address(self) -> server.Address:
        if address := server.running(self._home):
            return address
        async with self._starting:  # one thread waits, not a hundred
            return await asyncio.to_thread(server.ensure, self._home)


async def _post(address: server.Address, path: str, body: Mapping[str, JsonValue]) -> JsonValue:
    """The JSON that comes back. No timeout: the caller has one, and leaving closes the connection, which stops the work."""
    async with httpx.AsyncClient(base_url=address.url, timeout=None, trust_env=False, verify=False) as client:
        reply = await client.post(path, json=body, headers={"Authorization": f"Bearer {address.key}"})
    if reply.is_success:
        return cast(JsonValue, reply.json())
    raise _refused(reply)


def _refused(reply: httpx.Response) -> ModelError:
    said = reply.text[:300]
    if "exceed_context_size" in said:
        limit = f"{server.SLOT_TOKENS} tokens with the answer"
        text = f"the messages are too long for {MODEL!r}, which takes {limit}; shorten them or name another model"
        return ModelError(text, code="model_bad_request")
    if reply.status_code < 500:
        return ModelError(f"model {MODEL!r} refuses the request ({reply.status_code}): {said}", code="model_bad_request")
    return ModelError(f"the model server of {MODEL!r} failed ({reply.status_code}): {said}", code="model_unavailable", retryable=True)


def _field(response_format: JsonValue) -> Field | None:
    match response_format:
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return Field.of(schema)
    return None
