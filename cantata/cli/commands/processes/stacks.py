"""`submit up`, `status` and `down`: the stack of a folder."""

from __future__ import annotations

import json
import os
import time

import click

from cantata import __version__, embedded, health, text_format
from cantata.cli.connect import redis_of_user_app
from cantata.cli.main import FAILED
from cantata.cli.options import config_option, json_option
from cantata.errors import UnavailableError
from cantata.health.facts import Unavailable
from cantata.settings import settings
from cantata.state.fleet import registry

COLOURS = {"ok": "green", "degraded": "yellow", "failing": "red"}


@click.command()
@config_option
@click.option("--no-flower", is_flag=True, help="Do not start Flower, the task monitor.")
@click.option("--no-gateway", is_flag=True, help="Do not start the gateway (HTTP and WebSockets).")
@click.option("--agents", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Processes for model turns.")
@click.option("--tools", type=click.IntRange(1), metavar="N", help="Processes for tools; one for each processor if absent.")
@json_option
def up(config: str | None, no_flower: bool, no_gateway: bool, agents: int, tools: int | None, as_json: bool) -> int:
    """Start a stack in this folder and keep it running."""
    stack = embedded.attach()
    if stack is None:
        stack = embedded.Stack.start(agents=agents, tools=tools, flower=not no_flower, gateway=not no_gateway, config=config, keep=True)
        state = "the stack is running"
    else:
        state = "a stack is already running"
    here = stack.status()
    if as_json:
        click.echo(json.dumps(here.to_json()))
        return 0
    click.echo(f"{state} in {stack.home.path}; submit down stops it")
    if here.flower_url:
        click.echo(f"Flower: {here.flower_url}")
    if here.gateway_url:
        click.echo(f"gateway and run pages: {here.gateway_url}")
    for name, port in stack.moved.items():
        click.echo(f"port {port} was taken, so the {name} of this folder has another one, which it keeps", err=True)
    if fault := here.code_fault:
        click.echo(f"warning: the stack still serves the previous code: {fault}", err=True)
    if os.environ.get("REDIS_URL"):
        click.echo("REDIS_URL is set, so commands here use that Redis, not this stack", err=True)
    return 0


@click.command()
@json_option
def down(as_json: bool) -> int:
    """Stop the stack of this folder."""
    stopped = embedded.down()
    if as_json:
        click.echo(json.dumps({"stopped": stopped}))
    else:
        click.echo("the stack is stopped" if stopped else "no stack is running in this folder")
    return 0


@click.command()
@click.option("--gateway", metavar="URL", help="The gateway to check; that of the stack here if absent.")
@click.option("--flower", metavar="URL", help="The Flower to check; that of the stack here if absent.")
@json_option
def status(gateway: str | None, flower: str | None, as_json: bool) -> int:
    """Check this deployment, and show what runs.

    Prints one line per check: ok, degraded or failing, with the action to take. If any is failing the exit status is 1.
    """
    stack = embedded.status()
    stack_url = stack.url if stack.kept else None  # also if it does not answer, which is then reported
    url = os.environ.get("REDIS_URL") or redis_of_user_app() or stack_url
    if url is None:
        _print_status(stack, None, [], as_json)
        raise UnavailableError("nothing to check: neither REDIS_URL nor CANTATA_APP is set, and there is no stack of `submit up` here")
    own = stack if stack.url == url else None
    gateway, flower = gateway or (own.gateway_url if own else None), flower or (own.flower_url if own else None)
    facts = health.gather(url, version=__version__, broker_url=settings().broker_url, stack=own, gateway_url=gateway, flower_url=flower)
    found = health.evaluate(facts)
    _print_status(stack, found, [] if isinstance(facts.fleet, Unavailable) else list(facts.fleet.load.workers), as_json)
    if isinstance(facts.redis, Unavailable):
        raise UnavailableError(facts.redis.reason)
    return FAILED if found.status == "failing" else 0


def _print_status(stack: embedded.StackStatus, found: health.HealthReport | None, workers: list[registry.Worker], as_json: bool) -> None:
    if as_json:
        shown = [worker.model_dump(mode="json") for worker in workers]
        click.echo(json.dumps({**stack.to_json(), "workers": shown, "health": found.model_dump() if found else None}))
        return
    if found:
        _show_health(found)
        click.echo()
    _show(stack, workers)


def _show_health(found: health.HealthReport) -> None:
    width = max(len(check.name) for check in found.checks)
    for check in found.checks:
        status = click.style(f"{check.status:8}", fg=COLOURS[check.status])
        click.echo(f"{status}  {check.name:{width}}  {text_format.clean(check.message)}")
        if check.action:
            click.echo(f"{'':10}{'':{width}}  → {text_format.clean(check.action)}")


def _show(stack: embedded.StackStatus, workers: list[registry.Worker]) -> None:
    kind = "kept until `submit down`" if stack.kept else "of a command under way"
    click.echo(f"{stack.home}: {f'a stack, {kind}' if stack.running else 'no running stack'}")
    for process in stack.processes:
        uptime = text_format.duration((time.time() - process.started_s) * 1000) if process.alive else "dead"
        click.echo(f"  {process.name:17}  pid {process.pid:<8}  {uptime:>12}  {', '.join(process.queues)}".rstrip())
    if stack.flower_url:
        click.echo(f"Flower: {stack.flower_url}")
    if stack.gateway_url:
        click.echo(f"gateway and run pages: {stack.gateway_url}")
    if workers:
        click.echo("workers:")
    for worker in workers:
        click.echo(
            f"  {worker.name:32}  pid {worker.pid:<8}  {worker.concurrency:>4} at once  {', '.join(worker.queues)}{_worker_notes(worker)}"
        )


def _worker_notes(worker: registry.Worker) -> str:
    metrics = f"  metrics: {worker.metrics_url}" if worker.metrics_url else ""
    off = abs(worker.clock_off_s) > registry.CLOCK_OFF_S
    return f"{metrics}  (its clock is {worker.clock_off_s:+.0f} s off Redis's)" if off else metrics
