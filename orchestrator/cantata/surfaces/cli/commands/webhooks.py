"""`submit webhooks`: the webhooks of a configuration."""

from __future__ import annotations

import json

import click

from cantata.surfaces.cli.connect import open_submission
from cantata.surfaces.cli.options import config_option, json_option


@click.group()
def webhooks() -> None:
    """List webhooks and alerts of a configuration, and send a test message."""


@webhooks.command("list")
@config_option
@json_option
def list_(config: str | None, as_json: bool) -> int:
    """List the webhooks and alerts of a configuration."""
    from cantata.surfaces.cli.requests import load_definitions  # noqa: PLC0415  # it loads jmespath

    found = load_definitions(config)
    if as_json:
        shown = {name: {each: one.model_dump() for each, one in getattr(found, name).items()} for name in ("webhooks", "alerts")}
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
    with open_submission(config=config, as_json=as_json) as submission:
        return submission.test_webhook(name)
