"""Webhooks in the ledger: the script that ends a run or lets it wait writes to the outbox; later calls create a run for each message."""

from __future__ import annotations

import json
from typing import cast

import pytest

from cantata.flows.graph import Graph
from cantata.flows.wire import WebhookRequest
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import SHARDS, run_key, shard_key, shard_of
from cantata.ledger.runs import listing
from cantata.ledger.runs.listing import RunFilter
from cantata.values import JsonValue
from tests.integration.state.play import Play, row, wait, work


def hook(*on: str, to: str = "ops", **more: JsonValue) -> JsonValue:
    return {"to": to, "on": dict.fromkeys(on, True), **more}


def create(ledger: Ledger, *, most: int = 20) -> list[str]:
    """Create the runs that post what all outboxes have, in calls of `most`, as sweeps do; return their ids."""
    created = []
    while due := ledger.outbox.due(range(SHARDS)):
        for shard, tenant in due:
            found = ledger.outbox.create(shard, tenant, range(SHARDS), most=most)
            assert not found.faults
            created += [run_id for run_id, _ in found.ready]
    return created


def messages(play: Play) -> list[WebhookRequest]:
    """The messages of a run, in order: the requests of the runs that post them."""
    create(play.ledger)
    ids = play.ledger.reader.read(play.run_id).webhook_runs
    return [WebhookRequest.model_validate_json(play.ledger.runs.request_of(run_id)[1]) for run_id in ids]


def ended(play: Play) -> Play:
    play.plan(work("a"), terminals=("a",))
    play.do("a", 1)
    return play


def test_the_end_of_a_run_creates_a_run_in_its_shard_that_posts_it(ledger: Ledger) -> None:
    play = Play(ledger, webhooks=[hook("end")], labels={"tenant": "acme"}, definitions='{"folder":"x"}')
    play.plan(work("a"), terminals=("a",))

    committed = play.do("a", 1)

    assert (committed.has_posts, committed.next_runs) == (True, ()), (
        "whoever ended the run has further calls create what posts it"
    )
    ((run_id, first),) = ledger.outbox.create(shard_of("run"), "acme", range(SHARDS)).ready
    (message,) = messages(play)
    assert (message.to, message.event, message.run_id, message.status, message.step) == (
        "ops",
        "end",
        play.run_id,
        "succeeded",
        None,
    )
    assert shard_of(message.id) == shard_of(play.run_id)
    assert (run_id, first.step_id, first.spec.queue) == (message.id, "@start", "webhooks")
    kind, _, digest, labels = ledger.runs.request_of(message.id)
    assert (kind, labels) == ("webhook", {"tenant": "acme", "webhook_of": play.run_id})
    assert ledger.runs.definitions(message.id, digest) == '{"folder":"x"}'


def test_a_run_that_is_accepted_anew_is_posted_by_another_run(ledger: Ledger) -> None:
    for _ in range(2):
        play = ended(Play(ledger, webhooks=[hook("end")]))
        create(ledger)
        ledger.runs.drop([play.run_id])

    posting = cast("list[str]", ledger.redis.zrange(f"{play.shard}:runs", 0, -1))
    assert len(posting) == 2
    assert {ledger.runs.request_of(run_id)[0] for run_id in posting} == {"webhook"}


@pytest.mark.parametrize(
    ("on", "status", "events"),
    [
        (("end",), "succeeded", ["end"]),
        (("failure",), "succeeded", []),
        (("end", "failure"), "failed", ["end"]),
        (("failure",), "failed", ["failure"]),
        (("failure",), "timed_out", ["failure"]),
        (("failure",), "cancelled", []),
        (("end",), "cancelled", ["end"]),
        (("wait",), "failed", []),
    ],
)
def test_each_end_is_for_the_webhooks_that_want_it(
    ledger: Ledger, on: tuple[str, ...], status: str, events: list[str]
) -> None:
    play = Play(ledger, webhooks=[hook(*on)])
    play.plan(work("a"), terminals=("a",))

    if status == "succeeded":
        play.do("a", 1)
    elif status == "failed":
        play.fail("a")
    elif status == "cancelled":
        ledger.runs.cancel(play.run_id)
    else:
        play.come_due("deadline")

    assert play.status == status
    assert [(message.event, message.status) for message in messages(play)] == [(event, status) for event in events]


def test_each_step_that_waits_for_a_person_is_posted_and_a_sleep_is_not(ledger: Ledger) -> None:
    play = Play(ledger, webhooks=[hook("wait")])
    sleep = wait("s", timeout_s=3600, params={"sleeps": True})
    play.plan(wait("one"), wait("two"), sleep, edges=(*row("one", "two"), *row("two", "s")), terminals=("s",))

    ledger.steps.signal(play.run_id, "one", True)
    ledger.steps.signal(play.run_id, "two", True)

    assert [(message.event, message.step, message.status) for message in messages(play)] == [
        ("wait", "one", "running"),
        ("wait", "two", "running"),
    ]


