"""Calls models through LiteLLM.

LiteLLM neither retries nor falls back here: a failure is told as a ModelError, and the ledger decides what becomes of it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from cantata import fault_points
from cantata.errors import ModelError
from cantata.models.values import JsonValue, ToolSchema, Usage
from cantata.observability.logs.secrets import secrets_in
from cantata.workers.models.llm import openai_messages as wire
from cantata.workers.models.llm.call_telemetry import traced
from cantata.workers.models.llm.counting import counted
from cantata.workers.models.llm.failures import Failure, Setting, broken_off, empty, explain, timed_out
from cantata.workers.models.llm.library import load
from cantata.workers.models.llm.model_replies import Reply, ReplyBuilder
from cantata.workers.models.llm.openai_messages import Messages
from cantata.workers.models.llm.usage_estimates import max_usd
from cantata.workers.models.llm.wire_names import ToolNames

CHARACTERS_PER_TOKEN = 4  # of English

OnDelta = Callable[[str], object]
"""Is given each piece of text as it comes."""

ONE_REQUEST: Mapping[str, JsonValue] = {"stream": False, "max_retries": 0, "num_retries": 0}
STREAM: Mapping[str, JsonValue] = {"stream": True, "stream_options": {"include_usage": True}}


@counted
async def complete(
    model: str,
    messages: Messages,
    *,
    params: Mapping[str, JsonValue] = {},
    schema: Mapping[str, JsonValue] | None = None,
    tools: Sequence[ToolSchema] = (),
    tool_choice: str | None = None,
    timeout_s: float = 60.0,
    on_delta: OnDelta | None = None,
    allow_empty: bool = False,
) -> Reply:
    """The model's answer to the messages, by one request. Cancelling stops the request.

    `params` go to LiteLLM as they are, save `examples`, a list of `{text, label}`: they become earlier turns of the conversation, and
    `local/...` scores labels by them. With `schema`, a JSON schema, the reply's text is JSON that should fit it.
    `tools` may be called: any (`tool_choice` absent or auto), none, at least one (required), or the one that is named. Messages tell
    of earlier calls by our names of tools; keep `tools`, with `none`, in a conversation that has such messages.
    `on_delta` gets the text in pieces, as it comes, on the event loop; the reply is the same as without it.
    Raises ModelError with the code model_timeout, rate_limited, model_unavailable, model_auth, model_unknown, model_bad_request,
    model_empty (unless `allow_empty`: then text and tool calls may be empty) or model_error.
    """
    load()
    names = ToolNames.of([*(tool.name for tool in tools), *wire.told_names(messages)])
    request: dict[str, Any] = {**params, "model": model, "messages": wire.on_the_wire(messages, names), "timeout": timeout_s, **ONE_REQUEST}
    if (examples := request.pop("examples", None)) is not None:
        request["messages"] = wire.with_examples(request["messages"], examples, schema)
    if schema is not None:
        request["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": dict(schema)}}
    if tools:
        request["tools"] = wire.functions(tools, names)
        request |= {"tool_choice": wire.choice(tool_choice, names)} if tool_choice else {}
    with traced(model, request, is_streamed=on_delta is not None) as told:
        try:
            async with asyncio.timeout(timeout_s):
                draft, usage = await (_streamed(request, params, on_delta) if on_delta else _whole(request, params))
        except TimeoutError:
            raise timed_out(model, timeout_s) from None
        calls = draft.tool_calls(names, {str(call.get("id")) for call in wire.told_calls(messages)})
        reply = Reply(text=draft.text, usage=usage, model=model, finish_reason=draft.finish_reason, tool_calls=calls)
        told.reply(reply, draft)
        if not (draft.text or calls or allow_empty):
            raise empty(model, draft.finish_reason)
        return reply


async def _whole(request: dict[str, Any], params: Mapping[str, JsonValue]) -> tuple[ReplyBuilder, Usage]:
    draft = ReplyBuilder()
    with _explained(request["model"], params):
        fault_points.at("model-sent")
        response = await load().acompletion(**request)
        fault_points.at("model-answered")
    draft.take(response)
    return draft, _usage(request["model"], response)


async def _streamed(request: dict[str, Any], params: Mapping[str, JsonValue], on_delta: OnDelta) -> tuple[ReplyBuilder, Usage]:
    litellm, model = load(), request["model"]
    draft, chunks = ReplyBuilder(), []
    with _explained(model, params):
        fault_points.at("model-sent")
        stream = await litellm.acompletion(**{**request, **STREAM})
    try:
        while True:
            with _explained(model, params, has_begun=True):
                chunk = await anext(stream, None)
            if chunk is None:
                break
            chunks.append(chunk)
            if text := draft.add(chunk):
                on_delta(text)
    finally:
        await stream.aclose()  # hangs up, if it is not at its end
    fault_points.at("model-answered")
    if stream.received_finish_reason is None:  # LiteLLM makes one up where a connection just ends
        raise broken_off(model)
    with _explained(model, params):
        usage = _usage(model, litellm.stream_chunk_builder(chunks))
    return draft, usage if usage.input_tokens or usage.output_tokens else _estimated(model, request, draft)


def _estimated(model: str, request: Mapping[str, Any], draft: ReplyBuilder) -> Usage:
    """What a stream took whose provider does not tell."""
    asked = len(json.dumps(request["messages"], ensure_ascii=False)) // CHARACTERS_PER_TOKEN + 1
    answered = len(draft.text) // CHARACTERS_PER_TOKEN + 1
    return Usage(input_tokens=asked, output_tokens=answered, cost_usd=max_usd(model, asked, answered), model_calls=1)


def _usage(model: str, response: Any) -> Usage:
    told = getattr(response, "usage", None)
    return Usage(
        input_tokens=getattr(told, "prompt_tokens", None) or 0,
        output_tokens=getattr(told, "completion_tokens", None) or 0,
        cost_usd=_cost_usd(model, response),
        model_calls=1,
    )


def _cost_usd(model: str, response: Any) -> float | None:
    """None where LiteLLM has no price: it may say 0 then, as it does for what is free."""
    cost: float | None = response._hidden_params.get("response_cost")
    return cost if cost or _has_price(model) else None


def _has_price(model: str) -> bool:
    prices = load().model_cost
    price = prices.get(model) or prices.get(model.partition("/")[2]) or {}
    return price.get("input_cost_per_token") is not None


@contextmanager
def _explained(model: str, params: Mapping[str, JsonValue], *, has_begun: bool = False) -> Iterator[None]:
    """What LiteLLM raises within becomes a ModelError; `has_begun` tells that the answer had."""
    try:
        yield
    except TimeoutError:
        raise
    except Exception as error:  # noqa: BLE001  # LiteLLM raises whatever its providers raise
        raise _failure(model, error, params, has_begun=has_begun) from None  # its own text may hold the key


def _failure(model: str, error: Exception, params: Mapping[str, JsonValue], *, has_begun: bool) -> ModelError:
    error = getattr(error, "original_exception", error)  # of a stream
    chain = list(_chain(error))
    if told := next((each for each in chain if isinstance(each, ModelError)), None):
        return told  # by the embedded model, and wrapped on its way
    failure = Failure(
        model=model, text=str(error), status=getattr(error, "status_code", None), headers=_headers(error),
        is_broken=any(isinstance(each, ImportError) for each in chain), has_begun=has_begun,
    )  # fmt: skip
    return explain(failure, _setting(model, params), now=datetime.now(UTC))


def _setting(model: str, params: Mapping[str, JsonValue]) -> Setting:
    litellm, secrets = load(), secrets_in({**os.environ, **params})
    try:
        litellm.get_llm_provider(model=model, api_base=params.get("api_base"))
    except Exception:  # noqa: BLE001  # its way to say that it knows none
        providers = [str(getattr(provider, "value", provider)) for provider in litellm.provider_list]
        return Setting(providers, is_known=False, secrets=secrets)
    missing = [] if params.get("api_key") else litellm.validate_environment(model)["missing_keys"]
    return Setting(missing_keys=missing, secrets=secrets)


def _headers(error: Exception) -> Mapping[str, str] | None:
    """Those of the provider's answer; LiteLLM puts an empty response where there was none."""
    return getattr(error, "litellm_response_headers", None) or getattr(getattr(error, "response", None), "headers", None) or None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
