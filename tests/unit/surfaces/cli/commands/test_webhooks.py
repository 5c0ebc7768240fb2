"""`submit webhooks`, and `--webhook`, before any service is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cantata.config.loading import load
from cantata.errors import ConfigError
from cantata.surfaces.cli.main import submit

CONFIG = """
agents: {clerk: {model: openai/gpt-4o-mini}}
webhooks:
  ops: {url: "https://example.org/hook", on: [failure], labels: {tenant: acme}}
  asked: {url: "https://example.org/other", secret_env: OTHER}
alerts:
  broken: {on: failed_runs, webhook: ops}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "hooks.yaml"
    file.write_text(CONFIG)
    return file


def test_webhooks_and_alerts_are_listed_with_the_name_of_their_secret(config: Path) -> None:
    done = CliRunner().invoke(submit, ["webhooks", "list", "--config", str(config)])

    assert done.stdout.splitlines() == [
        "ops  on failure  https://example.org/hook  secret in CANTATA_WEBHOOK_SECRET  tenant=acme",
        "asked  on request  https://example.org/other  secret in OTHER",
        "broken  alert on failed_runs to ops",
    ]


def test_they_are_listed_for_programs(config: Path) -> None:
    done = CliRunner().invoke(submit, ["webhooks", "list", "--json", "--config", str(config)])

    found = json.loads(done.stdout)
    assert (found["webhooks"]["ops"]["on"], found["alerts"]["broken"]["webhook"]) == (["failure"], "ops")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("alerts: {a: {on: failed_runs, webhook: opps}}", "there is no webhook 'opps'"),
        ("webhooks: {a: {url: ftp://example.org}}", "must be http:// or https://"),
        (
            "webhooks: {a: {url: https://example.org, secret_env: sk-12345}}",
            "expected the name of an environment variable",
        ),
        ("webhooks: {a: {url: https://example.org, on: [done]}}", "webhooks.a.on"),
    ],
)
def test_a_faulty_configuration_is_refused_with_the_place(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "faulty.yaml"
    file.write_text(line)

    with pytest.raises(ConfigError) as refused:
        load(file)

    assert message in str(refused.value)
    assert "sk-12345" not in str(refused.value)