def test_a_reminder_and_an_escalation_of_a_wait_are_posted_too(ledger: Ledger) -> None:
    play = Play(ledger, webhooks=[hook("wait"), hook("end", to="other")])
    options: JsonValue = {"remind_after_s": 60, "escalate_after_s": 90, "escalate_to": ["boss"]}
    play.plan(wait("w", params={"wait": options}), terminals=("w",))

    play.come_due("remind", "w")
    play.come_due("escalate", "w")

    assert [(message.event, message.step, message.to, message.data) for message in messages(play)] == [
        ("wait", "w", "ops", {}),
        ("wait", "w", "ops", {"reason": "reminder"}),
        ("wait", "w", "ops", {"reason": "escalation", "escalated_to": "boss"}),
    ]


def test_a_wait_whose_signal_came_early_is_not_posted(ledger: Ledger) -> None:
    play = Play(ledger, webhooks=[hook("wait")])
    ledger.steps.signal(play.run_id, "one", True)

    play.plan(wait("one"), terminals=("one",))

    assert messages(play) == []


def test_a_step_of_unknown_outcome_waits_for_a_person_too(ledger: Ledger) -> None:
    play = Play(ledger, webhooks=[hook("wait")])
    play.plan(work("a", at_most_once=True), terminals=("a",))

    play.lose_lease(play.begin("a"))

    assert [message.step for message in messages(play)] == ["a"]


def test_a_run_without_webhooks_creates_none(ledger: Ledger) -> None:
    play = ended(Play(ledger))

    assert messages(play) == []
    assert ledger.redis.zcard(f"{play.shard}:runs") == 1


def test_an_end_that_is_recorded_twice_is_posted_once(ledger: Ledger) -> None:
    play = Play(ledger, webhooks=[hook("end"), hook("end", to="https://example.org")])
    play.plan(work("a"), terminals=("a",))
    begun = play.begin("a")

    assert (play.commit(begun, 1).result, play.commit(begun, 1).result) == ("ok", "closed")

    assert [message.to for message in messages(play)] == ["ops", "https://example.org"]


def test_the_sweep_sends_a_message_whose_sender_died(ledger: Ledger) -> None:
    play = ended(Play(ledger, webhooks=[hook("end")]))
    (message,) = messages(play)

    swept = Play(ledger, message.id).lose_message("@start")

    assert [(step.run_id, step.step_id) for step in swept.overdue] == [(message.id, "@start")]


def test_a_message_that_fails_is_no_failure_of_its_run_and_posts_nothing_itself(ledger: Ledger) -> None:
    play = ended(Play(ledger, webhooks=[hook("end", "failure")]))
    (message,) = messages(play)
    delivery = Play(ledger, message.id)
    delivery.plan(work("deliver"), terminals=("deliver",))

    delivery.fail("deliver")

    assert (delivery.status, messages(delivery)) == ("failed", [])
    totals = cast("dict[str, str]", ledger.redis.hgetall(f"{play.shard}:totals"))
    assert {name: totals[name] for name in ("accepted", "closed:succeeded", "delivered:failed")} == {
        "accepted": "1",
        "closed:succeeded": "1",
        "delivered:failed": "1",
    }
    assert "closed:failed" not in totals


def test_messages_count_neither_as_open_runs_of_the_tenant_nor_in_its_list(ledger: Ledger) -> None:
    play = ended(Play(ledger, webhooks=[hook("end")], labels={"tenant": "acme"}))
    (message,) = messages(play)

    def listed(tenant: str | None, kind: str | None = None) -> list[str]:
        return [run.run_id for run in listing.iterate(ledger, RunFilter(tenant, (), kind, ""))]

    assert ledger.redis.hget(f"{play.shard}:tenants", "acme") is None
    assert (listed("acme"), listed(None)) == ([play.run_id], [play.run_id])
    assert (listed("acme", "webhook"), listed("", "webhook")) == ([message.id], [])
    ledger.runs.cancel(message.id)
    assert ledger.redis.hget(f"{play.shard}:tenants", "acme") is None


def test_the_log_of_a_run_has_its_messages_before_its_end(ledger: Ledger) -> None:
    play = Play(ledger, webhooks=[hook("failure", alert="broken")])
    play.plan(work("a"), terminals=("a",))
    play.fail("a")

    log = cast("list[tuple[str, dict[str, str]]]", ledger.redis.xrange(f"{run_key(None, play.run_id)}:log"))

    (message,) = messages(play)
    assert [event["t"] for _, event in log][-2:] == ["webhook", "closed"]
    assert json.loads(log[-2][1]["d"]) == {"to": "broken", "on": "failure"}
    assert message.alert == "broken"


def test_a_step_that_waits_keeps_its_run_whole_while_others_end(ledger: Ledger) -> None:
    play = Play(ledger, webhooks=[hook("wait")])
    play.plan(work("a"), wait("w"), work("b"), edges=(*row("a", "w"), *row("a", "b")), terminals=("w", "b"))

    play.do("a", fragment=Graph(steps=(wait("x"), work("y")), edges=row("x", "y"), exit="y", terminals=()))
    ledger.steps.signal(play.run_id, "x", 1)
    play.do("y", 2)
    play.do("b", 3)

    assert {message.step for message in messages(play)} == {"x", "w"}
    assert ledger.redis.exists(f"{shard_key(None, shard_of(play.run_id))}:due")
