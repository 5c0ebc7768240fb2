"""`submit models`: the models of a configuration, and those that are paused."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from cantata.flows.definitions import Definitions, Model
from cantata.surfaces.cli.connect import connect_to_kept
from cantata.surfaces.cli.main import FAILED
from cantata.surfaces.cli.options import config_option, json_option
from cantata.text import text_format


@click.group()
def models() -> None:
    """List models and their pauses, and end a pause."""


@models.command("list")
@config_option
@json_option
def list_(config: str | None, as_json: bool) -> int:
    """List the models of the configuration, and those that are paused since their provider asked for that."""
    with connect_to_kept(workers=False, config=config) as connection:
        paused = {each.model: each for each in connection.client.fleet.paused_models()}
        names = sorted({*_models_of(connection.client.definitions), *paused})
    if as_json:
        click.echo(
            json.dumps([{"model": name, "paused": asdict(paused[name]) if name in paused else None} for name in names])
        )
        return 0
    rows = [("model", "state", "until", "the provider says")]
    for name in names:
        pause = paused.get(name)
        cells = (
            ("paused", text_format.moment(pause.until), text_format.line(pause.message, 200))
            if pause
            else ("ready", "", "")
        )
        rows.append((name, *cells))
    click.echo("\n".join(text_format.columns(rows)))
    return 0


@models.command()
@click.argument("name")
def resume(name: str) -> int:
    """End the pause of a model. NAME is LiteLLM's, as `submit models list` shows it. Calls that wait are made at once."""
    with connect_to_kept(workers=False) as connection:
        if connection.client.fleet.resume_model(name):
            click.echo(f"model {name!r} is called again")
            return 0
        paused = [each.model for each in connection.client.fleet.paused_models()]
    others = f"paused are {', '.join(map(repr, paused))}" if paused else "no model is"
    click.echo(f"model {name!r} is not paused; {others}", err=True)
    return FAILED


def _models_of(definitions: Definitions) -> set[str]:
    """Return LiteLLM's names of the models that a configuration names."""
    own = [
        each
        for agent in definitions.agents.values()
        for each in (*agent.models, *([agent.model] if agent.model else []))
    ]
    named = [
        each if isinstance(each, Model) else definitions.model_of(each) for each in (*own, definitions.defaults.model)
    ]
    return {model.model for model in (*definitions.models.values(), *named)}
