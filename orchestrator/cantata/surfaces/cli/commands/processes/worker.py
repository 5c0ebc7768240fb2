"""`submit worker`: a worker process, or the parent of several."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from cantata.client.addresses import without_password
from cantata.config import loading
from cantata.errors import ConfigError, UnavailableError
from cantata.flows import webhooks
from cantata.operation import json_streams
from cantata.operation.embedded import stack_member
from cantata.operation.embedded.supervision import prefork
from cantata.operation.embedded.supervision.child import set_death_signal
from cantata.operation.metrics.scrape_address import port_after, scrape_address
from cantata.operation.worker_parts import worker_part
from cantata.settings import settings
from cantata.surfaces.cli.connect import find_service_url
from cantata.surfaces.cli.main import FAILED
from cantata.surfaces.cli.options import config_option, json_option, metrics_port_option
from cantata.text.suggestions import did_you_mean
from cantata.values import checked_name

HEARTBEAT_FILE = "CANTATA_HEARTBEAT_FILE"
BEAT_S, MAX_BEAT_S = 1.0, 6.0  # a process touches its file every 1 to 2 s
ANNOUNCED_S = 1.0  # for the line that says that all are ready, if they ended right after it

TASKS = "tasks"
WEBHOOKS = webhooks.QUEUE
STANDARD_QUEUES = ("coordinator", "agents", "tools")
DEDICATED_QUEUES = ("coordinator", "agents", TASKS, WEBHOOKS)
"""Queues with a process each; all others share one, whose child processes can be killed."""


@dataclass(frozen=True)
class WorkerProcess:
    """One worker process to start."""

    name: str
    queues: tuple[str, ...]
    command: list[str]


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE...]")
@click.option("--name", help="The name of the worker; made of queue and pid if absent.")
@click.option(
    "--concurrency", type=click.IntRange(1), metavar="N", help="The number of steps that it executes at once."
)
@click.option(
    "--app",
    "user_app",
    metavar="MODULE:APP",
    help="The Celery application of your project, whose tasks steps may call.",
)
@click.option("--lenient", is_flag=True, help="Be ready although not all code of the configuration can be imported.")
@metrics_port_option
@config_option
@json_option
def worker(
    queues: tuple[str, ...],
    name: str | None,
    concurrency: int | None,
    user_app: str | None,
    lenient: bool,
    metrics_port: int | None,
    config: str | None,
    as_json: bool,
) -> int:
    """Serve queues, here or on another machine, until stopped.

    Without a queue it serves coordinator, agents and tools. The queues are those at REDIS_URL, else in the Redis of your application, else
    of the stack in this folder.
    `coordinator` and `agents` get a process each; all others share one. Several processes serve their metrics at consecutive ports.

    A worker that cannot import what its queues need serves the rest and is not ready, so a roll-out stops at the first: its
    probe fails until the file is corrected. With --lenient it is ready.

    With --app or CANTATA_APP it serves the queue `tasks` too, in a process of its own, which sends your tasks to your workers.
    """
    if user_app:
        os.environ["CANTATA_APP"] = user_app
    if lenient:
        os.environ["CANTATA_LENIENT"] = "1"
    if settings().app:
        queues = (*(queues or STANDARD_QUEUES), TASKS)
    url = find_service_url()
    if url is None:
        raise UnavailableError(
            "a worker needs a Redis: set REDIS_URL, or start a stack in this folder with `submit up`"
        )
    os.environ["REDIS_URL"] = url
    if config:
        os.environ["CANTATA_CONFIG"] = str(Path(config).absolute())
    for warning in unused_queues(queues):
        json_streams.report("queue_unused", f"submit: {warning}", {"warning": warning}, level="warning")
    shown = scrape_address(metrics_port)
    workers = workers_for(queues or STANDARD_QUEUES, name, concurrency, None if shown is None else shown.port)
    if as_json:
        click.echo(
            json.dumps(
                {"pid": os.getpid(), "workers": [{"name": each.name, "queues": each.queues} for each in workers]}
            )
        )
    elif sys.stderr.isatty():
        served = ", ".join(queue for each in workers for queue in each.queues)
        processes = f"{len(workers)} processes" if len(workers) > 1 else "a process"
        click.echo(f"submit: starting {processes} for {served}; runs are in {without_password(url)}", err=True)
    if len(workers) == 1:
        os.execv(workers[0].command[0], workers[0].command)
    app = f" for {settings().app}" if settings().app else ""
    served = ", ".join(queue for each in workers for queue in each.queues)
    return supervise(workers, f"serving {served}{app}; runs are in {without_password(url)}")


def unused_queues(queues: Sequence[str]) -> list[str]:
    """Return a warning for each queue that nothing in the configuration uses, if there is one; it may be of another project's runs."""
    own = [queue for queue in queues if queue not in (*STANDARD_QUEUES, TASKS, WEBHOOKS)]
    if not own:
        return []
    try:
        if (path := loading.find()) is None:
            return []
        definitions = loading.load(path)
    except (ConfigError, OSError):  # runs bring their definitions, so a worker needs none
        return []
    used = {*STANDARD_QUEUES, TASKS, *(tool.step_queue for tool in definitions.tools.values())}
    used |= {agent.queue for agent in definitions.agents.values()} | {
        flow.queue for flow in definitions.workflows.values()
    }
    unused = {queue: did_you_mean(queue, sorted(used)) for queue in own if queue not in used}
    return [
        f"no tool, agent or workflow of {path} uses queue {queue!r}{meant}"
        for queue, meant in unused.items()
        if meant or not definitions.workflows  # their code may name queues
    ]


