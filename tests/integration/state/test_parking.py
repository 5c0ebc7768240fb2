"""An item of a sweep that its script cannot handle, among ninety-nine others: it costs itself, is parked, and can be tried again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from redis import Redis

from cantata.engine.limits.limiter import LIMITS_KEY, Ask, Granted, Wait
from cantata.errors import ConfigError
from cantata.flows.definitions import Limits, Rates
from cantata.flows.events import ItemUnparked
from cantata.flows.graph import Outcome
from cantata.ledger import lease_store
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Swept
from cantata.ledger.redis.keys import id_in_shard, shard_key
from cantata.ledger.runs import event_log
from tests.integration.state.limits_stage import MODEL, Stage, holder, on_model, steps
from tests.integration.state.play import Play, wait, work

SHARD = 5
S = shard_key(None, SHARD)
COUNT = 100
BAD = 41
RUNS = [id_in_shard(SHARD, f"r{number}x") for number in range(COUNT)]
BAD_RUN, GOOD_RUNS = RUNS[BAD], {run for run in RUNS if run != RUNS[BAD]}
DEEP = "[" * 1500 + "]" * 1500


def plays(ledger: Ledger, *steps: Any) -> list[Play]:
    """A hundred runs of one shard, each with these steps."""
    all_plays = [Play(ledger, run_id) for run_id in RUNS]
    for play in all_plays:
        play.plan(*steps)
    return all_plays


def leases(ledger: Ledger) -> None:
    """The lease of a step of each run has run out."""
    for play in plays(ledger, work("a")):
        ledger.redis.zadd(f"{S}:leases", {play.begin("a").lease: 1.0})


def timers(ledger: Ledger) -> None:
    """The pause before another attempt of a step of each run is over."""
    for play in plays(ledger, work("a")):
        play.commit(play.begin("a"), outcome=Outcome(status="retry", retry_in_s=60))
        ledger.redis.zadd(f"{S}:due", {f"retry|{play.run_id}|a": 1.0})


def waits(ledger: Ledger) -> None:
    """The time of a wait of each run is over."""
    for play in plays(ledger, wait("a", timeout_s=60)):
        ledger.redis.zadd(f"{S}:due", {f"wait|{play.run_id}|a": 1.0})


def ready(ledger: Ledger) -> None:
    """Nobody has begun a step of each run."""
    for play in plays(ledger, work("a")):
        ledger.redis.zadd(f"{S}:ready", {f"{play.run_id}|a": 1.0})


def tasks(ledger: Ledger) -> None:
    """It is time to look for the result of a task of each run."""
    for play in plays(ledger, work("a", timeout_s=600.0)):
        play.commit(play.begin("a"), outcome=Outcome(status="dispatched", retry_in_s=5))
        ledger.redis.zadd(f"{S}:tasks", {f"{play.run_id}|1|a": 1.0})


def clearings(ledger: Ledger) -> None:
    """Each run has ended early, and the entries of its open steps are still to be removed."""
    for play in plays(ledger, work("a")):
        ledger.runs.cancel(play.run_id)
        ledger.redis.hset(f"{S}:clearing", play.run_id, ":state 0")
        ledger.redis.persist(f"{S}:run:{play.run_id}:state")


def sent(swept: Swept) -> set[str]:
    """The runs with a step to send."""
    return {run_id for run_id, _ in swept.sends}


def overdue(swept: Swept) -> set[str]:
    """The runs with a step whose message is to be looked for."""
    return {step.run_id for step in swept.overdue}


def looked_for(swept: Swept) -> set[str]:
    """The runs with a task whose result is to be looked for."""
    return {task.partition("|")[0] for task in swept.tasks}


def ended_waits(ledger: Ledger) -> Callable[[Swept], set[str]]:
    """The runs whose wait has ended."""
    return lambda _: {run_id for run_id in RUNS if ledger.redis.hget(f"{S}:run:{run_id}:out", "a") is not None}


def is_no_json(redis: Redis, part: str) -> None:
    """The entry of the step in a part of the run is not JSON."""
    redis.hset(f"{S}:run:{BAD_RUN}{part}", "a", "no JSON")


def is_deep(redis: Redis, part: str) -> None:
    """It is nested more deeply than a script reads."""
    redis.hset(f"{S}:run:{BAD_RUN}{part}", "a", DEEP)


def has_another_type(redis: Redis, part: str) -> None:
    """The part of the run is not a hash."""
    redis.delete(f"{S}:run:{BAD_RUN}{part}")
    redis.set(f"{S}:run:{BAD_RUN}{part}", "a text")


CASES: list[tuple[str, Callable[[Ledger], None], str, str, str]] = [
    # duty, what is due, the part of the run, how the item is named in the list, the list
    ("leases", leases, ":info", "lease", "leases"),
    ("leases", leases, ":steps", "lease", "leases"),
    ("leases", leases, "", "lease", "leases"),
    ("timers", timers, ":steps", f"retry|{BAD_RUN}|a", "due"),
    ("timers", timers, ":state", f"retry|{BAD_RUN}|a", "due"),
    ("timers", waits, ":steps", f"wait|{BAD_RUN}|a", "due"),
    ("lost", ready, ":steps", f"{BAD_RUN}|a", "ready"),
    ("lost", ready, "", f"{BAD_RUN}|a", "ready"),
    ("tasks", tasks, ":steps", f"{BAD_RUN}|1|a", "tasks"),
    ("tasks", tasks, ":state", f"{BAD_RUN}|1|a", "tasks"),
]


def served_by(duty: str, due: Callable[[Ledger], None], ledger: Ledger) -> Callable[[Swept], set[str]]:
    """The runs that a sweep served."""
    return ended_waits(ledger) if due is waits else {"lost": overdue, "tasks": looked_for}.get(duty, sent)


@pytest.mark.parametrize(
    ("spoil", "duty", "due", "part", "item", "name"),
    [
        pytest.param(spoil, *case, id=f"{case[0]}-{case[1].__name__}-{case[2] or 'run'}-{spoil.__name__}")
        for spoil in (is_no_json, is_deep, has_another_type) for case in CASES
        if spoil is has_another_type or case[2] in (":info", ":steps")
    ],
)  # fmt: skip
def test_an_item_that_its_script_cannot_handle_costs_itself_and_is_parked(
    ledger: Ledger,
    spoil: Callable[[Redis, str], None],
    duty: str,
    due: Callable[[Ledger], None],
    part: str,
    item: str,
    name: str,
) -> None:
    redis, served = ledger.redis, served_by(duty, due, ledger)
    due(ledger)
    item = (
        item
        if item != "lease"
        else next(each for each in cast("list[str]", redis.zrange(f"{S}:leases", 0, -1)) if BAD_RUN in each)
    )
    kept = redis.dump(f"{S}:run:{BAD_RUN}{part}") or b""
    spoil(redis, part)

    swept = ledger.leases.sweep(SHARD)

    assert served(swept) == GOOD_RUNS
    assert [(fault.duty, fault.item, fault.tries) for fault in swept.faults] == [(duty, item, 1)]
    assert not swept.fault
    assert ledger.parked.find() == []
    for tries in (2, 3):
        assert ledger.leases.sweep(SHARD).faults == (), "it is not tried again at once"
        redis.zadd(f"{S}:{name}", {item: 1.0}, xx=True)
        assert [fault.tries for fault in ledger.leases.sweep(SHARD).faults] == [tries]
    assert redis.zscore(f"{S}:{name}", item) is None, "it is in nobody's way any more"
    (parked,) = ledger.parked.find()
    assert (parked.duty, parked.item, parked.tries) == (duty, item, 3)
    if part:
        assert [event.type for event in event_log.read(redis, BAD_RUN)][-1] == "parked"

    redis.restore(f"{S}:run:{BAD_RUN}{part}", 0, kept, replace=True)
    assert ledger.parked.act(parked.id, "retry", "ann") == parked

    assert BAD_RUN in served(ledger.leases.sweep(SHARD))
    assert ledger.parked.find() == []
    assert "unparked" in [event.type for event in event_log.read(redis, BAD_RUN)]


@pytest.mark.parametrize("what", ["deadline", "wait", "unknown"])
def test_a_timer_that_no_script_can_handle_does_not_stop_the_others(ledger: Ledger, what: str) -> None:
    timers(ledger)
    ledger.redis.zadd(f"{S}:due", {"no timer": 0.0, f"{what}||": 0.0, f"unknown|{BAD_RUN}|a": 0.0, "wait|gone|a": 0.0})

    swept = ledger.leases.sweep(SHARD)

    assert sent(swept) == {*RUNS}
    assert {fault.item for fault in swept.faults} == {"no timer", f"unknown|{BAD_RUN}|a"}, (
        "of others there is nothing to do"
    )
    ledger.redis.zrem(f"{S}:due", *(fault.item for fault in swept.faults))


def test_many_bad_items_at_the_head_of_a_list_do_not_hide_those_behind(ledger: Ledger) -> None:
    for play in plays(ledger, work("a")):
        ledger.redis.zadd(f"{S}:leases", {play.begin("a").lease: 2.0})
    ledger.redis.zadd(f"{S}:leases", {f"bad {number}": 1.0 for number in range(300)})

    served = {run_id for _ in range(3) for run_id in sent(ledger.leases.sweep(SHARD))}

    assert served == {*RUNS}


@pytest.mark.parametrize(
    ("duty", "name"), [("leases", "leases"), ("timers", "due"), ("lost", "ready"), ("tasks", "tasks")]
)
def test_an_entry_that_names_no_run_is_parked_until_somebody_drops_it(ledger: Ledger, duty: str, name: str) -> None:
    ledger.redis.zadd(f"{S}:{name}", {"garbage": 1.0})

    for tries in (1, 2, 3):
        assert [(fault.duty, fault.tries) for fault in ledger.leases.sweep(SHARD).faults] == [(duty, tries)]
        assert ledger.leases.sweep(SHARD).faults == (), "it is not forgotten, nor tried again at once"
        ledger.redis.zadd(f"{S}:{name}", {"garbage": 1.0}, xx=True)

    (parked,) = ledger.parked.find()
    assert (parked.duty, parked.item, parked.tries) == (duty, "garbage", 3)
    ledger.parked.act(parked.id, "drop", "ann")
    assert not ledger.redis.exists(f"{S}:parked", f"{S}:{name}")


def test_a_schedule_that_is_gone_leaves_its_list(ledger: Ledger) -> None:
    ledger.redis.zadd(f"{S}:schedules", {"/gone": 1, "garbage": 1})

    swept = ledger.leases.sweep(SHARD)

    assert (len(swept.schedules), len(swept.faults)) == (0, 0)
    assert ledger.redis.exists(f"{S}:schedules") == 0


def test_a_run_whose_entries_cannot_be_removed_holds_up_no_other(ledger: Ledger) -> None:
    clearings(ledger)
    kept = ledger.redis.dump(f"{S}:run:{BAD_RUN}") or b""
    has_another_type(ledger.redis, "")

    faults = [fault.tries for _ in range(400) for fault in ledger.leases.sweep(SHARD).faults]

    assert faults == [1, 2, 3]
    assert not ledger.redis.exists(f"{S}:clearing")
    assert {run for run in RUNS if ledger.redis.ttl(f"{S}:run:{run}:state") > 0} == GOOD_RUNS
    ledger.redis.restore(f"{S}:run:{BAD_RUN}", 0, kept, replace=True)
    ledger.parked.act(ledger.parked.find()[0].id, "retry", "ann")
    ledger.leases.sweep(SHARD)
    assert ledger.redis.ttl(f"{S}:run:{BAD_RUN}:state") > 0


@pytest.mark.parametrize("text", ["broken", "dispatched broken", "sent x y z"])
def test_an_ended_run_with_a_state_that_cannot_be_read_leaves_no_entries_and_expires(ledger: Ledger, text: str) -> None:
    play = Play(ledger, BAD_RUN)
    play.plan(wait("a", timeout_s=60), work("b"), work("c"))
    for step_id in ("a", "b"):
        ledger.redis.hset(f"{S}:run:{BAD_RUN}:state", step_id, text)

    assert ledger.runs.cancel(BAD_RUN) == "cancelled"
    faults = [fault for _ in range(3) for fault in ledger.leases.sweep(SHARD).faults]

    assert faults == []
    assert not ledger.redis.exists(*(f"{S}:{name}" for name in ("clearing", "ready", "due", "asking", "parked")))
    assert ledger.redis.ttl(f"{S}:run:{BAD_RUN}:state") > 0
    ledger.redis.flushdb()


def test_a_run_that_cannot_be_forgotten_holds_up_no_other(ledger: Ledger) -> None:
    for play in plays(ledger):
        ledger.redis.zadd(f"{S}:finished", {play.run_id: 1.0}, xx=True)
    ledger.redis.hset(f"{S}:sizes", BAD_RUN, f"{10**25} 0 ")

    swept = ledger.leases.sweep(SHARD)

    assert [fault.item for fault in swept.faults] == [BAD_RUN]
    assert ledger.redis.zrange(f"{S}:finished", 0, -1) == [BAD_RUN]
    ledger.redis.hset(f"{S}:sizes", BAD_RUN, "0 0 ")
    ledger.redis.zadd(f"{S}:finished", {BAD_RUN: 1.0})
    assert ledger.leases.sweep(SHARD).faults == ()


@pytest.mark.parametrize(
    "name", ["leases", "due", "ready", "tasks", "schedules", "clearing", "left", "revoked", "parked"]
)
def test_a_list_that_cannot_be_read_costs_this_list(ledger: Ledger, name: str) -> None:
    leases(ledger)
    play = Play(ledger, id_in_shard(SHARD, "timer"))
    play.plan(wait("a", timeout_s=60))
    ledger.redis.zadd(f"{S}:due", {f"wait|{play.run_id}|a": 1.0})
    kept = ledger.redis.dump(f"{S}:{name}")
    ledger.redis.set(f"{S}:{name}", "a text")

    swept = ledger.leases.sweep(SHARD)

    assert swept.fault.startswith(f"{'timers' if name == 'due' else name}: ")
    assert name in ("leases", "ready") or sent(swept) == {*RUNS}
    assert (play.status == "succeeded") == (name != "due")
    ledger.redis.delete(f"{S}:{name}")
    if kept:
        ledger.redis.restore(f"{S}:{name}", 0, kept)


def parked_lease(ledger: Ledger) -> str:
    """The id of a lost lease that is parked."""
    leases(ledger)
    is_no_json(ledger.redis, ":info")
    for _ in range(3):
        ledger.leases.sweep(SHARD)
        for lease in cast("list[str]", ledger.redis.zrange(f"{S}:leases", 0, -1)):
            ledger.redis.zadd(f"{S}:leases", {lease: 1.0})
    (item,) = ledger.parked.find()
    return item.id


def test_a_run_with_a_parked_item_can_be_cancelled_and_takes_the_record_with_it(ledger: Ledger) -> None:
    parked_lease(ledger)

    ledger.runs.cancel(BAD_RUN)

    ledger.leases.sweep(SHARD)
    assert ledger.parked.find() == []
    assert not ledger.redis.exists(f"{S}:parked")


def test_what_is_dropped_is_not_tried_again_and_the_run_says_who_did_it(ledger: Ledger) -> None:
    item_id = parked_lease(ledger)

    dropped = ledger.parked.act(item_id, "drop", "ann")

    assert dropped.item.startswith(f"{BAD_RUN}|1|")
    assert ledger.parked.find() == []
    assert ledger.leases.names([SHARD]) == []
    event = event_log.read(ledger.redis, BAD_RUN)[-1]
    assert isinstance(event, ItemUnparked)
    assert (event.action, event.by, event.duty, event.step) == ("drop", "ann", "leases", "a")
    ledger.redis.hdel(f"{S}:run:{BAD_RUN}:info", "a")
    ledger.runs.cancel(BAD_RUN)


@pytest.mark.parametrize("item_id", ["5-00000000", "99-1", "x", "", "-1"])
def test_an_id_that_no_parked_item_has_is_refused(ledger: Ledger, item_id: str) -> None:
    parked_lease(ledger)

    with pytest.raises(ConfigError, match="no parked item has the id"):
        ledger.parked.act(item_id, "retry", "ann")

    ledger.runs.cancel(BAD_RUN)


def test_a_sweep_of_another_version_tries_again_what_was_parked(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked_lease(ledger)
    ledger.redis.hdel(f"{S}:run:{BAD_RUN}:info", "a")
    assert ledger.leases.sweep(SHARD).sends == ()

    monkeypatch.setattr(lease_store, "__version__", "99.0.0")

    served = [run_id for _ in range(2) for run_id in sent(ledger.leases.sweep(SHARD))]
    assert served == [BAD_RUN]
    assert ledger.parked.find() == []


def test_failures_that_lie_far_apart_park_nothing(ledger: Ledger) -> None:
    leases(ledger)
    is_no_json(ledger.redis, ":info")
    for _ in range(5):
        (fault,) = ledger.leases.sweep(SHARD).faults
        assert fault.tries == 1
        record = json.loads(cast(str, ledger.redis.hget(f"{S}:parked", f"leases|{fault.item}")))
        ledger.redis.hset(f"{S}:parked", f"leases|{fault.item}", json.dumps({**record, "at": record["at"] - 700_000}))
        ledger.redis.zadd(f"{S}:leases", {fault.item: 1.0})
    ledger.redis.zadd(f"{S}:leases", {fault.item: 1e15})

    ledger.leases.sweep(SHARD)

    assert not ledger.redis.exists(f"{S}:parked"), "it is forgotten"
    ledger.redis.hdel(f"{S}:run:{BAD_RUN}:info", "a")


def test_a_full_redis_parks_nothing(ledger: Ledger) -> None:
    leases(ledger)
    used = ledger.redis.info("memory")["used_memory"]
    ledger.redis.config_set("maxmemory", int(used) // 2)
    try:
        for _ in range(4):
            ledger.leases.sweep_all([SHARD])
    finally:
        ledger.redis.config_set("maxmemory", 0)

    assert not ledger.redis.exists(f"{S}:parked")


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [("", "webhooks", "no JSON"), ("", "labels", "no JSON"), (":state", "a", "broken"), (":names", "a", "a")],
)
def test_a_run_that_cannot_be_read_ends_when_its_time_is_over_and_can_be_cancelled(
    ledger: Ledger, part: str, field: str, value: str
) -> None:
    for run_id in RUNS[:2]:
        play = Play(ledger, run_id, webhooks=[{"to": "x", "on": {"end": True}}])
        play.plan(work("a"))
        ledger.redis.hset(f"{S}:run:{run_id}{part}", field, value)
    ledger.redis.zadd(f"{S}:due", {f"deadline|{RUNS[0]}|": 1.0})

    swept = ledger.leases.sweep(SHARD)
    ledger.runs.cancel(RUNS[1])

    assert {fault.duty for fault in swept.faults} <= {"clearing"}
    assert [ledger.runs.status(run_id) for run_id in RUNS[:2]] == ["timed_out", "cancelled"]
    assert [ledger.redis.xlen(f"{S}:run:{run_id}:closed") for run_id in RUNS[:2]] == [1, 1], (
        "those who wait for them go on"
    )
    ledger.outbox.create(SHARD, "", [SHARD])
    if part == ":state":
        while ledger.redis.exists(f"{S}:clearing"):
            ledger.leases.sweep(SHARD)
        for parked in ledger.parked.find():
            ledger.parked.act(parked.id, "drop", "ann")
    assert [ledger.redis.ttl(f"{S}:run:{run_id}") > 0 for run_id in RUNS[:2]] == [True, True]
    ledger.redis.flushdb()


# --- shared limits ----------------------------------------------------------------------------------------------------------


LIMITED = on_model(concurrency=1)
P = f"cantata:{LIMITS_KEY}"
BROKEN = ["no JSON", "[]", '"text"', "{}", DEEP]


@pytest.fixture
def stage(valkey: Redis) -> Stage:
    """A limiter on a clock of our own."""
    valkey.flushdb()
    return Stage(valkey)


@pytest.mark.parametrize("text", BROKEN)
def test_a_call_that_waits_and_cannot_be_read_holds_up_no_other(stage: Stage, text: str) -> None:
    stage.goes("first", LIMITED)
    for number in range(100):
        stage.waits(f"s{number}", LIMITED)
    stage.redis.hset(f"{P}:tickets", "run|s0", text)
    stage.redis.hset(f"{P}:tickets", "run|s7", text)
    faults: list[str] = []

    served = stage.ends("first")
    for name in served:  # which grows meanwhile
        if name not in ("s0", "s7"):
            stage.goes(name, LIMITED)
            served += stage.ends(name)
    stage.sweep(on_fault=lambda item, _: faults.append(item))

    assert served == [f"s{number}" for number in range(100)], "the steps of the broken ones ask anew"
    assert faults == ["run|s0", "run|s7"]


@pytest.mark.parametrize("text", BROKEN)
def test_a_permit_that_cannot_be_read_is_given_up_and_its_slot_is_free(stage: Stage, text: str) -> None:
    stage.goes("broken", LIMITED)
    stage.waits("next", LIMITED)
    stage.redis.hset(f"{P}:permits", holder("broken"), text)
    faults: list[str] = []

    stage.sleep(10)
    called = [name for _ in range(3) for name in steps(stage.sweep(on_fault=lambda item, _: faults.append(item)))]

    assert called == ["next"]
    assert faults == [holder("broken")]
    assert stage.ends("broken") == [], "a late end of it changes nothing"
    stage.goes("next", LIMITED)


def test_a_limit_that_cannot_be_read_costs_the_calls_of_its_model_alone(stage: Stage) -> None:
    other = Ask(holder("other"), "another/model", 1)
    limits = Limits(models={MODEL: Rates(rpm=1), "another/model": Rates(rpm=1)})
    stage.goes("first", limits)
    stage.waits("bad", limits)
    stage.take(replace(other, holder=holder("before")), limits)
    assert isinstance(stage.take(other, limits), Wait)
    stage.redis.set(f"{P}:model:{MODEL}:rpm", "a text")
    stage.sleep(70)
    faults: list[str] = []

    called = steps(stage.sweep(on_fault=lambda item, _: faults.append(item)))

    assert sorted(called) == ["bad", "other"]
    assert faults == ["run|bad"]
    assert stage.take(other, limits) == Granted()


def test_a_queue_that_cannot_be_read_costs_its_calls_alone(stage: Stage) -> None:
    stage.goes("first", LIMITED)
    stage.waits("next", LIMITED)
    stage.redis.zadd(f"{P}:queues", {"no JSON": 1.0, '["model:x"]': 2.0, '["model:y"]': 3.0})
    stage.redis.set(f"{P}:queue:{['model:y']}".replace("'", '"'), "a text")
    faults: list[str] = []

    assert stage.ends("first") == ["next"]

    stage.sweep(on_fault=lambda item, _: faults.append(item))
    assert len(faults) == 3
    assert stage.redis.zcard(f"{P}:queues") == 0
