"""Model calls through LiteLLM, one request each.

LiteLLM neither retries nor falls back here: a failure becomes a ModelError, and the ledger decides about retries.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from cantata.errors import ModelError
from cantata.flows import provider_schemas
from cantata.operation import fault_points
from cantata.operation.logs.secrets import secrets_in
from cantata.values import JsonValue, ToolSchema, Usage
from cantata_workers.models.dialects.reasoning import may_think, origin_of, reasoning_of, sent_back
from cantata_workers.models.llm import openai_messages as wire
from cantata_workers.models.llm.call_telemetry import measured, set_reply, traced
from cantata_workers.models.llm.failures import TEXT_LIMIT, Failure, ProviderInfo, explain
from cantata_workers.models.llm.library import (
    CHARACTERS_PER_TOKEN,
    estimate_tokens,
    estimate_usage,
    has_price,
    load,
    missing_keys,
    provider_of,
)
from cantata_workers.models.llm.model_replies import Reply, ReplyBuilder
from cantata_workers.models.llm.openai_messages import Messages, ToolNames

OnDelta = Callable[[str], object]
"""Receives each piece of text as it comes."""

ONE_REQUEST: Mapping[str, JsonValue] = {"stream": False, "max_retries": 0, "num_retries": 0}
STREAM: Mapping[str, JsonValue] = {"stream": True, "stream_options": {"include_usage": True}}


@measured
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
    tenant: str = "",  # for `measured`
) -> Reply:
    """Return the model's reply to the messages, by one request. Cancelling stops the request.

    Args:
        params: Passed to LiteLLM as they are, save `examples`, a list of `{text, label}`: they become earlier turns of the
            conversation, and `local/...` scores labels by them.
        schema: A JSON schema; the reply's text is then JSON that should fit it.
        tools: The tools that may be called. Keep them, with the choice `none`, in a conversation that contains earlier calls.
        tool_choice: `auto` (or None), `none`, `required` (at least one call), or the name of the tool that must be called.
        on_delta: Receives the text in pieces, on the event loop; the reply is the same as without it.
        allow_empty: Whether the reply may have neither text nor tool calls.
        tenant: The tenant in the metrics of the call.

    Raises ModelError with one of the codes in `failures.ERRORS`.
    """
    load()
    names = ToolNames.of([*(tool.name for tool in tools), *wire.tool_names_in(messages)])
    request = request_of(model, messages, params, names, schema=schema, tools=tools, tool_choice=tool_choice)
    request |= {"timeout": timeout_s, **ONE_REQUEST}
    with traced(model, request, is_streamed=on_delta is not None) as span:
        try:
            async with asyncio.timeout(timeout_s):
                builder, usage = await (_streamed(request, params, on_delta) if on_delta else _whole(request, params))
        except TimeoutError:
            raise ModelError(
                f"model {model!r} did not answer within {timeout_s:g} s", code="model_timeout", retryable=True
            ) from None
        calls = builder.tool_calls(names, {str(call.get("id")) for call in wire.calls_in(messages)})
        provider, call_ids = provider_of(model, params), [call.id for call in calls]
        origin = origin_of(provider, model, str(params.get("api_base") or ""))
        reasoning = reasoning_of(builder.message, provider, origin, tagged=builder.tags.reasoning, call_ids=call_ids)
        reply = Reply(
            text=builder.text,
            usage=usage,
            model=model,
            finish_reason=builder.finish_reason,
            tool_calls=calls,
            reasoning=reasoning,
        )
        set_reply(span, reply, builder)
        _check_refusal(model, builder)
        if not (builder.text or calls or allow_empty):
            fault = f"gave an empty reply (finish reason {builder.finish_reason!r})"
            raise ModelError(f"model {model!r} {fault}", code="model_empty", retryable=True)
        return reply


def _check_refusal(model: str, builder: ReplyBuilder) -> None:
    """Raise a ModelError for a reply that a model refused, or its provider stopped, by its filter or because it failed."""
    if builder.refusal and not (builder.text.strip() or builder.calls):
        raise ModelError(f"model {model!r} refuses to answer: {builder.refusal[:TEXT_LIMIT]}", code="refusal")
    if builder.finish_reason == "refusal":  # of Anthropic, which says why or leaves it at that
        text = builder.text[:TEXT_LIMIT].strip() or "it gives no reason"
        raise ModelError(f"model {model!r} refuses to answer: {text}", code="refusal")
    if builder.finish_reason == "error":
        raise ModelError(
            f"model {model!r}: its provider failed during the answer", code="model_unavailable", retryable=True
        )
    if builder.finish_reason == "content_filter":
        text = (builder.refusal or builder.text)[:TEXT_LIMIT]
        so_far = f"; it had said: {text}" if text.strip() else ""
        raise ModelError(
            f"model {model!r}: the content filter of its provider stopped the reply{so_far}", code="content_filter"
        )


def request_of(
    model: str,
    messages: Messages,
    params: Mapping[str, JsonValue],
    names: ToolNames,
    *,
    schema: Mapping[str, JsonValue] | None = None,
    tools: Sequence[ToolSchema] = (),
    tool_choice: str | None = None,
) -> dict[str, Any]:
    """Return the request of a call: the arguments of LiteLLM, as `complete` has them."""
    provider = provider_of(model, params)
    origin = origin_of(provider, model, str(params.get("api_base") or ""))
    sent = [wire.on_the_wire(sent_back(message, origin), names) for message in messages]
    request: dict[str, Any] = {**params, "model": model, "messages": sent}
    if "thinking" in request and not may_think(sent, provider):
        del request["thinking"]
    if (examples := request.pop("examples", None)) is not None:
        request["messages"] = wire.with_examples(request["messages"], examples, schema)
    if schema is not None:
        request["response_format"] = provider_schemas.response_format(schema, provider)
        if request["response_format"] == provider_schemas.JSON_ALONE:
            request["messages"] = wire.with_schema(request["messages"], schema)
    if fitted := provider_schemas.fit_tools(tools, provider).tools:
        request["tools"] = wire.functions(fitted, names)
        request |= {"tool_choice": wire.choice(tool_choice, names)} if tool_choice else {}
    return request


async def _whole(request: dict[str, Any], params: Mapping[str, JsonValue]) -> tuple[ReplyBuilder, Usage]:
    builder = ReplyBuilder()
    with model_errors(request["model"], params):
        fault_points.at("model-sent")
        response = await load().acompletion(**request)
        fault_points.at("model-answered")
    builder.set_response(response)
    return builder, _reported_or_estimated(_usage(request["model"], response), request, builder)


async def _streamed(
    request: dict[str, Any], params: Mapping[str, JsonValue], on_delta: OnDelta
) -> tuple[ReplyBuilder, Usage]:
    litellm, model = load(), request["model"]
    builder, chunks = ReplyBuilder(), []
    with model_errors(model, params):
        fault_points.at("model-sent")
        stream = await litellm.acompletion(**{**request, **STREAM})
    try:
        while True:
            with model_errors(model, params, has_begun=True):
                chunk = await anext(stream, None)
            if chunk is None:
                break
            chunks.append(chunk)
            if text := builder.add_chunk(chunk):
                on_delta(text)
    finally:
        await stream.aclose()  # closes the connection, if the stream is not at its end
    fault_points.at("model-answered")
    if not (
        stream.received_finish_reason or stream.intermittent_finish_reason
    ):  # LiteLLM invents one where a connection just ends
        raise ModelError(
            f"model {model!r}: the answer broke off before its end", code="model_unavailable", retryable=True
        )
    with model_errors(model, params):
        response = litellm.stream_chunk_builder([_with_known_reason(chunk) for chunk in chunks])
        usage = _usage(model, response)
    if rest := builder.end_stream(response):
        on_delta(rest)
    return builder, _reported_or_estimated(usage, request, builder)


def _with_known_reason(chunk: Any) -> Any:
    """Return a chunk of a stream whose finish reason LiteLLM's own response may have; ours is known by then."""
    for choice in chunk.choices:
        if choice.finish_reason in ("refusal", "error"):
            choice.finish_reason = "content_filter"
    return chunk


