"""Runs that post to webhooks: those for events in the outbox, for alerts, and for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import structlog

from cantata.engine.engine import Engine
from cantata.engine.isolation import Item
from cantata.engine.publisher import Publisher
from cantata.engine.start import accept_run, id_of_key, new_id
from cantata.flows.definitions import Alert, Definitions
from cantata.flows.submission import Timeout
from cantata.flows.webhooks import QUEUE, check_target
from cantata.flows.wire import WebhookRequest
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Accepted
from cantata.ledger.redis import clock
from cantata.ledger.redis.keys import shard_of
from cantata.values import JsonValue

if TYPE_CHECKING:
    from cantata.engine.duties import Duty, Sweep

DELIVERY = Timeout(25 * 3600.0, "of webhooks")
"""The time of a run that posts: its step gives up after a day."""
CREATION_S = 0.25  # for which one sweep creates such runs, some 1,000; the next goes on

log = structlog.get_logger(__name__)


def create_deliveries(
    publisher: Publisher,
    ledger: Ledger,
    shards: Sequence[int],
    isolate: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Create and send the runs that post the events in the outboxes of some shards, for CREATION_S at most; the next call goes on.

    The tenants of the shards take turns, each with a few runs. `isolate` keeps the error of one, given as `shard|tenant`, from the others.
    """
    give_up, due = time.monotonic() + CREATION_S, ledger.outbox.due(shards)
    while due:
        further = []
        for shard, tenant in due:
            with isolate(f"{shard}|{tenant}"):
                if _create_some(publisher, ledger, shard, tenant, shards):
                    further.append((shard, tenant))
            if time.monotonic() > give_up:
                return
        due = further


def _sweep(sweep: Sweep) -> None:
    """Create and send runs that post events to webhooks."""
    create_deliveries(sweep.app, sweep.ledger, sweep.shards, lambda name: sweep.isolation.of(Item("webhooks", name)))


DUTY: Duty = ("webhooks", _sweep)


def create_deliveries_of(publisher: Publisher, ledger: Ledger, run_id: str, tenant: str) -> None:
    """Create and send the first runs that post for a tenant, right after an event of this run; a sweep creates the others."""
    shard = shard_of(run_id)
    shards = next((shards for shards in ledger.caller.nodes().values() if shard in shards), [shard])
    _create_some(publisher, ledger, shard, tenant, shards)


def _create_some(publisher: Publisher, ledger: Ledger, shard: int, tenant: str, shards: Sequence[int]) -> bool:
    """Create and send runs that post for a tenant in a shard; return whether further ones can be created now."""
    created = ledger.outbox.create(shard, tenant, shards)
    for run_id, fault in created.faults:
        log.error("event_not_posted", run=run_id, tenant=tenant, error=fault)
    publisher.send_ready(created.ready)
    return created.has_more


def accept_delivery(
    ledger: Ledger, request: WebhookRequest, definitions: Definitions, definitions_text: str, *, tenant: str = ""
) -> Accepted:
    """Accept a run that posts to a webhook of the definitions; the same request once. The sweep sends its first step, or the caller."""
    labels = {"webhook_of": request.run_id, "tenant": tenant}
    return accept_run(
        ledger,
        request.id,
        kind="webhook",
        request=request.model_dump_json(exclude_defaults=True),
        timeout=DELIVERY,
        queue=QUEUE,
        definitions=with_attempts(definitions),
        definitions_text=definitions_text,
        labels={name: value for name, value in labels.items() if value},
    )


def post_test(engine: Engine, name: str) -> str:
    """Have a worker post a signed test message to a webhook of the configuration, or a URL, once; return its run. Raises ConfigError."""
    check_target(name, engine.definitions.webhooks)
    run_id = new_id()
    request = WebhookRequest(
        id=run_id, text=f"test of webhook {name}", to=name, event="test", at_ms=int(clock.now() * 1000)
    )
    accepted = accept_delivery(engine.ledger, request, engine.definitions, engine.definitions_text)
    engine.publisher.announce_runs([(run_id, accepted.priority)], QUEUE)
    return run_id


def with_attempts(definitions: Definitions) -> Definitions:
    """Return definitions for the settings of a run that no death of workers should end."""
    return definitions.model_copy(update={"defaults": definitions.defaults.model_copy(update={"max_attempts": 1000})})


def raise_alerts(
    ledger: Ledger,
    definitions: Definitions,
    definitions_text: str,
    on: str,
    *,
    key: str,
    message: str,
    data: dict[str, JsonValue],
    tenant: str = "",
    applies: Callable[[Alert], bool] = lambda _: True,
) -> list[str]:
    """Post to the webhook of each alert of a configuration `on` this; the same key posts once. Return the ids of the runs that post.

    Args:
        ledger: The ledger.
        definitions: The configuration.
        definitions_text: The same as the ledger stores it.
        on: The condition, as `Alert.on`.
        key: What occurred, such as a schedule and its time.
        message: The same for people, in a line.
        data: The same for programs; small.
        tenant: The tenant that it is about.
        applies: Whether an alert is for what occurred.
    """
    raised = []
    for name, alert in definitions.alerts.items():
        if alert.on == on and applies(alert):
            run_id = id_of_key(f"alert\n{tenant}\n{name}\n{key}")
            request = WebhookRequest(
                id=run_id,
                text=f"{message} (alert {name!r})",
                to=alert.webhook,
                event="alert",
                alert=name,
                at_ms=int(clock.now() * 1000),
                data=data,
            )
            accept_delivery(ledger, request, definitions, definitions_text, tenant=tenant)
            raised.append(run_id)
    return raised
