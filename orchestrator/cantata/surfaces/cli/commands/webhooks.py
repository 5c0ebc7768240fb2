"""`submit webhooks`: the webhooks of a configuration."""

from __future__ import annotations

import json

import click

from cantata.surfaces.cli.connect import connect_or_start
from cantata.surfaces.cli.main import FAILED
from cantata.surfaces.cli.options import config_option, json_option
from cantata.text import text_format
from cantata.values import as_text

TEST_S = 60.0  # for a test message: it is posted once, in at most half of it


@click.group()
def webhooks() -> None:
    """List webhooks and alerts of a configuration, and send a test message."""


@webhooks.command("list")
@config_option
@json_option
def list_(config: str | None, as_json: bool) -> int:
    """List the webhooks and alerts of a configuration."""
    from cantata.surfaces.cli.requests import load_definitions

    found = load_definitions(config)
    if as_json:
        shown = {
            name: {each: one.model_dump() for each, one in getattr(found, name).items()}
            for name in ("webhooks", "alerts")
        }
        click.echo(json.dumps(shown))
        return 0
    for name, hook in found.webhooks.items():
        labels = "".join(f"  {key}={value}" for key, value in hook.labels.items())
        click.echo(f"{name}  on {', '.join(hook.on) or 'request'}  {hook.url}  secret in {hook.secret_env}{labels}")
    for name, alert in found.alerts.items():
        click.echo(f"{name}  alert on {alert.on} to {alert.webhook}")
    if not found.webhooks:
        click.echo("the configuration has no webhooks: add them under 'webhooks'", err=True)
    return 0


@webhooks.command()
@click.argument("name")
@config_option
@json_option
def test(name: str, config: str | None, as_json: bool) -> int:
    """Have a worker post a signed test message, once, and show the answer. NAME is a webhook of the configuration, or a URL."""
    with connect_or_start(config=config) as connection:
        connection.print_fleet_warnings()
        posted = connection.client.test_webhook(name).result(TEST_S)
    if as_json:
        click.echo(posted.model_dump_json())
    elif posted.error:
        click.echo(f"error: {text_format.clean(posted.error.message)}", err=True)
        click.echo(
            "check the URL, that the agents workers can reach it, and that their secret is the one that the receiver verifies with",
            err=True,
        )
    else:
        click.echo(f"{name} took the test message {posted.run_id}: {as_text(posted.output)}")
    return 0 if posted.status == "succeeded" else FAILED
