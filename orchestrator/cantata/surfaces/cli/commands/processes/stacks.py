"""`submit up` and `submit down`: the stack of a folder. Only the standard library and click are imported: both begin at once."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from click.core import ParameterSource

from cantata.errors import CantataError, ConfigError, Fault
from cantata.operation import embedded
from cantata.operation.project_folder import CONFIG_FILE, project_folder
from cantata.surfaces.cli.options import config_option, json_option
from cantata.surfaces.cli.views.progress import show_progress


@click.command()
@config_option
@click.option("--no-flower", is_flag=True, help="Do not start Flower, the task monitor.")
@click.option("--no-gateway", is_flag=True, help="Do not start the gateway (HTTP and WebSockets).")
@click.option(
    "--agents", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Processes for model turns."
)
@click.option(
    "--tools", type=click.IntRange(1), metavar="N", help="Processes for tools; one for each processor if absent."
)
@json_option
def up(config: str | None, no_flower: bool, no_gateway: bool, agents: int, tools: int | None, as_json: bool) -> int:
    """Start a stack in this folder and keep it running."""
    stack, ignored = embedded.attach(), ""
    if stack is None:
        with show_progress(f"starting a stack in {embedded.Home().path}"), ThreadPoolExecutor(1, "imports") as threads:
            unimportable = threads.submit(
                _unimportable, config
            )  # beside the start, which mostly waits for other processes
            stack = embedded.Stack.start(
                agents=agents, tools=tools, flower=not no_flower, gateway=not no_gateway, config=config, keep=True
            )
            if faults := unimportable.result():
                embedded.down()
                raise ConfigError(faults, source=config or os.environ.get("CANTATA_CONFIG") or str(CONFIG_FILE))
        state = "the stack is running"
    else:
        state, ignored = "a stack is already running", _ignored_options(stack.status())
    here = stack.status()
    if as_json:
        click.echo(json.dumps(here.to_json()))
        return 0
    click.echo(f"{state} in {stack.home.path}; submit down stops it")
    if here.config:
        click.echo(f"configuration: {here.config}")
    if here.flower_url:
        click.echo(f"Flower: {here.flower_url}")
    if here.gateway_url:
        click.echo(f"gateway and run pages: {here.gateway_url}")
    for name, port in stack.moved.items():
        click.echo(f"port {port} was taken, so the {name} of this folder has another one, which it keeps", err=True)
    if ignored:
        click.echo(
            f"nothing was changed: {ignored} had no effect on the stack that runs; `submit down` first, then this again",
            err=True,
        )
    if fault := here.code_fault:
        click.echo(f"warning: the stack still serves the previous code: {fault}", err=True)
    if os.environ.get("REDIS_URL"):
        click.echo("REDIS_URL is set, so commands here use that Redis, not this stack", err=True)
    return 0


def _unimportable(config: str | None) -> list[Fault]:
    """Return the faults of functions that the workers of the stack could not import."""
    from cantata.surfaces.cli.import_check import unimportable

    try:
        return unimportable(config)
    except (CantataError, OSError):  # the processes of the stack say what is wrong with the configuration
        return []


def _ignored_options(here: embedded.StackStatus) -> str:
    """Return the options of this command that differ from the stack that runs, or may do so."""
    context = click.get_current_context()
    given = [
        each
        for each in context.command.params
        if context.get_parameter_source(str(each.name)) is ParameterSource.COMMANDLINE
    ]
    wanted = context.params["config"] or os.environ.get("CANTATA_CONFIG") or ""
    same = {"config", "as_json", "" if here.flower_url else "no_flower", "" if here.gateway_url else "no_gateway"}
    changed = [each.opts[0] for each in given if each.name not in same]
    if wanted and Path(wanted).resolve() != Path(here.config or project_folder() / CONFIG_FILE).resolve():
        changed.insert(0, f"--config {wanted}" if context.params["config"] else f"CANTATA_CONFIG={wanted}")
    return ", ".join(changed)


@click.command()
@json_option
def down(as_json: bool) -> int:
    """Stop the stack of this folder."""
    with show_progress(f"stopping the stack in {embedded.Home().path}"):
        stopped = embedded.down()
    if as_json:
        click.echo(json.dumps({"stopped": stopped}))
    else:
        click.echo("the stack is stopped" if stopped else "no stack is running in this folder")
    return 0
