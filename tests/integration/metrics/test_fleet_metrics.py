"""What real workers and a real gateway show is what was done."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from cantata.client.runs import ChainRun, TurnRun
from cantata.engine.limits.limiter import Limiter
from cantata.operation.metrics.families import FAMILIES
from tests.integration.metrics.conftest import MODEL, TENANTS_TOKEN, TOKEN, Scrape, Stage, definitions, gateway, read
from tests.waiting import until

pytestmark = pytest.mark.timeout(240)

RUN_S = 60.0


def chain(*nodes: dict[str, Any]) -> dict[str, Any]:
    return {"nodes": list(nodes), "entry_node": nodes[0]["node_id"]}


def tool(node_id: str, name: str, *, to: str | None = None, **given: Any) -> dict[str, Any]:
    return {"node_id": node_id, "kind": "tool", "name": name, "input": given, **({"next_node": to} if to else {})}


def gated(folder: Path, count: int) -> dict[str, Any]:
    """A chain of so many items that wait at a gate."""
    body = {
        "node_id": "item",
        "kind": "tool",
        "name": "gate",
        "input": {"folder": str(folder)},
        "input_map": {"mark": "_item"},
    }
    return {
        "nodes": [{"node_id": "all", "kind": "map", "items_path": "input.items", "map_node": "item"}, body],
        "entry_node": "all",
        "initial_input": {"items": [f"m{number}" for number in range(count)]},
    }


def added(stage: Stage, before: Scrape, name: str, expected: float, **labels: str) -> Scrape:
    """What workers have counted since, once there is as much as expected: they count a moment after the outcome is recorded."""
    until(lambda: stage.workers().since(before).of(name, **labels) >= expected, f"{expected} of {name}")
    found = stage.workers().since(before)
    assert found.of(name, **labels) == expected
    return found


def test_steps_are_counted_by_kind_and_by_how_they_ended(stage: Stage) -> None:
    before, fleet_before = stage.workers(), stage.fleet()

    good = [stage.client.submit_chain(chain(tool("a", "add", to="b", a=1), tool("b", "add", a=2))) for _ in range(15)]
    bad = stage.client.submit_chain(chain(tool("a", "fail")))
    assert [run.result(RUN_S).status for run in good] == ["succeeded"] * 15
    assert bad.result(RUN_S).status == "failed"

    found = added(stage, before, "cantata_steps_total", 16 + 31)
    assert found.of("cantata_steps_total", kind="run.start", status="done") == 16
    assert found.of("cantata_steps_total", kind="tool.call", status="done") == 30
    assert found.of("cantata_steps_total", kind="tool.call", status="failed") == 1
    assert found.of("cantata_step_duration_seconds_count", kind="tool.call") == 31
    assert found.of("cantata_tool_calls_total", tool="add", outcome="done") == 30
    assert found.of("cantata_tool_calls_total", tool="fail", outcome="failed") == 1
    assert 16 <= found.of("cantata_queue_wait_seconds_count") <= 47, (
        "each run was sent once at least; what ran ahead waited nowhere"
    )
    until(lambda: stage.fleet().since(fleet_before).of("cantata_runs_closed_total") == 16, "the ends of runs")
    fleet = stage.fleet().since(fleet_before)
    assert fleet.of("cantata_runs_accepted_total") == 16
    assert fleet.of("cantata_runs_closed_total", status="succeeded") == 15
    assert fleet.of("cantata_runs_closed_total", status="failed") == 1
    assert stage.fleet().of("cantata_runs_open") == 0


def test_runs_are_timed_by_name_and_outcome_once_whoever_ends_them(stage: Stage, tmp_path: Path) -> None:
    stage.models.script([{"reply": "a few words"}])
    before = stage.workers()

    free = {**chain(tool("a", "add", a=1)), "chain_id": "any name"}
    named: list[str | dict[str, Any]] = ["report"] * 3
    slow = {**gated(tmp_path, 1), "timeout": 1.0}
    asked = stage.client.submit_turn("long " * 500, agent="ann")
    labels = {"tenant": "acme"}
    runs: list[TurnRun | ChainRun] = [stage.client.submit_chain(each, labels=labels) for each in (*named, slow)]
    runs += [
        stage.client.submit_chain(free),
        asked,
        stage.client.submit_chain(chain(tool("a", "fail"))),
        stage.client.submit_turn("by default"),
    ]
    ends = [run.result(RUN_S).status for run in runs]

    assert ends == ["succeeded"] * 3 + ["timed_out", "succeeded", "succeeded", "failed", "succeeded"]
    name = "cantata_run_duration_seconds_count"
    found = added(stage, before, name, 8)
    for run_name, status, count in (
        ("report", "succeeded", 3),
        ("ann", "succeeded", 2),
        ("unnamed", "timed_out", 1),
        ("unnamed", "succeeded", 1),
        ("unnamed", "failed", 1),
    ):
        assert found.of(name, name=run_name, status=status) == count, run_name
    assert found.of(name, tenant="acme") == 4
    assert found.of("cantata_run_duration_seconds_sum", name="unnamed") >= 1.0


def test_the_first_token_of_a_streamed_reply_is_timed(stage: Stage) -> None:
    stage.models.script([{"reply": "a few words"}])
    before = stage.workers()

    for agent in ("bea", "ann"):
        stage.client.submit_turn("hello", agent=agent, labels={"tenant": "acme"}).result(RUN_S)

    found = added(stage, before, "cantata_model_calls_total", 2, tenant="acme")
    assert found.of("cantata_model_first_token_seconds_count", model=MODEL) == 1, "ann streams"
    assert found.of("cantata_model_first_token_seconds_sum") <= found.of("cantata_model_call_duration_seconds_sum")


def test_model_calls_are_counted_with_the_tokens_and_the_cost_that_runs_were_charged(stage: Stage) -> None:
    stage.models.script([{"match": "overloaded", "status": 503, "times": 1}, {"reply": "a few words"}])
    before = stage.workers()

    runs = [stage.client.submit_turn(text, agent="ann") for text in ("one", "two three", "overloaded")]
    results = [run.result(RUN_S) for run in runs]

    assert [result.status for result in results] == ["succeeded"] * 3
    found = added(stage, before, "cantata_model_calls_total", 4, model=MODEL)
    assert found.of("cantata_model_calls_total", outcome="ok") == 3
    assert found.of("cantata_model_calls_total", outcome="model_unavailable") == 1
    assert found.of("cantata_model_call_duration_seconds_count", model=MODEL) == 4
    assert (
        found.of("cantata_model_tokens_total", direction="input")
        == sum(result.usage.input_tokens for result in results)
        > 0
    )
    assert (
        found.of("cantata_model_tokens_total", direction="output")
        == sum(result.usage.output_tokens for result in results)
        > 0
    )
    assert found.of("cantata_model_cost_usd_total") == pytest.approx(
        sum(result.usage.cost_usd or 0 for result in results)
    )
    assert found.of("cantata_model_cost_usd_total") > 0
    assert found.of("cantata_steps_total", kind="agent.turn", status="retry") == 1


@pytest.mark.slow("calls wait for a window of a limit")
def test_calls_that_wait_for_limits_and_budgets_that_are_spent_are_counted(stage: Stage) -> None:
    stage.models.script([{"delay_s": 2.0, "reply": "slowly"}])
    before = stage.workers()
    narrow = stage.client.with_definitions(definitions(models={MODEL: {"concurrency": 1}}))
    poor = stage.client.with_definitions(definitions(budgets={"run": {"tokens": 1}}))

    runs = [narrow.submit_turn(f"wait {number}", agent="ann") for number in range(3)]
    assert [run.result(RUN_S).status for run in runs] == ["succeeded"] * 3
    assert poor.submit_turn("too much", agent="ann").result(RUN_S).status == "exhausted"

    found = added(stage, before, "cantata_budget_refusals_total", 1, budget="run")
    waits = found.of("cantata_limit_waits_total", model=MODEL, reason="concurrency")
    assert waits >= 2
    assert waits == found.of("cantata_steps_total", kind="agent.turn", status="wait")
    assert found.of("cantata_limit_wait_seconds_total", model=MODEL, reason="concurrency") > 0


def test_the_load_of_a_queue_is_what_waits_and_what_is_done(stage: Stage, tmp_path: Path) -> None:
    run = stage.client.submit_chain(gated(tmp_path, 9))

    until(
        lambda: stage.load()["tools"]["leased"] == 2 and stage.load()["tools"]["ready"] == 7,
        "two steps at the gate, seven behind",
    )
    tools, fleet = stage.load()["tools"], stage.fleet()
    assert (tools["work"], tools["slots"], tools["workers"]) == (9, 2, 1)
    assert tools["oldest_wait_s"] > 0
    assert fleet.of("cantata_queue_ready", queue="tools") == 7
    assert fleet.of("cantata_queue_leased", queue="tools") == 2
    assert fleet.of("cantata_queue_slots", queue="tools") == 2
    assert fleet.of("cantata_queue_oldest_wait_seconds", queue="tools") > 0
    assert fleet.of("cantata_steps_ready") == 7
    assert fleet.of("cantata_runs_open") == 1

    (tmp_path / "open").touch()
    assert run.result(RUN_S).status == "succeeded"
    until(lambda: stage.load()["tools"]["work"] == 0, "an empty queue")
    assert stage.load()["tools"]["oldest_wait_s"] is None


def test_a_killed_child_is_a_recovery_and_what_it_had_counted_stays(stage: Stage, tmp_path: Path) -> None:
    before, fleet_before = stage.workers(), stage.fleet()
    runs = [stage.client.submit_chain(chain(tool("a", "add", a=1))) for _ in range(10)]
    assert all(run.result(RUN_S).success for run in runs)
    added(stage, before, "cantata_steps_total", 10, kind="tool.call")
    run = stage.client.submit_chain(chain(tool("a", "gate", folder=str(tmp_path), mark="m")))
    pid = int(until(lambda: (tmp_path / "m.pid").is_file() and (tmp_path / "m.pid").read_text(), "the step"))

    os.kill(pid, signal.SIGKILL)
    until(lambda: (tmp_path / "m.pid").read_text() not in ("", str(pid)), "another that does it")
    (tmp_path / "open").touch()

    assert run.result(RUN_S).success
    found = added(stage, before, "cantata_steps_total", 11, kind="tool.call")
    assert found.of("cantata_steps_total", status="done", kind="tool.call") == 11, (
        "the attempt that was killed counts nowhere"
    )
    until(lambda: stage.fleet().since(fleet_before).of("cantata_steps_recovered_total") == 1, "the recovery")
    assert stage.fleet().since(fleet_before).of("cantata_leases_lost_total") == 1


def test_a_child_that_is_stopped_for_its_time_is_counted_before_it_goes(stage: Stage, tmp_path: Path) -> None:
    before = stage.workers()

    run = stage.client.submit_chain(chain(tool("a", "hang", folder=str(tmp_path), mark="m")))

    assert run.result(RUN_S).status == "failed"
    found = added(stage, before, "cantata_steps_total", 1, kind="tool.call", status="failed")
    assert found.of("cantata_steps_total", kind="tool.call") == 1
    assert found.of("cantata_step_duration_seconds_sum", kind="tool.call") >= 0.5


def test_nothing_is_shown_that_is_not_said_to_be(stage: Stage) -> None:
    def names(scrape: Scrape) -> set[str]:
        return {name for name, _ in scrape if name.startswith("cantata_")}

    def said(*sources: str) -> set[str]:
        suffixes = {"histogram": ("_bucket", "_sum", "_count")}
        chosen = [family for family in FAMILIES if family.source in sources]
        return {family.name + suffix for family in chosen for suffix in suffixes.get(family.kind, ("",))}

    Limiter(stage.client.ledger).pause("openai/paused", 3600)
    until(
        lambda: 3500 < stage.fleet().of("cantata_model_paused_seconds", model="openai/paused") <= 3600,
        "the paused model",
    )
    assert {"cantata_build_info"} <= names(stage.workers()) <= said("worker", "both")
    unknown = {"cantata_redis_memory_full_seconds"}  # of a Redis that has run for minutes only
    assert names(stage.fleet()) == said("gateway", "both") - unknown
    labels = {family.name: set(family.labels) for family in FAMILIES}
    for scrape in (stage.workers(), stage.fleet()):
        for name, has in scrape:
            if name in labels:
                assert {label for label, _ in has} == labels[name], name
    assert 0 <= stage.fleet().of("cantata_sweep_age_seconds") < 10


def test_the_gateways_own_port_answers_whoever_it_knows(stage: Stage, tmp_path: Path) -> None:
    assert read(stage.gateway_url).of("cantata_redis_up") == 1
    assert httpx.get(f"{stage.gateway_url}/load", params={"queue": "gpu"}).json()["queues"]["gpu"]["work"] == 0
    assert httpx.get(f"{stage.gateway_url}/load", params={"queue": "a:b"}).status_code == 422

    file = tmp_path / "tokens.json"
    file.write_text(
        json.dumps({TOKEN: {"tenant": "", "scopes": ["admin"]}, TENANTS_TOKEN: {"tenant": "anna", "scopes": ["admin"]}})
    )
    with gateway(stage.client.redis_url, tmp_path, "--tokens-file", str(file)) as guarded:
        assert [httpx.get(f"{guarded['url']}{path}").status_code for path in ("/metrics", "/load")] == [401, 401]
        of_tenant = {"Authorization": f"Bearer {TENANTS_TOKEN}"}
        assert [
            httpx.get(f"{guarded['url']}{path}", headers=of_tenant).status_code for path in ("/metrics", "/load")
        ] == [403, 403]
        assert read(guarded["url"], Authorization=f"Bearer {TOKEN}").of("cantata_redis_up") == 1
        assert read(guarded["metrics_url"]).of("cantata_redis_up") == 1, "the metrics port is open"