def workers_for(
    queues: Sequence[str], name: str | None, concurrency: int | None, metrics_port: int | None = None
) -> list[WorkerProcess]:
    """Return a process for each kind of pool that the queues need. Raises ConfigError for an invalid name."""
    try:
        wanted = tuple(checked_name("queue", queue) for queue in dict.fromkeys(queues))
        name = checked_name("worker", name or f"worker-{os.getpid()}")  # the pid keeps two workers on one machine apart
    except ValueError as error:
        raise ConfigError(str(error)) from error
    shared = tuple(queue for queue in wanted if queue not in DEDICATED_QUEUES)
    groups = [*((queue,) for queue in wanted if queue in DEDICATED_QUEUES), *([shared] if shared else [])]
    names = [name] if len(groups) == 1 else [f"{name}-{group[0]}" for group in groups]
    ports = [None if metrics_port is None else port_after(metrics_port, number) for number in range(len(groups))]
    return [_worker(*each, concurrency) for each in zip(names, groups, ports, strict=True)]


def _worker(name: str, queues: tuple[str, ...], port: int | None, concurrency: int | None) -> WorkerProcess:
    # -P keeps the user's folder off the start of the path, where a `queue.py` would shadow Python's.
    command = [sys.executable, "-P", "-m", "cantata_workers", *queues, "--name", name]
    command += [] if port is None else ["--metrics-port", str(port)]
    return WorkerProcess(
        name, queues, command if concurrency is None else [*command, "--concurrency", str(concurrency)]
    )


def supervise(workers: Sequence[WorkerProcess], when_ready: str = "") -> int:
    """Start the workers, forward signals to them, wait until all have ended, and return 0 if all exit statuses are 0.

    `when_ready` is printed as soon as all of them serve.

    If one ends without a signal, the others are stopped too. Otherwise its queues would have no worker, unnoticed by our parent.
    """
    if prefork.can_fork():
        worker_part("prefork_imports").common()
    # In sessions of their own: a Ctrl-C at the terminal reaches them once, through us. A second one stops them at once.
    end_with_us = partial(set_death_signal, os.getpid(), signal.SIGTERM)  # also if we are killed
    reports, report = os.pipe()
    beats = (
        Path(tempfile.mkdtemp(prefix="cantata-beats-"))
        if settings().heartbeat_file or stack_member.has_systemd()
        else None
    )
    children: dict[str, prefork.ForkedProcess | subprocess.Popen[bytes]] = {}
    for each in workers:
        environment = {
            **os.environ,
            stack_member.READY_FD: str(report),
            **({stack_member.QUIET: "1"} if children else {}),
        }
        if beats:
            environment |= {HEARTBEAT_FILE: str(beats / each.name), stack_member.NOTIFY_SOCKET: ""}
        children[each.name] = prefork.start(
            each.command, environment=environment, streams=(0, 1, 2), passed=[report], prepare=end_with_us
        )
    os.close(report)
    announcing = threading.Thread(target=_await_ready, args=(reports, len(workers), when_ready), daemon=True)
    announcing.start()  # no fork follows
    if beats:
        files = [beats / each.name for each in workers]
        threading.Thread(target=_keep_reporting, args=(files, settings().heartbeat_file), daemon=True).start()
    running = {child.pid: name for name, child in children.items()}
    is_stopping = failed = False

    def forward(number: int, _frame: object) -> None:
        nonlocal is_stopping
        is_stopping = True
        for pid in list(running):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    while running:
        pid, waited = os.wait()
        name, status = running.pop(pid, None), os.waitstatus_to_exitcode(waited)
        if name is None:
            continue
        children[name].returncode = status
        if status or not is_stopping:
            failed = True
            text = f"submit: worker {name} ended with {status}" + ("" if is_stopping else "; stopping the others")
            json_streams.report("worker_ended", text, {"name": name, "status": status}, level="error")
        if not is_stopping:
            forward(signal.SIGTERM, None)
    announcing.join(ANNOUNCED_S)  # it ends with the last of them, and says nothing after this command
    if beats:
        shutil.rmtree(beats, ignore_errors=True)
    return FAILED if failed else 0


def _keep_reporting(beats: Sequence[Path], file: Path | None) -> None:
    """Touch the heartbeat file, and tell systemd, while all processes of this command touch theirs."""
    is_notified = False
    while True:
        time.sleep(BEAT_S)
        if not all(_is_beating(each) for each in beats):
            continue
        with suppress(OSError):  # such as a full disk: it may have room at the next beat
            if file is not None:
                file.touch()
            if not is_notified:
                stack_member.notify_systemd("READY=1")
                is_notified = True


def _is_beating(file: Path) -> bool:
    try:
        return time.time() - file.stat().st_mtime < MAX_BEAT_S
    except FileNotFoundError:
        return False


def _await_ready(reports: int, count: int, message: str) -> None:
    """Print a message when so many processes have reported that they serve; none if one ends before."""
    with os.fdopen(reports, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            count -= line.strip() == stack_member.SERVING
            if not count and message:
                json_streams.report("workers_ready", f"submit: {message}", {"note": message})
                message = ""
