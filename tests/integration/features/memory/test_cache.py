"""Replies that are given again: over real HTTP to a scripted server, and from a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from cantata.features.memory import cache
from cantata.flows.definitions import Model, ReplyCache
from cantata.ledger.redis.connection import connect
from cantata.testing import Rule, ScriptedModels
from cantata.testing import ToolCall as Scripted
from cantata.values import ToolCallRequest, ToolSchema, Usage
from cantata_workers.models import llm

MODEL = Model(model="openai/gpt-4o-mini", params={"temperature": 0}, cache=ReplyCache(ttl_s=60))
TOOLS = (ToolSchema(name="files.read", parameters={}),)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    llm.load()
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def redis(valkey: Redis) -> Redis:
    valkey.flushdb()
    return valkey


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedModels]:
    with ScriptedModels() as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test-1234567890abcdef")
        yield server


async def ask(
    redis: Redis, text: str = "hi", *, model: Model = MODEL, fresh: bool = False, tenant: str = "", **options: Any
) -> llm.Reply:
    messages = [{"role": "user", "content": text}]
    known = None if fresh else await llm.cached_reply(redis, tenant, model, messages, **options)
    return known or await llm.complete_with_cache(redis, tenant, model, messages, **options)


@pytest.mark.slow("a stack of its own starts and ends")
def test_the_same_request_is_answered_without_the_model(
    loop: asyncio.Runner, redis: Redis, server: ScriptedModels
) -> None:
    server.script([Rule(reply="seen", tool_calls=(Scripted(name="files__read"),))])

    first, second = loop.run(ask(redis, tools=TOOLS)), loop.run(ask(redis, tools=TOOLS))

    assert (first.cached, second.cached) == (False, True)
    assert first.usage.cost_usd
    assert second.usage == Usage(cost_usd=0.0)
    assert (second.text, second.tool_calls) == ("seen", (ToolCallRequest(id="call_0", name="files.read"),))
    assert len(server.journal()) == 1


def test_whatever_the_reply_depends_on_tells_requests_apart(
    loop: asyncio.Runner, redis: Redis, server: ScriptedModels
) -> None:
    other = [
        MODEL.model_copy(update={"params": {"temperature": 1}}),
        MODEL.model_copy(update={"model": "openai/gpt-4o"}),
    ]

    loop.run(ask(redis))
    replies = [
        *(loop.run(ask(redis, model=model)) for model in other),
        loop.run(ask(redis, "ho")),
        loop.run(ask(redis, tools=TOOLS)),
        loop.run(ask(redis, tools=TOOLS, tool_choice="none")),
        loop.run(ask(redis, schema={"enum": ["a"]})),
    ]

    assert not any(reply.cached for reply in replies)


TENANTS = ["", "acme", "acme:x", "*", "%2A", "evil"]


def test_a_tenant_gets_no_reply_of_another(loop: asyncio.Runner, redis: Redis, server: ScriptedModels) -> None:
    first, second = ([loop.run(ask(redis, tenant=tenant)).cached for tenant in TENANTS] for _ in range(2))

    assert (first, second) == ([False] * len(TENANTS), [True] * len(TENANTS))
    assert len(server.journal()) == len(redis.keys("*")) == len(TENANTS)


def test_tenants_share_replies_where_the_model_says_so(
    loop: asyncio.Runner, redis: Redis, server: ScriptedModels
) -> None:
    shared = MODEL.model_copy(update={"cache": ReplyCache(ttl_s=60, share="all")})

    loop.run(ask(redis, tenant=""))
    loop.run(ask(redis, tenant="acme"))

    assert [loop.run(ask(redis, model=shared, tenant=tenant)).cached for tenant in TENANTS] == [
        False,
        *[True] * (len(TENANTS) - 1),
    ]
    assert not loop.run(ask(redis, tenant="evil")).cached, "another configuration, which does not share"


def test_a_stream_from_the_cache_is_one_piece(loop: asyncio.Runner, redis: Redis, server: ScriptedModels) -> None:
    pieces: list[str] = []

    loop.run(ask(redis, "a b"))
    reply = loop.run(ask(redis, "a b", on_delta=pieces.append, timeout_s=9))

    assert reply.cached
    assert pieces == ["echo: a b"]


def test_a_model_without_a_cache_is_asked_each_time(loop: asyncio.Runner, redis: Redis, server: ScriptedModels) -> None:
    model = MODEL.model_copy(update={"cache": None})

    assert not any(loop.run(ask(redis, model=model)).cached for _ in range(2))
    assert redis.keys("*") == []


def test_a_reply_of_no_use_is_replaced(loop: asyncio.Runner, redis: Redis, server: ScriptedModels) -> None:
    server.script([Rule(reply="bad", times=1), Rule(reply="good")])

    replies = [loop.run(ask(redis)), loop.run(ask(redis, fresh=True)), loop.run(ask(redis))]

    assert [(reply.text, reply.cached) for reply in replies] == [("bad", False), ("good", False), ("good", True)]


@pytest.mark.parametrize("rule", [Rule(reply="cut", finish_reason="length"), Rule(reply="")])
def test_a_reply_that_may_be_better_the_next_time_is_not_kept(
    loop: asyncio.Runner, redis: Redis, server: ScriptedModels, rule: Rule
) -> None:
    server.script([rule])

    loop.run(ask(redis, allow_empty=True))

    assert redis.keys("*") == []


def test_an_unknown_price_stays_unknown(loop: asyncio.Runner, redis: Redis, server: ScriptedModels) -> None:
    model = MODEL.model_copy(update={"model": "openai/our-own"})

    loop.run(ask(redis, model=model))

    assert loop.run(ask(redis, model=model)).usage == Usage()


def test_what_is_remembered_is_forgotten_in_time(redis: Redis) -> None:
    cache.remember(redis, "acme", "key", "text", ttl_s=600)

    assert cache.recall(redis, "acme", "key") == "text"
    assert 500_000 < redis.pttl("cantata:{cache}:acme:key") <= 600_000
    assert cache.recall(redis, "acme", "other") is None


def test_what_another_version_remembered_is_as_if_forgotten(
    loop: asyncio.Runner, redis: Redis, server: ScriptedModels
) -> None:
    loop.run(ask(redis))
    (key,) = redis.keys("*")
    redis.set(key, '{"text": "old"}')

    assert not loop.run(ask(redis)).cached


def test_without_its_redis_the_model_is_asked(loop: asyncio.Runner, server: ScriptedModels) -> None:
    gone = connect("unix:///tmp/there-is-none.sock")

    assert [loop.run(ask(gone)).cached for _ in range(2)] == [False, False]
