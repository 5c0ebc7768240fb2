"""The outbox of webhooks in the ledger: bounded calls, nothing lost or doubled, and a tenant that delays itself alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from cantata.engine.start import plan_run
from cantata.features.webhooks.webhooks import accept_delivery
from cantata.flows.definitions import Definitions
from cantata.flows.wire import WebhookRequest
from cantata.ledger.ledger import Ledger
from cantata.ledger.outbox import CREATED_AT_ONCE, Created
from cantata.ledger.redis.keys import SHARDS, id_in_shard, shard_of
from cantata.operation import fault_points
from cantata.values import JsonValue
from tests.integration.state.play import Play, wait, work

ALL = range(SHARDS)
HOOKS: Sequence[JsonValue] = [
    {"to": f"https://h{number}.invalid/", "on": {"wait": True, "end": True}} for number in range(10)
]


def create(ledger: Ledger, run_id: str = "run", tenant: str = "", *, most: int = CREATED_AT_ONCE) -> Created:
    """One call for a tenant."""
    return ledger.outbox.create(shard_of(run_id), tenant, ALL, most=most)


def create_all(ledger: Ledger, run_id: str = "run", tenant: str = "", *, most: int = CREATED_AT_ONCE) -> list[str]:
    """Calls until there is nothing to do now; the runs that they created."""
    created, has_more = [], True
    while has_more:
        found = create(ledger, run_id, tenant, most=most)
        assert not found.faults
        created += [each for each, _ in found.ready]
        has_more = found.has_more
    return created


def request_of(ledger: Ledger, run_id: str) -> WebhookRequest:
    return WebhookRequest.model_validate_json(ledger.runs.request_of(run_id)[1])


def waits(play: Play, count: int) -> None:
    """Have one call begin so many waits."""
    play.plan(*(wait(f"w{number}") for number in range(count)), terminals=("w0",))


def ended(play: Play) -> Play:
    play.plan(work("a"), terminals=("a",))
    play.do("a", 1)
    return play


def commands(redis: Redis) -> int:
    """The commands that the server has executed, those of scripts too."""
    return sum(int(each["calls"]) for each in redis.info("commandstats").values())


@pytest.mark.parametrize("count", [1, 120])
def test_the_call_that_begins_waits_executes_as_many_commands_for_ten_webhooks_as_for_one(
    ledger: Ledger, count: int
) -> None:
    def cost(hooks: Sequence[JsonValue]) -> int:
        ledger.redis.flushdb()
        play = Play(ledger, webhooks=hooks)
        before = commands(ledger.redis)
        waits(play, count)
        return commands(ledger.redis) - before

    cost(HOOKS)  # scripts are loaded
    one, ten, none = cost(HOOKS[:1]), cost(HOOKS), cost([])

    assert one == ten
    assert ten - none <= count + 10, "an event in the log for each, and a few entries for all"


def test_one_call_creates_a_bounded_number_of_runs(ledger: Ledger) -> None:
    waits(Play(ledger, webhooks=HOOKS), 60)

    assert ledger.redis.zcard(f"{Play(ledger).shard}:runs") == 1
    found = create(ledger)

    assert (len(found.ready), found.has_more) == (CREATED_AT_ONCE, True)
    ledger.redis.flushdb()  # else the invariants of all its runs are looked at


@pytest.mark.parametrize("most", [1, 7, 20])
def test_calls_that_stop_anywhere_create_each_message_once(ledger: Ledger, most: int) -> None:
    play = Play(ledger, webhooks=HOOKS[:3])
    waits(play, 6)
    created = create_all(Ledger(ledger.redis), most=most)
    for number in range(6):
        ledger.steps.signal("run", f"w{number}", number)
    created += create_all(Ledger(ledger.redis), most=most)

    assert play.status == "succeeded"
    assert ledger.reader.read("run").webhook_runs == tuple(created)
    messages = [request_of(ledger, run_id) for run_id in created]
    assert Counter((each.event, each.step, each.to) for each in messages) == Counter(
        [("wait", f"w{number}", f"https://h{hook}.invalid/") for number in range(6) for hook in range(3)]
        + [("end", None, f"https://h{hook}.invalid/") for hook in range(3)]
    )
    assert [each.id for each in messages] == created
    assert ledger.redis.keys("*:outbox*") == []


def test_sweepers_that_create_at_the_same_time_double_and_lose_nothing(ledger: Ledger) -> None:
    waits(Play(ledger, webhooks=HOOKS[:4]), 10)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: create_all(Ledger(ledger.redis), most=3), range(4)))

    created = [run_id for each in found for run_id in each]
    assert len(created) == len(set(created)) == 40
    assert sorted(created) == sorted(ledger.reader.read("run").webhook_runs)


def test_a_call_whose_reply_is_lost_doubles_nothing_and_the_sweep_sends_what_it_created(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = ended(Play(ledger, webhooks=HOOKS[:5]))
    dropped = iter([True])
    monkeypatch.setattr(fault_points, "at", lambda label: label == "outbox-replied" and next(dropped, False))

    second = [run_id for run_id, _ in create(ledger, most=2).ready]

    known = ledger.reader.read("run").webhook_runs
    assert (len(known), list(known[2:])) == (4, second)
    assert [step.run_id for step in Play(ledger, known[0]).lose_message("@start").overdue] == [known[0]]
    assert len(create_all(ledger)) == 1
    assert play.status == "succeeded"


def test_a_server_that_is_lost_before_the_call_leaves_the_entry(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(Play(ledger, webhooks=HOOKS[:1]))
    with monkeypatch.context() as patch:
        patch.setattr(ledger.caller, "call_shard", lambda *_: (_ for _ in ()).throw(RedisConnectionError("gone")))
        with pytest.raises(RedisConnectionError):
            create(ledger)

    assert ledger.outbox.due(ALL) == [(shard_of("run"), "")]
    assert len(create_all(ledger)) == 1
    assert ledger.outbox.due(ALL) == []


def test_a_quota_delays_messages_and_refuses_neither_them_nor_the_end(ledger: Ledger) -> None:
    other = id_in_shard(shard_of("run"), "other")
    ended(Play(ledger, webhooks=HOOKS[:5], labels={"tenant": "evil"}, max_deliveries=2))
    ended(Play(ledger, other, webhooks=HOOKS[:5], labels={"tenant": "acme"}))

    first = create_all(ledger, tenant="evil")
    assert len(first) == 2
    assert ledger.outbox.due(ALL) == [(shard_of("run"), "acme")], "it is looked at later"
    assert len(create_all(ledger, other, "acme")) == 5, "another tenant of the shard does not notice"
    assert create_all(ledger, tenant="evil") == []

    ledger.runs.cancel(first[0])
    assert ledger.outbox.due(ALL) == [(shard_of("run"), "evil")], "one ended, so the next is due"
    second = create_all(ledger, tenant="evil")
    for run_id in (first[1], *second):
        ledger.runs.cancel(run_id)
    third = create_all(ledger, tenant="evil")
    assert (len(second), len(third)) == (1, 2)
    assert ledger.reader.read("run").webhook_runs == (*first, *second, *third)
    assert ledger.redis.hgetall(f"{Play(ledger).shard}:tenants") == {}, "they are no open runs"


def test_open_messages_of_other_shards_count_for_the_quota(ledger: Ledger) -> None:
    shard = next(each for each in ALL if each != shard_of("run"))
    there = id_in_shard(shard, "there")
    for run_id in ("run", there):
        ended(Play(ledger, run_id, webhooks=HOOKS[:2], max_deliveries=3))

    assert len(create_all(ledger, there)) == 2
    assert len(create_all(ledger)) == 1


def test_the_more_messages_of_a_tenant_are_open_the_lower_is_their_priority(ledger: Ledger) -> None:
    other = id_in_shard(shard_of("run"), "other")
    waits(Play(ledger, webhooks=HOOKS, labels={"tenant": "evil"}), 2)
    ended(Play(ledger, other, webhooks=HOOKS[:1], labels={"tenant": "acme"}))

    priorities = [step.priority for _, step in create(ledger, tenant="evil", most=20).ready]
    ((_, first_of_another),) = create(ledger, other, "acme").ready

    assert priorities == [0, *[3] * 3, *[6] * 12, *[9] * 4]
    assert first_of_another.priority == 0


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
def test_a_run_and_its_definitions_are_kept_until_its_messages_exist(
    ledger: Ledger, outcome: str, *, drops: bool
) -> None:
    play = Play(ledger, webhooks=HOOKS[:2], definitions='{"folder":"x"}', retention_s=60)
    play.plan(work("a"), wait("w"), terminals=("a", "w"))
    if outcome == "failed":
        play.fail("a")
    else:
        play.do("a", 1)
        ledger.steps.signal("run", "w", 1)
    digest = ledger.runs.request_of("run")[2]
    if drops:
        ledger.runs.drop(["run"])
    play.sweep()

    keys = [f"{play.shard}:run:run", f"{play.shard}:definitions:{digest}"]
    assert [ledger.redis.pttl(key) for key in keys] == [-1, -1], "no key expires"
    first = create(ledger, most=1)
    assert [ledger.redis.pttl(key) for key in keys] == [-1, -1]
    created = [*(run_id for run_id, _ in first.ready), *create_all(ledger)]

    play.sweep()
    assert drops is (ledger.redis.pttl(keys[0]) < 1000)
    assert ledger.redis.pttl(keys[0]) != -1
    assert len(created) == 4
    assert {ledger.runs.definitions(run_id, digest) for run_id in created} == {'{"folder":"x"}'}
    for run_id in created:
        ledger.runs.cancel(run_id)
    assert ledger.redis.pttl(keys[1]) > 0, "then nobody needs them"
    if drops:
        ledger.redis.flushdb()  # parts of it are just expiring


def test_an_entry_that_cannot_be_read_costs_itself_and_is_reported(ledger: Ledger) -> None:
    shard = Play(ledger).shard
    gone = id_in_shard(shard_of("run"), "gone")
    ledger.redis.hset(f"{shard}:bytes", "", 1_000_000)  # theirs are counted
    ledger.redis.rpush(f"{shard}:outbox:", "1 1 {not json", "no entry", f'1 1 {{"run":"{gone}","at":1,"posts":[]}}')
    ledger.redis.zadd(f"{shard}:outbox", {"": 1})
    ledger.runs.cancel("run")
    play = ended(Play(ledger, id_in_shard(shard_of("run"), "good"), webhooks=HOOKS[:2]))

    found = create(ledger)

    assert [run_id for run_id, _ in found.ready] == list(ledger.reader.read(play.run_id).webhook_runs)
    assert [bool(error) for _, error in found.faults] == [True] * 3
    assert found.faults[2] == (gone, "the run is gone, with its webhooks")
    assert ledger.redis.keys("*:outbox*") == []


def test_a_webhook_that_cannot_be_posted_to_costs_itself(ledger: Ledger) -> None:
    broken = cast("list[JsonValue]", [{"to": "ops", "on": {"end": True}}, {"to": {}, "on": {"end": True}}, HOOKS[0]])
    play = Play(ledger, webhooks=HOOKS[:3])
    play.plan(work("a"), terminals=("a",))
    play.do("a", 1)
    ledger.redis.hset(f"{play.shard}:run:run", "webhooks", json.dumps(broken))

    found = create(ledger)

    assert [request_of(ledger, run_id).to for run_id, _ in found.ready] == ["ops", "https://h0.invalid/"]
    assert [run_id for run_id, _ in found.faults] == ["run"]
    assert create(ledger) == Created((), has_more=False, faults=())


def test_a_message_of_the_version_before_goes_on(ledger: Ledger) -> None:
    """Its first step is in the queue of the agents, and it is not counted."""
    request = WebhookRequest(id="old", text="t", to="ops", event="end", at_ms=1)
    ledger.runs.accept(
        "old",
        kind="webhook",
        request=request.model_dump_json(),
        definitions="{}",
        timeout_s=60,
        max_attempts=3,
        max_steps=10,
        queue="agents",
    )
    play = Play(ledger, "old")
    ledger.redis.delete(f"{play.shard}:posting:")

    play.commit(play.begin("@start"), outcome=plan_run("webhook", request.model_dump(mode="json"), Definitions()))
    assert play.step("deliver").spec.queue == "webhooks"
    play.do("deliver", {"posted": True})

    assert play.status == "succeeded"
    assert ledger.redis.hgetall(f"{play.shard}:tenants") == {}


def test_a_test_message_is_counted_while_it_is_open(ledger: Ledger) -> None:
    request = WebhookRequest(id="test", text="t", to="ops", event="test", at_ms=1)
    accept_delivery(ledger, request, Definitions(), "{}", tenant="acme")
    key = f"{Play(ledger, 'test').shard}:posting:acme"

    assert ledger.redis.zrange(key, 0, -1) == ["test"]
    ledger.runs.cancel("test")
    assert not ledger.redis.exists(key)
