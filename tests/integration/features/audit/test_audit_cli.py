"""`submit audit`, and what commands and programs leave in the audit log and in a run's events."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cantata.client.client import Client
from cantata.engine.limits.limiter import Limiter
from cantata.flows.definitions import Definitions
from cantata.flows.events import Action
from cantata.ledger.ledger import Ledger
from cantata.surfaces.cli.main import submit
from tests.integration.state.play import Play, wait, work
from tests.integration.state.test_cancelling import flow

ME = f"{getpass.getuser()}@{socket.gethostname()}"
CLAIM = {"by": ME, "via": "cli", "verified": False}


@pytest.fixture(autouse=True)
def client(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Any:
    url = f"unix://{ledger.redis.connection_pool.connection_kwargs['path']}"
    monkeypatch.setenv("REDIS_URL", url)
    monkeypatch.setenv("COLUMNS", "200")
    with Client(url) as client:
        yield client


def run(*words: str, status: int = 0) -> Result:
    result = CliRunner().invoke(submit, [*words])
    assert result.exit_code == status, result.output
    return result


def entries(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("audit", "--json", *words).stdout.splitlines()]


def acts(client: Client, run_id: str = "run") -> list[Action]:
    return [event for event in client.run(run_id).log(timeout_s=0) if isinstance(event, Action) and event.by]


def asking(ledger: Ledger, run_id: str = "run", **more: Any) -> Play:
    play = Play(ledger, run_id, **more)
    play.plan(wait("ask"), wait("other"))
    return play


def test_commands_are_claims_of_the_user_and_the_machine_and_say_so(ledger: Ledger, client: Client) -> None:
    asking(ledger)
    run("runs", "signal", "run", "ask", "true")
    run("inbox", "answer", "run/other", "true", "--as", "boss")

    answer, signal = entries()
    shown = run("audit").stdout.splitlines()
    assert signal.items() >= {"action": "run.signal", "target": "ask", **CLAIM}.items()
    assert answer.items() >= {"action": "inbox.answer", "by": "boss", "via": "cli", "verified": False}.items()
    assert shown[0].split() == ["time", "action", "outcome", "on", "by", "via", "tenant", "detail"]
    assert "inbox.answer  done     run other  boss (claimed)" in shown[1]
    assert [act.author for act in acts(client)] == [f"{ME} (claimed)", "boss (claimed)"]
    assert f"signal ask by {ME} (claimed)" in run("runs", "show", "run").stderr
    assert "signal other by boss (claimed)" in run("runs", "follow", "run").stderr
    assert "signal other by boss (claimed)" in run("logs", "run").stderr
    assert run("logs", "run", "--json").stdout == ""


def test_a_cancelled_run_says_who_did_it(ledger: Ledger, client: Client) -> None:
    asking(ledger)
    run("runs", "cancel", "run")

    (closed,) = acts(client)
    assert (closed.type, closed.by, closed.via, closed.verified) == ("closed", ME, "cli", False)
    assert f"cancelled by {ME} (claimed)" in run("runs", "show", "run").stderr


def test_a_run_whose_workflows_clean_up_says_who_cancelled_it(ledger: Ledger, client: Client) -> None:
    play, behind = flow(ledger)

    assert client.run("run").cancel() == "cancelling"
    assert client.run("run").cancel() == "cancelling", "it changes nothing"
    (cancelling,) = acts(client)
    assert (cancelling.type, cancelling.by, cancelling.via) == ("cancelling", ME, "python")
    assert [entry["detail"] for entry in entries("--run", "run")] == ["the run is cancelling"]
    play.do(behind)
    assert client.run("run").status() == "cancelled"


def test_programs_are_claims_too_and_name_others(ledger: Ledger, client: Client) -> None:
    asking(ledger, labels={"tenant": "acme"})
    client.answer("run/ask", True, by="anna")
    client.run("run").cancel()

    cancel, answer = client.audit(tenant="acme")
    assert (answer.by, answer.via, answer.verified, answer.tenant) == ("anna", "python", False, "acme")
    assert (cancel.by, cancel.via, cancel.author) == (ME, "python", f"{ME} (claimed)")
    assert client.audit(tenant="") == []
    assert client.of("acme").audit(action="run.cancel").entries == [cancel]
    assert client.of("other").audit().entries == []


def test_what_a_configuration_changes_is_in_it(client: Client) -> None:
    chain = {"entry_node": "ok", "nodes": [{"node_id": "ok", "kind": "wait"}]}

    def apply(**schedules: Any) -> None:
        given = {"chains": {"c": chain}, "schedules": schedules}
        client.with_definitions(Definitions.model_validate(given)).schedules.apply()

    apply(nightly={"every": "1h", "chain": "c"}, other={"every": "1h", "chain": "c", "labels": {"tenant": "acme"}})
    apply(nightly={"every": "2h", "chain": "c"}, other={"every": "1h", "chain": "c", "labels": {"tenant": "acme"}})
    apply()

    found = [(entry.action, entry.target) for entry in reversed(client.audit(tenant=""))]
    assert found == [(f"schedule.{verb}", "nightly") for verb in ("create", "change", "delete")]
    assert [entry.action for entry in client.audit(tenant="acme")] == ["schedule.delete", "schedule.create"]
    assert {entry.detail for entry in client.audit()} == {"as the configuration declares it"}


def test_operators_acts_on_the_fleet_are_in_it(ledger: Ledger, client: Client) -> None:
    play = Play(ledger)
    play.plan(work("a"))
    begun = play.begin("a")
    ledger.redis.hset(f"{play.shard}:run:run:info", "a", "no JSON")
    for _ in range(3):
        play.lose_lease(begun)
    ledger.redis.hdel(f"{play.shard}:run:run:info", "a")
    (item,) = client.fleet.parked.find()
    Limiter(ledger).pause("openai/gpt", 60)
    run("parked", "retry", item.id, "--as", "ann")
    run("models", "resume", "openai/gpt")
    run("models", "resume", "openai/gpt", status=1)

    resume, retry = entries("--tenant", "")
    assert resume.items() >= {"action": "model.resume", "target": "openai/gpt", **CLAIM}.items()
    assert retry.items() >= {"action": "parked.retry", "target": item.id, "by": "ann", "verified": False}.items()
    assert retry["detail"].startswith("leases run|1|worker")
    (act,) = acts(client)
    assert (act.type, act.by, act.via, act.verified) == ("unparked", "ann", "cli", False)
    client.run("run").cancel()


@pytest.mark.slow("the command is a process of its own, which imports all")
def test_a_command_that_is_killed_before_it_knows_leaves_an_entry_that_says_so(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANTATA_BROKER_URL", "none")
    with Client(client.redis_url) as own:
        run_id = own.submit_chain({"nodes": [{"node_id": "ask", "kind": "wait"}], "entry_node": "ask"}).run_id
        own.run(run_id).cancel()
    killed = subprocess.run(
        [sys.executable, "-m", "cantata.surfaces.cli", "runs", "retry", run_id, "--detach"],
        env={**os.environ, "CANTATA_FAULT": "fork-replied:1:kill"}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (begun,) = entries("--action", "run.retry")
    assert begun.items() >= {"outcome": "begun", "run_id": run_id, **CLAIM}.items()
    run("runs", "retry", run_id, "--detach", "--again")
    assert [entry["outcome"] for entry in entries("--action", "run.retry")] == ["done", "begun"]
    for summary in client.of(None).newest(None):
        client.run(summary.run_id).cancel()


def test_options_filter_and_wrong_ones_are_refused(ledger: Ledger) -> None:
    for number in range(3):
        asking(ledger, f"run{number}")
        run("runs", "cancel", f"run{number}")

    assert [entry["run_id"] for entry in entries("--limit", "2")] == ["run2", "run1"]
    assert [entry["run_id"] for entry in entries("--run", "run0", "--by", ME, "--since", "1h")] == ["run0"]
    assert entries("--by", "nobody") == []
    assert run("audit", "--by", "nobody").stderr == "no entry matches\n"
    assert "expected a number with its unit" in run("audit", "--since", "soon", status=2).stderr


def test_an_empty_log_says_so(ledger: Ledger) -> None:
    assert run("audit").stderr == "nobody has acted so far\n"
    assert run("audit", "--json").stdout == ""


def test_a_wrong_setting_is_named(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_AUDIT_DAYS", "-1")

    refused = run("audit", status=2)
    assert "CANTATA_AUDIT_DAYS" in refused.stderr
