"""Schedules before real workers, in real and in skipped time, and by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cantata.client.client import EmbeddedClient
from cantata.flows.wire import ChainResponse
from cantata.surfaces.cli.main import submit
from cantata.testing import ScriptedModels
from tests.integration.fleet.conftest import tool
from tests.waiting import at_best, until

CHAIN = {"nodes": [tool("n", "echo", input_map={"day": "input.day"})], "entry_node": "n"}
ECHO: dict[str, Any] = {"chain": CHAIN, "input": {"day": "{date}"}}


def test_a_time_is_run_within_a_second_by_the_workers_that_there_are(client: EmbeddedClient) -> None:
    def lateness() -> float:
        client.schedules.create("often", {"every": "1s", "overlap": "allow", **ECHO})
        until(lambda: client.schedules.get("often").fired >= 3, "three times")
        runs = client.schedules.get("often").runs
        client.schedules.delete("often")
        for run in runs:
            assert client.run(run.run_id).result(40).status == "succeeded"
        return max((run.started_at or 0.0) - run.scheduled_at for run in runs)

    assert at_best(lateness, 1.0) < 1.0


def test_days_are_skipped_and_their_times_run(client: EmbeddedClient) -> None:
    client.schedules.create("daily", {"cron": "0 7 * * *", "timezone": "Europe/Berlin", "overlap": "queue", **ECHO})

    for number in range(1, 4):
        client.skip(days=1)
        assert client.schedules.get("daily").fired == number, "it was fired before the call returned"
        result = client.run(client.schedules.get("daily").runs[0].run_id).result(40)
        assert isinstance(result, ChainResponse)
        assert result.success

    days = [run.scheduled_at // 86_400 for run in client.schedules.get("daily").runs]
    client.schedules.delete("daily")
    assert days == [days[0], days[0] - 1, days[0] - 2]


def test_a_turn_in_a_session_sees_the_turns_before_it(client: EmbeddedClient, models: ScriptedModels) -> None:
    turn = {"text": "report of {date}", "agent": "picker", "session": "reports"}
    client.schedules.create("daily", {"cron": "0 7 * * *", "turn": turn})
    models.script([{"reply": '{"pick": "a"}'}])
    client.submit_turn("be brief", agent="picker", session="reports").wait(40)

    for _ in range(2):
        client.skip(days=1)
        client.run(client.schedules.get("daily").runs[0].run_id).wait(40)
    client.schedules.delete("daily")

    asked: Any = models.requests[-1]["messages"]
    texts = [message["content"].partition(" of ")[0] for message in asked if message["role"] == "user"]
    models.clear()
    assert texts == ["be brief", "report", "report"]


CONFIG = """
version: 1
tools: {echo: {function: json:dumps}}
chains: {tally: {entry_node: a, nodes: [{node_id: a, kind: tool, name: echo, input_map: {obj: input.day}}]}}
schedules: {nightly: {cron: "30 2 * * *", chain: tally, input: {day: "{date}"}}}
"""


@pytest.fixture
def config(client: EmbeddedClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration in this folder, for the stack."""
    monkeypatch.setenv("REDIS_URL", client.redis_url)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    return file


def said(*words: str, **options: Any) -> Result:
    """What a command of `submit schedules` says."""
    return CliRunner().invoke(submit, ["schedules", *words], **options)


def test_apply_shows_a_difference_asks_and_makes_it(config: Path) -> None:
    apply = ("apply", "--config", str(config))
    declined = said(*apply, input="n\n")
    assert (declined.exit_code, declined.stdout) == (1, "+ nightly\n")
    assert "there are no schedules" in said("list").stderr
    assert said(*apply, "--yes").exit_code == 0
    assert "30 2 * * * (UTC)" in said("list").stdout
    assert "as the configuration declares" in said(*apply).stderr

    config.write_text(CONFIG.replace("30 2", "45 2").replace("chain: tally", "note: later, chain: tally"))
    changed = said(*apply, "--dry-run")
    assert changed.stdout == "~ nightly\n    cron: 30 2 * * * → 45 2 * * *\n    note: (default) → later\n"
    config.write_text(CONFIG.partition("schedules:")[0])
    assert said(*apply, "--yes").stdout == "- nightly\n"
    assert json.loads(said("list", "--json").stdout) == []


def test_a_schedule_is_created_paused_and_deleted_by_commands_of_its_tenant(config: Path) -> None:
    create = (
        "create",
        "hourly",
        "--every",
        "1h",
        "--chain",
        "tally",
        "--input",
        '{"day": "{date}"}',
        "--config",
        str(config),
    )
    assert said(*create, "--label", "tenant=acme", "--note", "a note").exit_code == 0
    of_acme = ("hourly", "--tenant", "acme")

    assert said("show", "hourly").exit_code == 2
    assert "did you mean" not in said("show", "hourly").stderr, "nor does a message name those of others"
    assert "a note" in said("show", *of_acme).stdout
    assert (
        "--session belong to --turn"
        in said("create", "x", "--every", "1h", "--chain", "tally", "--session", "s").stderr
    )
    assert "paused: holidays" in said("pause", *of_acme, "--note", "holidays").stdout
    assert json.loads(said("resume", *of_acme, "--json").stdout)["state"] == "active"
    first, second = (
        said("trigger", *of_acme),
        said("create", "x", "--every", "soon", "--turn", "a", "--config", str(config)),
    )
    assert len(first.stdout.strip()) > 10
    assert (second.exit_code, second.stderr) == (
        2,
        "submit: schedule 'x': every: expected a duration such as '90s', '10m' or '1h30m', not 'soon'\n",
    )
    assert json.loads(
        said("backfill", *of_acme, "--from", "2026-01-01", "--to", "2026-01-01T02:00", "--json").stdout
    ) == {"times": 3}
    assert said("delete", *of_acme).exit_code == 0
    assert said("delete", *of_acme).exit_code == 2
