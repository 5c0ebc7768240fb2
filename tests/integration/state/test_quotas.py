"""Quotas of tenants: past one only that tenant is refused, and what is under way goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from cantata.errors import ConfigError, UnavailableError
from cantata.features.memory.memory_store import MemoryStore
from cantata.flows.definitions import Limits, Quota
from cantata.ledger.intervals import RETENTION_S
from cantata.ledger.ledger import Ledger
from cantata.ledger.quotas import Quotas
from cantata.ledger.redis.keys import SHARDS, shard_key
from cantata.ledger.step_store import EARLY_SIGNALS
from cantata.surfaces.gateway.http_errors import chain_rejection, rejection
from cantata.values import JsonValue
from tests.integration.state.invariants import check_all
from tests.integration.state.play import Play, row, wait, work

NONE = Quota()


@pytest.fixture
def quotas(valkey: Redis) -> Iterator[Quotas]:
    """The quotas of a Redis without runs; what a test leaves must be sound."""
    valkey.flushdb()
    yield Ledger(valkey).quotas
    check_all(valkey)


def accept(ledger: Ledger, run_id: str, tenant: str, *, request: str = "{}", retention_s: float = RETENTION_S) -> None:
    ledger.runs.accept(
        run_id,
        kind="turn",
        request=request,
        definitions="{}",
        timeout_s=60,
        max_attempts=3,
        max_steps=100,
        labels={"tenant": tenant},
        retention_s=retention_s,
    )


def test_past_its_open_runs_a_tenant_is_refused_and_others_are_not(quotas: Quotas, valkey: Redis) -> None:
    ledger, quota = Ledger(valkey), Quota(open_runs=3)
    for n in range(3):
        quotas.check("busy", quota)
        accept(ledger, f"run{n}", "busy")

    with pytest.raises(
        ConfigError, match=r"tenant 'busy' has used up its quota limits\.quotas open_runs: 3 of 3 runs are open"
    ) as refused:
        quotas.check("busy", quota)

    answer = rejection(refused.value)
    assert (answer.status, answer.code, answer.retry_after_s) == (429, "quota_exceeded", 5)
    chain = chain_rejection(refused.value)
    assert (chain.status_code, chain.headers["Retry-After"]) == (429, "6")
    quotas.check("quiet", quota)
    ledger.runs.cancel("run1")
    quotas.check("busy", quota)


def kept(valkey: Redis, tenant: str) -> int:
    return sum(int(valkey.hget(f"{shard_key(valkey, shard)}:bytes", tenant) or 0) for shard in range(SHARDS))


def test_what_runs_keep_counts_until_they_expire(quotas: Quotas, valkey: Redis) -> None:
    ledger = Ledger(valkey)
    play = Play(ledger)
    play.plan(work("a"), work("b"))
    before = kept(valkey, "")
    large: JsonValue = "x" * 100_000
    play.do("a", large)
    ledger.runs.append_log("run", ["y" * 1000] * 5, most=100, most_bytes=3000)

    assert 103_000 <= kept(valkey, "") - before <= 104_000, "what was dropped of the log does not count"
    with pytest.raises(
        ConfigError, match=r"it keeps 1..,... of 100,000 bytes; delete schedules, memories or conversations, wait"
    ):
        quotas.check("", Quota(kept_bytes=100_000))
    quotas.check("other", Quota(kept_bytes=100_000))

    play.do("b")
    assert play.status == "succeeded", "a run under way goes on"
    ledger.runs.append_log("run", ["late"], most=100, most_bytes=3000)
    valkey.zadd(f"{play.shard}:finished", {"run": 1.0})
    play.sweep()

    assert kept(valkey, "") == 0
    assert not valkey.exists(f"{play.shard}:bytes", f"{play.shard}:sizes")


def test_log_lines_have_a_quota_of_their_own(quotas: Quotas, valkey: Redis) -> None:
    ledger, quota = Ledger(valkey), Quota(log_bytes=4000)
    play = Play(ledger)
    play.plan(work("a"), work("b"))
    ledger.runs.append_log("run", ["y" * 1000] * 3, most=100, most_bytes=10_000)
    quotas.check("", quota)
    play.do("a", "x" * 10_000)
    quotas.check("", quota)
    ledger.runs.append_log("run", ["y" * 1000], most=100, most_bytes=10_000)

    with pytest.raises(
        ConfigError,
        match=r"log_bytes: its runs keep 4,000 of 4,000 bytes of log lines; wait until finished runs expire",
    ):
        quotas.check("", quota)
    quotas.check("other", quota)

    play.do("b")
    valkey.zadd(f"{play.shard}:finished", {"run": 1.0})
    play.sweep()
    quotas.check("", quota)
    assert not valkey.exists(f"{play.shard}:log_bytes")


@pytest.mark.parametrize("end", ["cancelled", "succeeded"])
def test_early_signals_count_while_their_run_is_open(quotas: Quotas, valkey: Redis, end: str) -> None:
    quota = Quota(early_signals=3)
    play, other = Play(Ledger(valkey)), Play(Ledger(valkey), "other")
    for each in (play, other):
        each.plan(work("a"), wait("flow/w"), wait("v"), edges=row("a", "flow/w", "v"), terminals=("v",))
    for step in ("w", "v"):
        assert play.ledger.steps.signal("run", step, 1)[0] == "kept"
    assert quotas.early_signal_refusal("", quota) is None
    assert other.ledger.steps.signal("other", "v", 1)[0] == "kept"

    refused = quotas.early_signal_refusal("", quota)

    assert refused is not None
    assert refused.code == "quota_exceeded"
    assert (
        "early_signals: its open runs keep 3 of 3 signals for steps that do not wait yet; send it when the step waits"
        in str(refused)
    )
    assert quotas.early_signal_refusal("busy", quota) is None
    assert other.ledger.steps.signal("other", "w", 1, max_kept=0)[0] == "full"
    if end == "succeeded":
        play.do("a")
    else:
        play.ledger.runs.cancel("run")
    assert play.status == end
    assert quotas.early_signal_refusal("", quota) is None
    other.ledger.runs.cancel("other")
    assert not valkey.exists(f"{play.shard}:signals", f"{other.shard}:signals")


@pytest.mark.parametrize("name", ["flow/w", "w"])
def test_a_signal_counts_no_more_when_its_step_has_had_it(quotas: Quotas, valkey: Redis, name: str) -> None:
    quota = Quota(early_signals=1)
    play = Play(Ledger(valkey))
    play.plan(work("a"), wait("flow/w"), work("b"), edges=row("a", "flow/w", "b"), terminals=("b",))
    assert play.ledger.steps.signal("run", name, 1)[0] == "kept"
    assert play.ledger.steps.signal("run", name, 1)[0] == "over"
    assert quotas.early_signal_refusal("", quota) is not None

    play.do("a")

    assert play.words("flow/w") == "done"
    assert quotas.early_signal_refusal("", quota) is None
    assert play.ledger.steps.signal("run", name, 1)[0] == "over"


def test_a_redis_that_is_nearly_full_refuses_new_runs_and_ends_those_under_way(quotas: Quotas, valkey: Redis) -> None:
    play = Play(Ledger(valkey))
    play.plan(work("a"))
    used = int(valkey.info("memory")["used_memory"])
    valkey.config_set("maxmemory", int(used / 0.85))
    try:
        quotas.check("", NONE)
        valkey.config_set("maxmemory", int(used / 0.95))
        with pytest.raises(UnavailableError, match=r"Redis is nearly full .* so no new runs are accepted"):
            Ledger(valkey).quotas.check("", NONE)
        play.do("a")
        assert play.status == "succeeded"
    finally:
        valkey.config_set("maxmemory", 0)


def test_a_run_keeps_a_bounded_number_of_signals_for_steps_that_do_not_wait_yet(quotas: Quotas, valkey: Redis) -> None:
    play = Play(Ledger(valkey))
    play.plan(work("first"), wait("w"), edges=row("first", "w"))
    valkey.hset(f"{play.shard}:run:run:signals", mapping={f"s{n}": "1" for n in range(EARLY_SIGNALS)})

    assert play.ledger.steps.signal("run", "another", 1) == ("full", ())
    assert play.ledger.steps.signal("run", "s1", 1) == ("over", ())
    play.do("first")
    assert play.ledger.steps.signal("run", "w", 1)[0] == "taken"


def test_memories_count_until_they_are_deleted_or_expire(valkey: Redis) -> None:
    valkey.flushdb()
    limits = Limits(quotas={"acme": Quota(memory_namespaces=2, memory_bytes=3000)})
    bank = MemoryStore(Ledger(valkey), tenant="acme", limits=limits)
    bank.store_memory("k", "v" * 500, "one")
    bank.of(session="s").store_memory("k", "v", "two", ttl_s=60)

    with pytest.raises(
        ConfigError, match=r"memory_namespaces: 2 of 2 are kept; delete some, or wait until some expire"
    ) as refused:
        bank.append("k", "v", "three")
    assert refused.value.code == "quota_exceeded"
    with pytest.raises(ConfigError, match="memory_bytes: "):
        bank.store_memory("other", "v" * 1500, "one", ttl_s=3600)
    bank.store_memory("k", "short", "one")
    bank.store_memory("other", "v" * 1200, "one", ttl_s=3600)
    MemoryStore(Ledger(valkey), tenant="quiet", limits=limits).store_memory("k", "v" * 1500, "any")

    assert bank.delete_memory("other", "one")
    bank.of(session="s").clear_memories()
    bank.clear_memories()
    assert not valkey.exists(
        "cantata:{memory:acme}:lasting", "cantata:{memory:acme}:kept", "cantata:{memory:acme}:ending"
    )
