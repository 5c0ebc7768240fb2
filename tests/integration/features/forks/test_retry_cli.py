"""`submit runs retry`: several runs at once, and each once."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from cantata.engine.fleet import load
from cantata.ledger.ledger import Ledger
from cantata.surfaces.cli.main import submit
from tests.integration.state.play import Play, work


def run(*words: str) -> Result:
    return CliRunner().invoke(submit, ["runs", *words])


def test_a_run_is_retried_once_unless_asked_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", f"unix://{ledger.redis.connection_pool.connection_kwargs['path']}")
    monkeypatch.setenv("COLUMNS", "200")
    for number in range(2):
        play = Play(ledger, f"run{number}", text="Pay", definitions='{"agents": {"it": {"model": "openai/x"}}}')
        play.plan(work("a"))
        play.fail("a")

    first = run("retry", "run0", "nope", "--detach", "--json")
    refused = run("retry", "run0", "--detach")
    both = run("retry", "run0", "run1", "--detach", "--again", "--json")
    retried = [json.loads(line)["run_id"] for line in both.stdout.splitlines()]

    made = json.loads(first.stdout)["run_id"]
    assert (first.exit_code, refused.exit_code, both.exit_code) == (2, 2, 0)
    assert "run nope is not retried" in first.stderr
    assert f"run run0 was retried as {made}" in refused.stderr
    assert json.loads(run("show", "run0", "--json").stdout)["retried_as"] == retried[0] != made
    assert f"retried as {retried[1]}" in next(
        line for line in run("list").stdout.splitlines() if line.startswith("run1 ")
    )
    assert load.recent_outcomes(ledger.redis)["retried"] == 2
    assert load.measure(ledger.redis).totals["retried"] == 2
    assert run("list", "--search", "nothing like it").stderr.endswith("no run matches\n")


def test_runs_are_retried_and_cancelled_by_filters_after_a_question(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", f"unix://{ledger.redis.connection_pool.connection_kwargs['path']}")
    for number in range(5):
        play = Play(ledger, f"run{number}", text="Pay", definitions='{"agents": {"it": {"model": "openai/x"}}}')
        play.plan(work("a"))
        if number < 3:
            play.fail("a")

    assert (
        run("retry").exit_code == run("retry", "run0", "--status", "failed").exit_code == run("cancel").exit_code == 2
    )
    assert "such as 90s" in run("cancel", "--since", "soon").stderr
    assert "no run matches that can be retried" in run("retry", "--status", "succeeded").stderr
    asked = run("retry", "--status", "failed", "--since", "1h", "--detach")
    assert (asked.exit_code, "Retry 3 runs?" in asked.stderr) == (1, True)
    assert load.measure(ledger.redis).totals["retried"] == 0

    run("retry", "run0", "--detach")
    done = run("retry", "--status", "failed", "--since", "1h", "--detach", "--yes")
    assert (len(done.stdout.split()), done.stderr.splitlines()[0].partition(":")[0]) == (2, "2 runs")

    cancelled = run("cancel", "--since", "7d", "--yes", "--json")
    told = [json.loads(line) for line in cancelled.stdout.splitlines()]
    assert [each["run_id"] for each in told][:2] == ["run3", "run4"]
    assert ({each["status"] for each in told}, len(told), cancelled.exit_code) == ({"cancelled"}, 5, 0)
    assert run("cancel", "run3", "nope").exit_code == 2
    assert run("list", "--since", "1h", "--status", "failed").stdout.count("retried as") == 3


def test_a_run_whose_step_is_refused_is_listed_as_stopped(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", f"unix://{ledger.redis.connection_pool.connection_kwargs['path']}")
    play = Play(ledger, "run", text="Pay")
    play.plan(work("a"))
    begun = play.begin("a")
    ledger.steps.refuse("run", "a", begun.attempt, begun.owner, "the code has changed")

    assert "running" in (row := run("list").stdout.splitlines()[1])
    assert row.endswith("Pay  stopped: the code has changed")
    assert json.loads(run("list", "--json").stdout)[0]["stopped"] == "the code has changed"

    ledger.runs.cancel("run")
    assert json.loads(run("list", "--json").stdout)[0]["stopped"] is None