def _reported_or_estimated(usage: Usage, request: Mapping[str, Any], builder: ReplyBuilder) -> Usage:
    """Return the reported usage of a call; an estimate if the provider reported none, since limits and budgets would count 0."""
    if usage.input_tokens or usage.output_tokens:
        return usage
    written = len(builder.text) // CHARACTERS_PER_TOKEN + 1
    return estimate_usage(request["model"], estimate_tokens(request["messages"]), written)


def _usage(model: str, response: Any) -> Usage:
    reported = getattr(response, "usage", None)
    cost: float | None = response._hidden_params.get("response_cost")
    return Usage(
        input_tokens=getattr(reported, "prompt_tokens", None) or 0,
        output_tokens=getattr(reported, "completion_tokens", None) or 0,
        cost_usd=cost
        if cost or has_price(model)
        else None,  # without a price LiteLLM may report 0, as it does for free models
        model_calls=1,
    )


@contextmanager
def model_errors(model: str, params: Mapping[str, JsonValue], *, has_begun: bool = False) -> Iterator[None]:
    """Turn the errors of LiteLLM into ModelErrors; `has_begun` is whether a part of the answer had come."""
    try:
        yield
    except TimeoutError:
        raise
    except Exception as error:  # noqa: BLE001  # LiteLLM raises whatever its providers raise
        raise _failure(model, error, params, has_begun=has_begun) from None  # its own text may hold the key


