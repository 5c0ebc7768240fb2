"""`submit workers` and `submit queues`: workers that take no work, and queues that are paused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import click

from cantata.client.fleet import pause_warning
from cantata.client.records import Worker
from cantata.settings import settings
from cantata.surfaces.cli.connect import connect_to_kept
from cantata.surfaces.cli.main import FAILED
from cantata.surfaces.cli.options import author_option, json_option
from cantata.text import text_format

T = TypeVar("T")

HEARD_S = 12.0  # workers of a large fleet announce themselves every 5 s
LOOK_S = 0.2

name_argument = click.argument("name")
no_wait_option = click.option("--no-wait", is_flag=True, help="Do not wait until workers have followed.")


@click.group()
def workers() -> None:
    """List workers, let one take no more work, and let it take work again."""


@workers.command("list")
@json_option
def list_workers(as_json: bool) -> int:
    """List the workers that are alive, with what they serve, and those that are drained."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        found = connection.client.fleet.workers()
    if as_json:
        click.echo(json.dumps([worker.model_dump(mode="json") for worker in found]))
        return 0
    if not found:
        click.echo("no worker is running", err=True)
        return 0
    rows = [("worker", "state", "queues", "at once", "version", "note")]
    rows += [
        (worker.name, worker.state, ", ".join(worker.queues), str(worker.concurrency), worker.version, _note(worker))
        for worker in found
    ]
    click.echo("\n".join(text_format.columns(rows)))
    return 0


@workers.command()
@name_argument
@click.option("--exit", "exits", is_flag=True, help="End its process then. Whatever restarts it starts it undrained.")
@no_wait_option
@author_option
@json_option
def drain(name: str, exits: bool, no_wait: bool, by: str, as_json: bool) -> int:
    """Let a worker take no more work: it finishes its steps, and releases what takes longer than CANTATA_DRAIN_S.

    NAME is a worker of `submit workers list`, or the beginning of its name that no other has. What it has received and not begun goes back
    to its queue at once. The worker stays, drained, until it is restarted or `submit workers undrain` lets it work again.
    """
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        fleet = connection.client.fleet
        worker = fleet.drain(name, by=by, exits=exits)
        last = (
            worker
            if no_wait
            else _wait(
                lambda: _named(fleet.workers(), worker),
                lambda now: now is None or (now.state == "drained" and not exits),
                HEARD_S + settings().drain_s,
            )
        )
    if as_json:
        state = "ended" if last is None else last.state
        click.echo(json.dumps({"worker": worker.name, "state": state, "exits": exits}))
    elif no_wait:
        click.echo(f"worker {worker.name} is told to drain")
    elif last is None:
        click.echo(f"worker {worker.name} has ended")
    elif last.state == "drained":
        click.echo(f"worker {worker.name} is drained; `submit workers undrain {worker.name}` lets it work again")
    elif last.state == "draining":
        note = "it takes no new work; what it still executes was released, and runs elsewhere"
        click.echo(f"worker {worker.name} is draining: {note}", err=True)
    else:
        note = f"it has not followed within {HEARD_S + settings().drain_s:.0f} s; is it of an older version?"
        click.echo(f"worker {worker.name} is told to drain, but {note}", err=True)
    return 0 if no_wait or last is None or last.state != "serving" else FAILED


