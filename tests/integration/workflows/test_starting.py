"""Runs of their own that workflows begin: once each, with the settings of the run that began them, and not ended with it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.engine.engine import Engine
from cantata.errors import UnavailableError
from cantata.flows.definitions import Limits, Quota
from cantata.ledger.quotas import Quotas
from cantata.ledger.records import RunRecord
from cantata.testing import replay, run_inline
from tests.integration.workflows.conftest import PATIENCE_S, definitions
from tests.waiting import until


def begun_by(client: Client, run_id: str) -> list[RunRecord]:
    """The runs that a run began."""
    return [run for run in client.runs(most=1000) if run.labels.get("started_by") == run_id]


def ids_of(client: Client, run: ChainRun) -> tuple[str, str]:
    """The runs that `starts_later` began, when it waits again: a workflow, and a chain."""
    until(lambda: any(name.endswith("wait/end") for name in run.record().steps), "the second wait", PATIENCE_S)
    steps = run.record().steps
    return str(steps["starts_later/1.start/approval"].output), str(steps["starts_later/2.start/pair"].output)


@pytest.mark.parametrize("cancels", [True, False])
def test_a_run_of_its_own_outlives_the_run_that_began_it(client: Client, cancels: bool) -> None:
    run = client.submit_workflow("starts_later", {}, labels={"tenant": "acme", "case": "7"})
    run.signal("begin", 1)
    workflow, chain = map(client.run, ids_of(client, run))
    if cancels:
        run.cancel()
    else:
        run.signal("end", 1)
        assert run.result(PATIENCE_S).raise_for_status().final_output == [workflow.run_id, chain.run_id]

    workflow.signal("approve", "yes")

    assert [each.result(PATIENCE_S).raise_for_status().final_output for each in (workflow, chain)] == [["yes", 2], 2]  # type: ignore[union-attr]
    assert workflow.record().labels == {"tenant": "acme", "case": "7", "started_by": run.run_id}
    assert workflow.record().definitions == run.record().definitions
    assert {each.run_id for each in begun_by(client, run.run_id)} == {workflow.run_id, chain.run_id}


@pytest.mark.slow("a worker is killed, and its lease must run out")
def test_a_worker_that_is_killed_when_a_run_is_accepted_leaves_one_run(client: Client, journal: Path) -> None:
    run = client.submit_workflow("starts_later", {})
    until(lambda: any(step.state == "waiting_signal" for step in run.record().steps.values()), "the first wait")
    fault = journal.parent / "fault"
    fault.write_text("accepted:1:kill")
    run.signal("begin", 1)

    workflow, chain = ids_of(client, run)

    assert not fault.exists()
    assert sorted(each.run_id for each in begun_by(client, run.run_id)) == sorted([workflow, chain])
    client.run(workflow).signal("approve", "yes")
    assert client.run(workflow).wait(PATIENCE_S).status == client.run(chain).wait(PATIENCE_S).status == "succeeded"
    run.signal("end", 1)
    assert run.result(PATIENCE_S).success


@pytest.mark.parametrize(
    ("name", "given", "code", "message"),
    [
        (
            "aproval",
            {},
            "unknown_workflow",
            "the configuration has no workflow or chain 'aproval'; did you mean 'approval'?",
        ),
        ("strict", {"n": "x"}, "bad_request", "wf.start('strict'): "),
    ],
)
def test_a_run_that_cannot_begin_fails_its_command(
    client: Client, name: str, given: dict[str, Any], code: str, message: str
) -> None:
    own = definitions()
    strict = own.chains["pair"].model_copy(update={"inputs": {"n": "integer"}})
    client = client.with_definitions(own.model_copy(update={"chains": {**own.chains, "strict": strict}}))

    error = client.submit_workflow("starts", {"name": name, "given": given}).wait(PATIENCE_S).error

    assert error is not None
    assert (error.code, message in error.message, "at desk.py:" in error.message) == (code, True, True), error


def test_quotas_hold_for_runs_that_a_workflow_begins(client: Client) -> None:
    limits = Limits(quotas={"few": Quota(open_runs=1)})
    client = client.with_definitions(definitions().model_copy(update={"limits": limits}))

    run = client.submit_workflow("starts", {"name": "approval", "given": {}}, labels={"tenant": "few"})

    error = run.wait(PATIENCE_S).error
    assert error is not None
    assert (error.code, "open_runs: 1 of 1 runs are open" in error.message) == ("quota_exceeded", True)
    assert begun_by(client, run.run_id) == []


def test_a_run_begins_when_redis_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [UnavailableError("Redis is nearly full")] * 2

    def check(quotas: Quotas, tenant: str, quota: Quota) -> None:
        if refusals:
            raise refusals.pop()

    monkeypatch.setattr(Quotas, "check", check)
    monkeypatch.setattr(Engine, "starting", lambda *_: nullcontext())
    given: dict[str, Any] = {"name": "row", "given": {"steps": 2}}
    node = {"node_id": "a", "kind": "workflow", "name": "starts", "input": given}
    assert run_inline({"nodes": [node], "entry_node": "a"}, definitions=definitions()).success
    assert refusals == []


def test_a_run_begins_inline_too_and_a_replay_of_its_recording_begins_none(client: Client) -> None:
    node = {"node_id": "a", "kind": "workflow", "name": "starts", "input": {"name": "row", "given": {"steps": 2}}}
    inline = run_inline({"nodes": [node], "entry_node": "a"}, definitions=definitions())
    assert len(str(inline.raise_for_status().final_output)) == 16

    run = client.submit_workflow("starts", {"name": "row", "given": {"steps": 2}})
    begun = run.result(PATIENCE_S).raise_for_status().final_output
    assert client.run(str(begun)).wait(PATIENCE_S).status == "succeeded"
    comparison = replay(json.loads("".join(run.export())), definitions=definitions())

    assert (comparison.same, comparison.now.output) == (True, begun), str(comparison)
    assert len(begun_by(client, run.run_id)) == 1
