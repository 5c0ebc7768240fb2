"""All that a tenant may ask of a run, asked of a run of another tenant: it is unknown, as one that never was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cantata.client.client import Client
from cantata.client.runs import TurnRun
from cantata.client.tenant_client import TenantClient
from cantata.errors import UnknownRunError
from cantata.flows.definitions import Agent, Definitions
from cantata.flows.wire import TurnRequest
from cantata.ledger.ledger import Ledger
from tests.integration.test_threads import url_of

ASKED: dict[str, Callable[[TenantClient, str], Any]] = {
    "find": lambda runs, run_id: runs.find(run_id),
    "request": lambda runs, run_id: runs.request(run_id, TurnRequest),
    "labels": lambda runs, run_id: runs.labels(run_id),
    "has_events": lambda runs, run_id: runs.has_events(run_id, 0),
    "logs": lambda runs, run_id: runs.logs(run_id),
    "cancel": lambda runs, run_id: runs.cancel(run_id),
    "rerun": lambda runs, run_id: runs.rerun(run_id),
    "was_forked_from": lambda runs, run_id: runs.was_forked_from(TurnRun(runs.engine, run_id), run_id, None, {}),
    "kept_waits": lambda runs, run_id: runs.kept_waits(run_id, "@start"),
    "inbox_item": lambda runs, run_id: runs.inbox_item(f"{run_id}/ask"),
    "waiting_step": lambda runs, run_id: runs.waiting_step(run_id, "ask"),
    "signal": lambda runs, run_id: runs.signal(run_id, "ask", 1),
    "unknown_step": lambda runs, run_id: runs.unknown_step(run_id, "ask"),
}
OF_NO_RUN = {
    "list", "counts", "costs", "newest", "inbox", "sessions", "memory", "schedules", "batches", "audit", "record", "record_refusal",
}  # fmt: skip


@pytest.fixture
def client(ledger: Ledger) -> Iterator[Client]:
    with Client(url_of(ledger.redis), config=Definitions(agents={"writer": Agent(description="Writes.")})) as client:
        yield client


@pytest.mark.parametrize("name", ASKED)
def test_a_run_of_another_tenant_is_unknown(client: Client, name: str) -> None:
    run = client.submit_turn("secret", agent="writer", labels={"tenant": "acme"})

    for tenant in ("other", ""):
        with pytest.raises(UnknownRunError, match=run.run_id):
            ASKED[name](client.of(tenant), run.run_id)
    assert run.status() == "accepted"


def test_what_takes_no_run_shows_nothing_of_another_tenant(client: Client) -> None:
    client.submit_turn("secret", agent="writer", session="chat", labels={"tenant": "acme"})
    acme, other = client.of("acme"), client.of("other")
    acme.memory.store_memory("colour", "red")
    with acme.record("memory.store", "colour"):
        pass
    acme.record_refusal("memory.delete", "no")

    assert [len(acme.newest(10)), acme.counts().counts.get("accepted"), len(acme.sessions.list())] == [1, 1, 1]
    assert [len(other.newest(10)), other.list().runs, other.sessions.list(), other.memory.list_memories()] == [
        0,
        [],
        [],
        [],
    ]
    assert [len(acme.audit().entries), other.audit().entries] == [2, []]
    assert not any(other.counts().counts.values())


def test_each_method_is_tried() -> None:
    public = {name for name in vars(TenantClient) if not name.startswith("_")}

    assert public == ASKED.keys() | OF_NO_RUN