@workers.command()
@name_argument
@author_option
@json_option
def undrain(name: str, by: str, as_json: bool) -> int:
    """Let a drained worker take work again."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        fleet = connection.client.fleet
        worker = fleet.undrain(name, by=by)
        last = _wait(
            lambda: _named(fleet.workers(), worker), lambda now: now is None or now.state == "serving", HEARD_S
        )
    if as_json:
        click.echo(json.dumps({"worker": worker.name, "state": "ended" if last is None else last.state}))
    else:
        click.echo(f"worker {worker.name} {'has ended' if last is None else 'takes work again'}")
    return 0


@click.group()
def queues() -> None:
    """List queues with what waits in them, pause one, and resume it."""


@queues.command("list")
@json_option
def list_queues(as_json: bool) -> int:
    """List queues: what waits, what is under way, who serves them, and which are paused."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        found = connection.client.fleet.queues()
    if as_json:
        click.echo(json.dumps({name: load.model_dump(mode="json") for name, load in found.items()}))
        return 0
    rows = [("queue", "waiting", "oldest", "under way", "workers", "state")]
    for name, load in found.items():
        oldest = "" if load.oldest_wait_s is None else text_format.duration(load.oldest_wait_s * 1000)
        state = load.paused.describe().removeprefix("is ") if load.paused else "" if load.workers else "no worker"
        rows.append((name, f"{load.ready:,}", oldest, f"{load.leased:,} of {load.slots:,}", f"{load.workers:,}", state))
    click.echo("\n".join(text_format.columns(rows)))
    return 0


@queues.command()
@name_argument
@no_wait_option
@author_option
@json_option
def pause(name: str, no_wait: bool, by: str, as_json: bool) -> int:
    """Let no worker take work from a queue until it is resumed, whatever restarts.

    What runs ends as usual, what is submitted waits. Deadlines of steps and runs keep running. Workers follow within two seconds, in a
    fleet of hundreds within five.
    """
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        fleet = connection.client.fleet
        pause = fleet.pause_queue(name, by=by)
        late = [] if no_wait else _wait(lambda: _not_yet(fleet.workers(), name, held=True), _is_empty, HEARD_S)
        warning = pause_warning(name)
    if as_json:
        click.echo(json.dumps({**pause.model_dump(mode="json"), "warning": warning, "late": late}))
        return FAILED if late else 0
    click.echo(f"queue {name!r} {pause.describe()}; `submit queues resume {name}` ends that")
    if warning:
        click.echo(f"submit: {warning}", err=True)
    if late:
        click.echo(f"submit: not followed so far by {', '.join(late)}; are they of an older version?", err=True)
    return FAILED if late else 0


@queues.command()
@name_argument
@no_wait_option
@author_option
@json_option
def resume(name: str, no_wait: bool, by: str, as_json: bool) -> int:
    """Let workers take work from a paused queue again."""
    with connect_to_kept(workers=False, as_json=as_json) as connection:
        fleet = connection.client.fleet
        fleet.resume_queue(name, by=by)
        if not no_wait:
            _wait(lambda: _not_yet(fleet.workers(), name, held=False), _is_empty, HEARD_S)
    click.echo(json.dumps({"queue": name, "paused": False}) if as_json else f"queue {name!r} is served again")
    return 0


def _note(worker: Worker) -> str:
    if worker.unreadable:
        return worker.unreadable
    if worker.state != "serving":
        by = f" by {worker.drained_by}" if worker.drained_by else ""
        return f"since {text_format.utc_minute(worker.drained_since or 0)}{by}"
    paused = [queue for queue in worker.queues if queue in worker.held]
    return f"paused: {', '.join(paused)}" if paused else ""


def _named(found: Sequence[Worker], worker: Worker) -> Worker | None:
    """Return the process of a worker; None if it has ended, though another may have its name."""
    same = (each for each in found if (each.name, each.pid) == (worker.name, worker.pid))
    return next(same, None)


def _not_yet(found: Sequence[Worker], queue: str, *, held: bool) -> list[str]:
    """Return the workers that have not followed the pause of a queue, or its end."""
    return [each.name for each in found if each.serving and (queue in each.held) != held]


def _is_empty(found: Sequence[str]) -> bool:
    return not found


def _wait(read: Callable[[], T], is_done: Callable[[T], bool], most_s: float) -> T:
    """Read until something is so, or `most_s` have passed; return what was read last."""
    give_up = time.monotonic() + most_s
    while not is_done(found := read()) and time.monotonic() < give_up:
        time.sleep(LOOK_S)
    return found
