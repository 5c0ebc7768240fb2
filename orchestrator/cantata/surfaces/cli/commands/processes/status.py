"""`submit status`: the health of a deployment, its processes and workers."""

from __future__ import annotations

import json
import os
import time

import click

from cantata import __version__
from cantata.client.records import CLOCK_OFF_S, Worker
from cantata.errors import UnavailableError
from cantata.operation import embedded
from cantata.operation.health import HealthReport, evaluate, gather
from cantata.operation.health.facts import Unavailable
from cantata.settings import settings
from cantata.surfaces.cli.connect import redis_of_user_app
from cantata.surfaces.cli.main import FAILED
from cantata.surfaces.cli.options import json_option
from cantata.surfaces.cli.views.check_lines import lines_of
from cantata.text import text_format


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
        raise UnavailableError(
            "nothing to check: neither REDIS_URL nor CANTATA_APP is set, and there is no stack of `submit up` here; "
            "start one, or check this machine with `submit doctor`"
        )
    own = stack if stack.url == url else None
    gateway, flower = gateway or (own.gateway_url if own else None), flower or (own.flower_url if own else None)
    facts = gather(
        url, version=__version__, broker_url=settings().broker_url, stack=own, gateway_url=gateway, flower_url=flower
    )
    found = evaluate(facts)
    _print_status(stack, found, [] if isinstance(facts.fleet, Unavailable) else list(facts.fleet.load.workers), as_json)
    if isinstance(facts.redis, Unavailable):
        raise UnavailableError(facts.redis.reason)
    return FAILED if found.status == "failing" else 0


def _print_status(
    stack: embedded.StackStatus, found: HealthReport | None, workers: list[Worker], as_json: bool
) -> None:
    if as_json:
        shown = [worker.model_dump(mode="json") for worker in workers]
        click.echo(json.dumps({**stack.to_json(), "workers": shown, "health": found.model_dump() if found else None}))
        return
    if found:
        _show_health(found)
        click.echo()
    _show(stack, workers, has_other_redis=found is not None and not stack.kept)


def _show_health(found: HealthReport) -> None:
    width = max(len(check.name) for check in found.checks)
    for check in found.checks:
        click.echo("\n".join(lines_of(check, width)))


def _show(stack: embedded.StackStatus, workers: list[Worker], *, has_other_redis: bool) -> None:
    kind = "kept until `submit down`" if stack.kept else "of a command under way"
    if stack.running or not has_other_redis:
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
        if worker.unreadable:
            click.echo(f"  {worker.name:32}  {worker.unreadable}")
            continue
        click.echo(
            f"  {worker.name:32}  pid {worker.pid:<8}  {worker.concurrency:>4} at once  {', '.join(worker.queues)}{_worker_notes(worker)}"
        )


def _worker_notes(worker: Worker) -> str:
    metrics = f"  metrics: {worker.metrics_url}" if worker.metrics_url else ""
    if worker.state != "serving":
        metrics += f"  ({worker.state})"
    off = abs(worker.clock_off_s) > CLOCK_OFF_S
    return f"{metrics}  (its clock is {worker.clock_off_s:+.0f} s off Redis's)" if off else metrics