def _failure(model: str, error: Exception, params: Mapping[str, JsonValue], *, has_begun: bool) -> ModelError:
    error = getattr(error, "original_exception", error)  # of a stream
    chain = list(_chain(error))
    if own := next((each for each in chain if isinstance(each, ModelError)), None):
        return own  # of the embedded model, wrapped by LiteLLM
    # Where there was no answer LiteLLM makes an empty response.
    headers = (
        getattr(error, "litellm_response_headers", None)
        or getattr(getattr(error, "response", None), "headers", None)
        or None
    )
    failure = Failure(
        model=model,
        text=str(error),
        reason=_reason(chain),
        status=getattr(error, "status_code", None),
        headers=headers,
        is_broken=any(isinstance(each, ImportError) for each in chain),
        has_begun=has_begun,
        address=_address(chain),
    )
    return explain(failure, _provider_info(model, params), now=datetime.now(UTC))


def _provider_info(model: str, params: Mapping[str, JsonValue]) -> ProviderInfo:
    litellm, secrets = load(), secrets_in({**os.environ, **params})
    try:
        litellm.get_llm_provider(model=model, api_base=params.get("api_base"))
    except Exception:  # noqa: BLE001  # LiteLLM raises it for a model without a known provider
        providers = [str(getattr(provider, "value", provider)) for provider in litellm.provider_list]
        return ProviderInfo(providers, is_known=False, secrets=secrets)
    return ProviderInfo(missing_keys=missing_keys(model, params), secrets=secrets)


def _address(chain: Sequence[BaseException]) -> str:
    """Return the host and port of the request that found no connection; LiteLLM's own errors name others."""
    import httpx  # noqa: PLC0415  # LiteLLM has loaded it, and this module is loaded without

    failed = next((each for each in chain if isinstance(each, httpx.TransportError)), None)
    try:
        return failed.request.url.netloc.decode() if failed else ""
    except RuntimeError:  # it has no request
        return ""


def _reason(chain: Sequence[BaseException]) -> str:
    """Return the codes in the body of the provider's answer, which LiteLLM's text leaves out."""
    body = next((body for each in chain if isinstance(body := getattr(each, "body", None), dict)), {})
    body = body["error"] if isinstance(body.get("error"), dict) else body
    return " ".join(str(body[key])[:100] for key in ("code", "type", "status") if body.get(key))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
