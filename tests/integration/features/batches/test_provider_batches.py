"""Batches of providers in the ledger: a run that is cancelled leaves a run in its shard that cancels the batch."""

from __future__ import annotations

from typing import cast

import pytest

from cantata.flows.definitions import Agent, Definitions
from cantata.flows.graph import START
from cantata.flows.provider_batches import CREATE, plan
from cantata.flows.wire import ProviderBatchRequest
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import shard_of
from tests.integration.state.play import Play

GRAPH = plan(ProviderBatchRequest(text="rows", agent="ann"), Definitions(agents={"ann": Agent()}))


def planned(ledger: Ledger) -> Play:
    """A run whose batch is to be created."""
    play = Play(ledger, kind="batch", labels={"tenant": "acme"}, definitions='{"folder":"x"}')
    play.do(START, fragment=GRAPH)
    return play


def others(play: Play) -> list[str]:
    """The runs of the shard beside that of a play."""
    return [
        run_id
        for run_id in cast("list[str]", play.ledger.redis.zrange(f"{play.shard}:runs", 0, -1))
        if run_id != play.run_id
    ]


@pytest.mark.parametrize("batch", ["batch_7", None], ids=["created", "under way"])
def test_a_cancelled_run_leaves_one_run_that_cancels_its_batch(ledger: Ledger, batch: str | None) -> None:
    play = planned(ledger)
    begun = play.begin(CREATE)
    if batch:
        play.commit(begun, batch)

    for _ in range(2):
        ledger.runs.cancel(play.run_id)

    (run_id,) = others(play)
    kind, text, digest, labels = ledger.runs.request_of(run_id)
    request = ProviderBatchRequest.model_validate_json(text)
    assert (kind, request.agent, request.cancels, request.batch) == ("batch", "ann", play.run_id, batch)
    assert labels == {"tenant": "acme", "cancels": play.run_id}
    assert ledger.runs.definitions(run_id, digest) == '{"folder":"x"}'
    assert shard_of(run_id) == shard_of(play.run_id)
    assert ledger.redis.hget(f"{play.shard}:tenants", "acme") == "1", "it is an open run of the tenant"
    ready = cast("list[str]", ledger.redis.zrange(f"{play.shard}:ready", 0, -1))
    assert ready == [f"{run_id}|@start"], "the sweep sends it"
    ledger.runs.cancel(run_id)
    assert others(play) == [run_id]


def test_a_run_that_has_no_batch_or_its_answers_leaves_none(ledger: Ledger) -> None:
    play = planned(ledger)
    ledger.runs.cancel(play.run_id)
    assert others(play) == []

    answered = Play(ledger, "other", kind="batch")
    answered.do(START, fragment=GRAPH)
    answered.do(CREATE, "batch_7")
    answered.do("collect", {})
    assert answered.status == "succeeded"
    assert others(answered) == []


def test_a_run_that_is_accepted_anew_and_cancelled_again_leaves_another_one(ledger: Ledger) -> None:
    for _ in range(2):
        play = planned(ledger)
        play.begin(CREATE)
        ledger.runs.cancel(play.run_id)
        for run_id in others(play):
            ledger.runs.cancel(run_id)
        play.sweep()
        ledger.runs.drop([play.run_id])

    assert len(others(play)) == 2
