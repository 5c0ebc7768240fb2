"""`submit runs retry`: several runs at once, and each once."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from cantata.cli.main import submit
from cantata.state.ledger.ledger import Ledger
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
    assert f"retried as {retried[1]}" in next(line for line in run("list").stdout.splitlines() if line.startswith("run1 "))
    assert run("list", "--search", "nothing like it").stderr.endswith("no run matches\n")
