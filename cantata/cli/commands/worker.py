"""`submit worker`: becomes a worker process, or the parent of several."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from cantata.cli.connect import find_service_url
from cantata.cli.main import FAILED
from cantata.cli.options import as_json, configured, metrics_port
from cantata.embedded.supervision import prefork
from cantata.errors import ConfigError, UnavailableError
from cantata.models.constraints import checked_name
from cantata.observability.metrics.scrape_address import port_after, scrape_address

OWN_PROCESS = ("coordinator", "agents")
"""Queues with a process of their own; all others share one, whose children can be killed."""


@dataclass(frozen=True)
class WorkerProcess:
    """One worker process to start."""

    name: str
    queues: tuple[str, ...]
    command: list[str]


@click.command()
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@click.option("--name", help="What to call it; made of queue and pid if absent.")
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="Steps it does at once.")
@metrics_port
@configured
@as_json
def worker(
    queues: tuple[str, ...], name: str | None, concurrency: int | None, metrics_port: int | None, config: str | None, as_json: bool
) -> int:
    """Serve queues, here or on another machine, until told to stop.

    The queues are those on REDIS_URL, else of the stack in this folder. `coordinator` and `agents` get a process each, all others
    share one. Several show their metrics on ports that follow each other.
    """
    url = find_service_url()
    if url is None:
        raise UnavailableError("a worker needs to know its Redis: set REDIS_URL, or start a stack in this folder with `submit up`")
    os.environ["REDIS_URL"] = url
    if config:
        os.environ["CANTATA_CONFIG"] = str(Path(config).absolute())
    shown = scrape_address(metrics_port)
    workers = workers_for(queues, name, concurrency, None if shown is None else shown.port)
    if as_json:
        click.echo(json.dumps({"pid": os.getpid(), "workers": [{"name": each.name, "queues": each.queues} for each in workers]}))
    if len(workers) == 1:
        os.execv(workers[0].command[0], workers[0].command)
    return supervise(workers)


def workers_for(queues: Sequence[str], name: str | None, concurrency: int | None, metrics_port: int | None = None) -> list[WorkerProcess]:
    """One for each kind of pool that the queues need. Raises ConfigError for a name that cannot be one."""
    try:
        wanted = tuple(checked_name("queue", queue) for queue in dict.fromkeys(queues))
        name = checked_name("worker", name or f"worker-{os.getpid()}")  # with the pid: two of one name on a machine would be taken for one
    except ValueError as error:
        raise ConfigError(str(error)) from error
    shared = tuple(queue for queue in wanted if queue not in OWN_PROCESS)
    groups = [*((queue,) for queue in wanted if queue in OWN_PROCESS), *([shared] if shared else [])]
    names = [name] if len(groups) == 1 else [f"{name}-{group[0]}" for group in groups]
    ports = [None if metrics_port is None else port_after(metrics_port, number) for number in range(len(groups))]
    return [_worker(*each, concurrency) for each in zip(names, groups, ports, strict=True)]


def _worker(name: str, queues: tuple[str, ...], port: int | None, concurrency: int | None) -> WorkerProcess:
    # -P: not the user's folder first on the path, where a `queue.py` would stand in for Python's.
    command = [sys.executable, "-P", "-m", "cantata.workers", *queues, "--name", name]
    command += [] if port is None else ["--metrics-port", str(port)]
    return WorkerProcess(name, queues, command if concurrency is None else [*command, "--concurrency", str(concurrency)])


def supervise(workers: Sequence[WorkerProcess]) -> int:
    """Start the workers, hand on what asks them to end, and wait until all have ended; the exit status is 0 if theirs were.

    If one ends unasked, the others are told to end too: its queues would have no worker, and whoever started us would see all well.
    """
    if prefork.can_fork():
        importlib.import_module("cantata.workers.code.prefork_imports").common()  # by name: what is imported flows down
    # In sessions of their own: a Ctrl-C at the terminal reaches them once, through us. The second one means: at once.
    children = {each.name: prefork.start(each.command, environment=os.environ, streams=(0, 1, 2)) for each in workers}
    running = {child.pid: name for name, child in children.items()}
    was_asked = failed = False

    def hand_on(number: int, _frame: object) -> None:
        nonlocal was_asked
        was_asked = True
        for pid in list(running):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    while running:
        pid, waited = os.wait()
        name, status = running.pop(pid, None), os.waitstatus_to_exitcode(waited)
        if name is None:
            continue
        children[name].returncode = status
        if status or not was_asked:
            failed = True
            click.echo(f"submit: worker {name} ended with {status}" + ("" if was_asked else "; the others are told to end"), err=True)
        if not was_asked:
            hand_on(signal.SIGTERM, None)
    return FAILED if failed else 0
