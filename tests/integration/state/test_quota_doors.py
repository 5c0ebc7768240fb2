"""Every door at which a tenant stores something asks its quota, and no other tenant notices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from redis import Redis

from cantata.bounds import LABEL_BYTES, MAX_LABELS
from cantata.client.client import Client
from cantata.errors import CantataError, ConfigError, UnavailableError
from cantata.features.batches.batch_store import BatchTarget
from cantata.features.forks import fork_store
from cantata.features.forks import rewind as rewinding
from cantata.features.forks.staging import Stage
from cantata.features.memory import cache
from cantata.features.memory.memory_store import MemoryStore
from cantata.features.sessions.builders import Builder
from cantata.features.sessions.sessions import Sessions
from cantata.flows.definitions import Agent, Definitions, Limits, Quota, SessionSettings, Tool
from cantata.flows.schedules import Schedule
from cantata.flows.wire import HistoryEntry
from cantata.ledger.conversations import scoped
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import SHARDS, run_key, shard_key, shard_of
from tests.integration.state.play import Play, row, wait, work
from tests.integration.test_threads import url_of

LARGE = "x" * 150_000
EVERY: dict[str, Any] = {"every": "3000d", "turn": {"text": "hi", "agent": "writer"}}
CHAIN: dict[str, Any] = {"nodes": [{"node_id": "v", "kind": "tool", "name": "count"}], "entry_node": "v"}


def with_quota(**quota: int) -> Definitions:
    return Definitions(
        agents={"writer": Agent(description="Writes.")},
        tools={"count": Tool(function="json:dumps")},
        limits=Limits(quotas={"evil": Quota.model_validate(quota)}),
        sessions=SessionSettings(max_entries=4),
    )


@pytest.fixture
def client(ledger: Ledger) -> Iterator[Client]:
    with Client(url_of(ledger.redis), config=with_quota(kept_bytes=100_000)) as client:
        yield client


def labels_of(tenant: str) -> dict[str, str]:
    return {"tenant": tenant}


def signal(client: Client, tenant: str) -> None:
    play = Play(client.ledger, f"run-{tenant}", labels=labels_of(tenant))
    play.plan(wait("w"))
    client.run(play.run_id).signal("w", LARGE)


def fork(client: Client, tenant: str) -> None:
    run = client.submit_turn("x" * 60_000, agent="writer", labels=labels_of(tenant))
    run.cancel()
    client.retry(run.run_id)


def backfill(client: Client, tenant: str) -> None:
    schedules = client.schedules.of(tenant)
    schedules.create("s", {**EVERY, "every": "1h", "labels": {f"l{n}": "v" * LABEL_BYTES for n in range(30)}})
    start = schedules.get("s").now_ms
    from_, to = (datetime.fromtimestamp(start / 1000 + 3600 * hours, UTC) for hours in (0, 20))
    schedules.backfill("s", from_, to, labels={f"l{n}": "v" * LABEL_BYTES for n in range(30)})


DOORS: dict[str, Callable[[Client, str], object]] = {
    "turn": lambda client, tenant: client.submit_turn(LARGE, agent="writer", labels=labels_of(tenant)),
    "chain": lambda client, tenant: client.submit_chain(
        {**CHAIN, "initial_input": {"value": LARGE}}, labels=labels_of(tenant)
    ),
    "fork": fork,
    "signal": signal,
    "schedule": lambda client, tenant: client.schedules.of(tenant).create("s", {**EVERY, "turn": {"text": LARGE, "agent": "writer"}}),
    "backfill": backfill,
    "batch": lambda client, tenant: client.batches.of(tenant).open(
        "b", BatchTarget(kind="agent", name="writer"), columns={"c": LARGE}
    ),
    "memory": lambda client, tenant: client.memory.of(tenant=tenant).store_memory("k", LARGE, ttl_s=60),
    "memory list": lambda client, tenant: client.memory.of(tenant=tenant).append("k", LARGE),
    "builder": lambda client, tenant: Builder(client.ledger, "b", tenant, client.definitions.limits.quota_of(tenant)).update(
        ["plan"], lambda _: {"plan": LARGE}
    ),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_what_a_quota_has_no_room_for_is_refused_at_each_door(client: Client, valkey: Redis, door: str) -> None:
    with pytest.raises(
        ConfigError, match=r"tenant 'evil' has used up its quota limits\.quotas kept_bytes: it keeps [\d,]+ of 100,000"
    ):
        DOORS[door](client, "evil")

    assert used(client.ledger, "evil") < 100_000
    DOORS[door](client, "good")
    assert used(client.ledger, "good") > 100_000


def used(ledger: Ledger, tenant: str) -> int:
    return ledger.quotas._used(tenant, Quota(kept_bytes=10**12), "kept_bytes")["kept_bytes"]


def test_a_short_answer_to_a_step_that_waits_is_taken_beyond_the_quota(client: Client) -> None:
    play = Play(client.ledger, labels=labels_of("evil"))
    play.plan(work("a"), wait("w"), edges=row("a", "w"), terminals=("w",))
    client.ledger.runs.append_event("run", "fallback", step_id="a", detail={"x": LARGE})

    with pytest.raises(ConfigError, match="kept_bytes"):
        client.run("run").signal("w", True)
    play.do("a")

    assert client.run("run").signal("w", True) == "taken"
    assert play.status == "succeeded"


def test_a_nearly_full_redis_takes_nothing_new_but_short_answers(client: Client, valkey: Redis) -> None:
    play = Play(client.ledger, labels=labels_of("good"))
    play.plan(wait("w"), wait("v"), edges=(), terminals=("w", "v"))
    limit = int(int(valkey.info("memory")["used_memory"]) / 0.95)
    valkey.config_set("maxmemory", limit)
    try:
        for door in ("turn", "schedule", "batch", "memory", "builder"):
            with pytest.raises(UnavailableError, match="Redis is nearly full"):
                DOORS[door](client, "good")
        with pytest.raises(UnavailableError, match="Redis is nearly full"):
            client.run("run").signal("v", "s" * 5000)
        bank = MemoryStore(client.ledger, tenant="good", of_run=True)
        bank.store_memory("k", "an open run goes on")
        assert client.run("run").signal("w", 1) == "taken"
    finally:
        valkey.config_set("maxmemory", 0)


def test_names_are_counted_and_new_ones_refused(ledger: Ledger) -> None:
    with Client(url_of(ledger.redis), config=with_quota(names=3)) as client:
        client.schedules.of("evil").create("one", EVERY)
        client.batches.of("evil").open("two", BatchTarget(kind="agent", name="writer"))
        first = client.submit_turn("hi", agent="writer", session="three", labels=labels_of("evil"))

        refused: list[Callable[[], object]] = [
            lambda: client.schedules.of("evil").create("four", EVERY),
            lambda: client.batches.of("evil").open("four", BatchTarget(kind="agent", name="writer")),
            lambda: client.submit_turn("hi", agent="writer", session="four", labels=labels_of("evil")),
            lambda: Builder(ledger, "b", "evil", client.definitions.limits.quota_of("evil")).update(
                ["plan"], lambda _: {"plan": "p"}
            ),
        ]
        for call in refused:
            with pytest.raises(
                ConfigError, match=r"names: it keeps 3 of 3 sessions, schedules, batches and builders; delete some"
            ):
                call()
        second = client.submit_turn("again", agent="writer", session="three", labels=labels_of("evil"))
        client.submit_turn("hi", agent="writer", labels=labels_of("evil"))
        client.schedules.of("evil").create("one", EVERY, replace=True)
        client.submit_turn("hi", agent="writer", session="four", labels=labels_of("good"))

        for run in (first, second):
            run.cancel()
        assert client.sessions.of("evil").clear("three") == 4
        client.schedules.of("evil").create("four", EVERY)


def test_a_burst_of_calls_of_one_process_stays_within_the_quota(client: Client) -> None:
    text, refusals = "x" * 30_000, list[ConfigError]()

    def put(n: int) -> None:
        try:
            client.schedules.of("evil").create(f"s{n}", {**EVERY, "turn": {"text": text, "agent": "writer"}})
        except ConfigError as error:
            refusals.append(error)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {error.code for error in refusals} == {"quota_exceeded"}
    assert 30_000 < used(client.ledger, "evil") <= 100_000 + 12 * 2000  # with what counts beside the texts
    client.schedules.of("good").create("s", EVERY)


def test_what_an_operator_declares_is_counted_and_never_refused(ledger: Ledger) -> None:
    config = with_quota(kept_bytes=100).model_copy(
        update={"schedules": {"nightly": Schedule.model_validate({**EVERY, "labels": labels_of("evil")})}}
    )
    with Client(url_of(ledger.redis), config=config) as client:
        client.schedules.apply()
        assert client.schedules.of("evil").get("nightly")
        assert used(ledger, "evil") > 1000


@pytest.mark.parametrize(
    ("labels", "fault"),
    [
        (
            {f"l{n}": "v" for n in range(MAX_LABELS + 1)},
            r"a run has at most 40 labels, not 41; put the rest into its input",
        ),
        ({"n" * 101: "v"}, r"the name of label 'n{50}' has 101 bytes; at most 100 are allowed"),
        (
            {"note": "ü" * 251},
            r"the value of label 'note' has 502 bytes; at most 500 are allowed; shorten it, or put it into the run's input",
        ),
        ({"note": 5}, r"the value of label 'note' must be a text, not int"),
    ],
)
def test_labels_are_few_and_short(client: Client, labels: dict[str, str], fault: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: client.submit_turn("hi", agent="writer", labels=labels),
        lambda: client.submit_chain({**CHAIN}, labels=labels),
        lambda: client.schedules.create("s", EVERY, labels=labels),
        lambda: client.schedules.create("s", {**EVERY, "labels": labels}),
        lambda: client.batches.open("b", BatchTarget(kind="agent", name="writer"), labels=labels),
    ]
    for call in calls:
        with pytest.raises(CantataError, match=fault if call is not calls[3] or "note" not in labels else "label"):
            call()
    assert not client.runs()


def test_a_fork_counts_while_it_is_made_and_no_more_when_nobody_made_it(ledger: Ledger) -> None:
    play = Play(ledger, labels=labels_of("evil"))
    play.plan(work("a"), work("b"), edges=row("a", "b"))
    play.do("a", LARGE)
    ledger.runs.cancel("run")
    before = used(ledger, "evil")

    Stage(ledger, next_in("run"), rewinding.retry(fork_store.read(ledger, "run"))).lay_out("1")

    assert 2 * len(LARGE) < used(ledger, "evil") < 2 * before
    let_items_expire(ledger, "*:fork:*")
    assert used(ledger, "evil") == before


def next_in(run_id: str) -> str:
    return next(name for name in (f"fork{n}" for n in range(10_000)) if shard_of(name) == shard_of(run_id))


def let_items_expire(ledger: Ledger, pattern: str) -> None:
    """Delete keys, as Redis does, and have a sweep look."""
    for key in ledger.redis.scan_iter(match=pattern, count=10_000):
        ledger.redis.delete(key)
    for shard in range(SHARDS):
        key = f"{shard_key(None, shard)}:item_ends"
        for item in ledger.redis.zrange(key, 0, -1):
            ledger.redis.zadd(key, {str(item): 1})
    ledger.leases.sweep_all()


def test_a_cached_reply_counts_while_it_lives_and_is_not_kept_beyond_the_quota(ledger: Ledger) -> None:
    evil, good = cache.Payer(ledger, "evil", Quota(kept_bytes=100_000)), cache.Payer(ledger, "good", Quota())
    for digest in ("one", "two"):
        cache.remember(ledger.redis, "evil", digest, "r" * 60_000, ttl_s=60, payer=evil)

    assert cache.recall(ledger.redis, "evil", "one")
    assert cache.recall(ledger.redis, "evil", "two") is None
    assert 60_000 < used(ledger, "evil") < 62_000
    cache.remember(ledger.redis, None, "of all", "r" * 30_000, ttl_s=60, payer=evil)
    cache.remember(ledger.redis, None, "of all", "r" * 60_000, ttl_s=60, payer=good)
    assert (used(ledger, "evil") < 62_000, used(ledger, "good") > 60_000) == (True, True), "whoever stored it last pays"
    let_items_expire(ledger, "*{cache}*")
    assert (used(ledger, "evil"), used(ledger, "good")) == (0, 0)


def test_pieces_of_replies_are_left_out_beyond_their_bound_and_the_run_ends_as_usual(ledger: Ledger) -> None:
    play = Play(ledger, labels=labels_of("evil"))
    play.plan(work("a"))
    begun = play.begin("a")
    ledger.redis.hset(run_key(None, "run"), "appended", 64_000_000 - 100)

    assert all(ledger.steps.append_delta(begun, f"piece {n}") for n in range(5))
    play.commit(begun, "whole")

    entries = cast("list[tuple[str, dict[str, str]]]", ledger.redis.xrange(f"{run_key(None, 'run')}:log"))
    assert [event["t"] for _, event in entries][-5:] == ["started", "delta", "warning", "done", "closed"]
    assert play.output("a") == "whole"


def test_what_an_older_version_stored_is_counted_when_it_is_next_written(ledger: Ledger, client: Client) -> None:
    """Such a version has neither items nor marks of counted memories."""
    sessions, bank = Sessions(ledger, "good"), MemoryStore(ledger, tenant="good")
    entries = [HistoryEntry(role="user", content="c" * 1000, ts=n) for n in range(4)]
    sessions.restore("old", entries)
    client.schedules.of("good").create("old", {**EVERY, "turn": {"text": "t" * 5000, "agent": "writer"}})
    forget_counts(ledger.redis)
    values = "cantata:{memory:good}:values:default"
    ledger.redis.hset(values, "k", f'0123456789abcdef - "{"v" * 3000}"')
    ledger.redis.zadd("cantata:{memory:good}:ends:default", {"k": 10**13})
    assert used(ledger, "good") == 0

    bank.store_memory("k", "v" * 2000, ttl_s=60)
    assert 2000 < used(ledger, "good") < 3000
    bank.delete_memory("k")
    assert used(ledger, "good") == 0
    client.schedules.of("good").create("old", {**EVERY, "turn": {"text": "t" * 4000, "agent": "writer"}}, replace=True)
    assert 9000 < used(ledger, "good") < 11_000
    client.schedules.of("good").delete("old")
    assert used(ledger, "good") == 0
    run = client.submit_turn("hi", agent="writer", session="old", labels=labels_of("good"))
    assert used(ledger, "good") > 4000 + 4000
    run.cancel()
    assert ledger.redis.hget(f"{shard_key(None, shard_of(scoped('good', 'old')))}:items", "session:good/old")


def forget_counts(redis: Redis) -> None:
    for shard in range(SHARDS):
        redis.delete(*(f"{shard_key(None, shard)}:{part}" for part in ("items", "item_ends", "bytes", "names")))


def test_a_list_of_tenants_is_bounded_however_many_there_are(ledger: Ledger) -> None:
    def keep(first: int, last: int) -> None:
        for number in range(first, last):
            ledger.redis.hset(f"{shard_key(ledger.redis, number % SHARDS)}:bytes", f"tenant-{number:05}", "1")

    keep(0, 10)
    assert ledger.quotas.tenants(10) == ([f"tenant-{number:05}" for number in range(10)], True)
    keep(10, 3 * SHARDS)
    found, is_complete = ledger.quotas.tenants(10)
    assert (len(found), is_complete) == (10, False)
