"""A cache of replies: a model is not called twice with the same request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TypedDict, Unpack

from pydantic import ValidationError

from cantata.features.memory import cache
from cantata.flows.definitions import Model, ReplyCache
from cantata.ledger.redis.connection import Redis
from cantata.values import JsonValue, ToolSchema, Usage
from cantata_workers.models.dialects.reasoning import without_reasoning
from cantata_workers.models.llm.completions import OnDelta, complete
from cantata_workers.models.llm.model_replies import Reply
from cantata_workers.models.llm.openai_messages import Messages

FINISHED = ("stop", "tool_calls")  # a reply that was truncated or filtered may be better the next time


class Options(TypedDict, total=False):
    """The arguments of `complete` beside the model and the messages."""

    schema: Mapping[str, JsonValue] | None
    tools: Sequence[ToolSchema]
    tool_choice: str | None
    timeout_s: float
    on_delta: OnDelta | None
    allow_empty: bool


async def complete_with_cache(
    redis: Redis,
    tenant: str,
    model: Model,
    messages: Messages,
    *,
    payer: cache.Payer | None = None,
    **options: Unpack[Options],
) -> Reply:
    """Return the reply of `complete`, and store that of a model with `cache` for the tenant, or for all; the quota of `payer` counts it."""
    reply = await complete(model.model, messages, params=model.params, tenant=tenant, **options)
    if model.cache and reply.finish_reason in FINISHED and (reply.text or reply.tool_calls):
        key, owner, text = key_of(model, messages, **options), _owner(tenant, model.cache), reply.model_dump_json()
        await asyncio.to_thread(cache.remember, redis, owner, key, text, ttl_s=model.cache.ttl_s, payer=payer)
    return reply


async def cached_reply(
    redis: Redis, tenant: str, model: Model, messages: Messages, **options: Unpack[Options]
) -> Reply | None:
    """Return the reply of a model with `cache` to the same request of the tenant before, which costs nothing; None if it must be called."""
    if model.cache is None:
        return None
    known = await asyncio.to_thread(_look_up, redis, _owner(tenant, model.cache), key_of(model, messages, **options))
    if known and known.text and (on_delta := options.get("on_delta")):
        on_delta(known.text)
    return known


def key_of(model: Model, messages: Messages, **options: Unpack[Options]) -> str:
    """Return the key of a reply: a digest of all that it depends on."""
    request = {
        "model": model.model, "params": model.params, "messages": without_reasoning(messages), "schema": options.get("schema"),
        "tools": [tool.model_dump() for tool in options.get("tools", ())], "tool_choice": options.get("tool_choice"),
    }  # fmt: skip
    return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def _owner(tenant: str, settings: ReplyCache) -> str | None:
    return None if settings.share == "all" else tenant


def _look_up(redis: Redis, owner: str | None, key: str) -> Reply | None:
    text = cache.recall(redis, owner, key)
    try:
        reply = Reply.model_validate_json(text) if text else None
    except ValidationError:  # of another version
        return None
    if reply is None:
        return None
    cost = None if reply.usage.cost_usd is None else 0.0  # so that a sum with calls of an unknown price stays unknown
    return reply.model_copy(update={"cached": True, "usage": Usage(cost_usd=cost)})
