"""What a worker process tells of itself while it serves and before it ends: logs of runs, and traces."""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import suppress
from io import TextIOWrapper
from typing import Any

from billiard.util import get_logger as billiard_logger
from celery import Celery, signals

import cantata
from cantata.observability import logs, traces
from cantata.state.runs.log_store import RunLogs

KILLED_S = 0.5  # what a process that is about to be killed may take to send its spans


def prepare(app: Celery) -> None:
    """Before any fork: have Celery leave logs and prints as they are, and import what its children will need."""
    app.conf.worker_redirect_stdouts = False
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a process may be killed with what a tool has printed
    logging.captureWarnings(True)
    signals.setup_logging.connect(_hear_the_pool, weak=False)
    traces.prepare()


def begin(redis_url: str, process: str, *, does_steps: bool) -> None:
    """Have what is logged for runs kept with them, and traces made, by this process."""
    logs.keep_lines(RunLogs(redis_url, process))
    traces.start(process, cantata.__version__, joins=does_steps)


def end() -> threading.Thread:
    """Write what was logged, and send what was traced; in a thread, to be waited for as long as there is time."""
    thread = threading.Thread(target=_end, name="last words", daemon=True)
    thread.start()
    return thread


def before_kill() -> None:
    """The same in a process that is about to be killed, whatever comes of it: it may lack the memory."""
    with suppress(Exception):
        logs.flush()
        traces.flush(KILLED_S)


def _end() -> None:
    logs.flush()
    traces.stop()


def _hear_the_pool(**_: Any) -> None:
    """Celery's pool keeps its log to itself, unless it is told otherwise."""
    pool = billiard_logger()
    pool.propagate = True
    pool.setLevel(logging.ERROR)
