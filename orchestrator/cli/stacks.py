"""`submit up`, `status` and `down`: the processes that do the work."""

from __future__ import annotations

import json
import os
import time

import click

from orchestrator import embedded, words
from orchestrator.cli.door import service_url
from orchestrator.cli.main import UNAVAILABLE
from orchestrator.cli.options import as_json, configured
from orchestrator.errors import UnavailableError
from orchestrator.state import fleet
from orchestrator.state.connection import check, connect


@click.command()
@configured
@click.option("--no-flower", is_flag=True, help="Start no Flower, which shows the tasks in a browser.")
@click.option("--no-gateway", is_flag=True, help="Start no gateway, which answers over HTTP and WebSockets.")
@click.option("--agents", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Processes for model turns.")
@click.option("--tools", type=click.IntRange(1), metavar="N", help="Processes for tools; one a processor if absent.")
@as_json
def up(config: str | None, no_flower: bool, no_gateway: bool, agents: int, tools: int | None, as_json: bool) -> int:
    """Start a stack in this folder and keep it running."""
    stack = embedded.attach()
    if stack is None:
        stack = embedded.Stack.start(
            agents=agents, tools=tools, flower=not no_flower, gateway=not no_gateway, config=config, keep=True
        )  # fmt: skip
        said = "the stack runs"
    else:
        said = "a stack runs already"
    if as_json:
        click.echo(json.dumps(embedded.status().to_json()))
        return 0
    click.echo(f"{said} in {stack.home.path}; submit down stops it")
    if stack.flower_url:
        click.echo(f"Flower: {stack.flower_url}")
    if stack.gateway_url:
        click.echo(f"gateway: {stack.gateway_url}")
    if os.environ.get("REDIS_URL"):
        click.echo("REDIS_URL is set, so commands here talk to that Redis, not to this stack", err=True)
    return 0


@click.command()
@as_json
def down(as_json: bool) -> int:
    """Stop the stack of this folder."""
    stopped = embedded.down()
    if as_json:
        click.echo(json.dumps({"stopped": stopped}))
    else:
        click.echo("the stack is stopped" if stopped else "no stack runs in this folder")
    return 0


@click.command()
@as_json
def status(as_json: bool) -> int:
    """Show what runs: the stack of this folder, and the workers on its Redis."""
    stack = embedded.status()
    url = service_url()
    workers: list[fleet.Worker] = []
    unreachable = ""
    if url:
        try:
            with connect(url) as redis:
                check(redis, url=url)
                workers = fleet.workers(redis)
        except UnavailableError as error:
            unreachable = str(error)
    if as_json:
        click.echo(json.dumps({**stack.to_json(), "workers": [worker.model_dump(mode="json") for worker in workers]}))
    else:
        _show(stack, workers)
    if unreachable or not url:
        click.echo(f"submit: {unreachable or 'no REDIS_URL, and no stack of `submit up` here'}", err=True)
        return UNAVAILABLE
    return 0


def _show(stack: embedded.StackStatus, workers: list[fleet.Worker]) -> None:
    kind = "kept until `submit down`" if stack.kept else "of a command that runs now"
    click.echo(f"{stack.home}: {f'a stack, {kind}' if stack.running else 'no stack runs'}")
    for process in stack.processes:
        lasted = words.duration((time.time() - process.started_s) * 1000) if process.alive else "dead"
        click.echo(f"  {process.name:12}  pid {process.pid:<8}  {lasted:>12}  {', '.join(process.queues)}".rstrip())
    if stack.flower_url:
        click.echo(f"Flower: {stack.flower_url}")
    if stack.gateway_url:
        click.echo(f"gateway: {stack.gateway_url}")
    if workers:
        click.echo("workers that take work now:")
    for worker in workers:
        click.echo(f"  {worker.name:32}  pid {worker.pid:<8}  {worker.concurrency:>4} at once  {', '.join(worker.queues)}{_oddity(worker)}")


def _oddity(worker: fleet.Worker) -> str:
    return f"  (its clock is {worker.clock_off_s:+.0f} s off Redis's)" if abs(worker.clock_off_s) > fleet.CLOCK_OFF_S else ""
