"""Time that is skipped in a stack for tests: what is due happens at once, and what is under way goes on."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from cantata.client.client import EmbeddedClient
from cantata.client.runs import Run
from cantata.errors import UnknownRunError
from cantata.flows.definitions import Agent
from tests.integration.fleet.agent_stage import AgentStage
from tests.integration.fleet.conftest import Journal, tool
from tests.integration.fleet.fleet_tools import note
from tests.waiting import until

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def test_a_timer_that_is_due_in_a_day_fires_at_once(client: EmbeddedClient) -> None:
    gate = {"node_id": "gate", "kind": "wait", "timeout": DAY_S, "default": "nobody came", "next_node": "after"}
    run = client.submit_chain(
        {"nodes": [gate, tool("after", "echo", input_map={"said": "gate"})], "entry_node": "gate", "timeout": 3 * DAY_S}
    )  # fmt: skip
    until(lambda: [event for event in run.log(timeout_s=0.1) if event.type == "waiting"], "the wait")

    client.skip(DAY_S)

    assert run.record().steps["gate"].state == "done", "it fired before the call returned"
    assert run.result(40).final_output == {"said": "nobody came"}


def test_a_run_past_its_deadline_is_over(client: EmbeddedClient, journal: Journal) -> None:
    run = client.submit_chain(
        {
            "nodes": [tool("n", "slow", journal=str(journal.path), mark="x", seconds=600)],
            "entry_node": "n",
            "timeout": 2 * HOUR_S,
        }
    )
    until(lambda: journal.of("start"), "the step")

    client.skip(2 * HOUR_S)

    response = run.result(0)
    assert (response.status, response.error and response.error.code) == ("timed_out", "timeout")


def test_a_try_that_is_an_hour_away_is_made_at_once(stage: AgentStage, client: EmbeddedClient) -> None:
    stage.script({"status": 429, "headers": {"Retry-After": str(HOUR_S)}, "times": 1}, {"reply": "at last"})
    run = stage.client(Agent(model="openai/gpt-4o-skipped", retries=0)).submit_turn(
        "hello", agent="it", timeout_s=2 * HOUR_S
    )
    until(lambda: [event for event in run.log(timeout_s=0.1) if event.type == "rate_limited"], "the pause")

    client.skip(HOUR_S)

    assert run.result(40).output == "at last"


def test_a_step_under_way_is_not_taken_away_and_runs_once(client: EmbeddedClient, journal: Journal) -> None:
    run = client.submit_chain(
        {"nodes": [tool("n", "held", journal=str(journal.path), mark="x")], "entry_node": "n", "timeout": 20 * DAY_S}
    )
    until(lambda: journal.of("start"), "the step")

    for _ in range(10):
        client.skip(DAY_S)  # many leases
    assert client.fleet_warnings() == []
    note(str(journal.path), "release", "x")

    assert run.result(40).final_output == "x"
    assert [len(journal.of(what)) for what in ("start", "finish")] == [1, 1]
    assert not {"lost", "recovered", "stale"} & {event.type for event in run.log()}


def test_a_run_that_is_over_goes_with_its_retention(client: EmbeddedClient) -> None:
    run = client.submit_chain({"nodes": [tool("n", "add", a=1)], "entry_node": "n"})
    assert run.result(40).success

    client.skip(2 * DAY_S)

    with pytest.raises(UnknownRunError):
        run.status()


def test_waits_of_hours_are_over_when_the_call_returns(client: EmbeddedClient) -> None:
    client.skip(HOUR_S)  # all that was due before
    names = [f"gate-{n}" for n in range(20)]
    gates = [{"node_id": a, "kind": "wait", "timeout": HOUR_S, "next_node": b} for a, b in pairwise([*names, ""])]
    run = client.submit_chain({"nodes": gates, "entry_node": "gate-0", "timeout": DAY_S})

    for name in names:
        until(partial(is_reached, run, name), name, pause_s=0.002)
        client.skip(HOUR_S)
        assert run.record().steps[name].state == "done", "the time-out of the wait fired before the call returned"

    assert run.result(0).success


def is_reached(run: Run, step_id: str) -> bool:
    """Whether a run waits at a step."""
    return any(step.state == "waiting_signal" for step in run.steps([step_id]).values())
