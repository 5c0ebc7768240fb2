"""Log lines of runs and traces of a worker process: set up before it serves, flushed before it ends."""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, TextIO, cast

from billiard.util import get_logger as billiard_logger
from celery import Celery, signals

import cantata
from cantata.ledger.runs.log_store import RunLogs
from cantata.operation import logs, traces
from cantata.operation.json_streams import JsonStream
from cantata.operation.logs.lines import PrintedText

KILL_FLUSH_S = 0.5  # that a process about to be killed may take to send its spans


def prepare(app: Celery) -> None:
    """Prepare logs and traces before any fork: keep Celery from redirecting them, and import what its children need."""
    app.conf.worker_redirect_stdouts = False
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a process may be killed with what a tool has printed
    if isinstance(sys.stdout, TextIOWrapper | JsonStream):
        sys.stdout = PrintedText(cast(TextIO, sys.stdout))
    logging.captureWarnings(True)
    signals.setup_logging.connect(_propagate_pool_log, weak=False)
    traces.prepare()


def begin(redis_url: str, process: str, *, does_steps: bool) -> None:
    """Start to store the log lines of runs and to make traces in this process."""
    logs.set_sink(RunLogs(redis_url, process))
    traces.start(process, cantata.__version__, is_global=does_steps)


def flush_in_thread() -> threading.Thread:
    """Write the log lines and send the spans that are left, in a thread; return it for the caller to join with a time-out."""
    thread = threading.Thread(target=_flush_and_stop, name="shutdown flush", daemon=True)
    thread.start()
    return thread


def flush_before_kill() -> None:
    """Write log lines and send spans in a process about to be killed; ignore errors, since it may lack the memory."""
    with suppress(Exception):
        logs.flush()
        traces.flush(KILL_FLUSH_S)


def _flush_and_stop() -> None:
    logs.flush()
    traces.stop()


def _propagate_pool_log(**_: Any) -> None:
    """Propagate the log of billiard's pool, which it does not do by default."""
    pool = billiard_logger()
    pool.propagate = True
    pool.setLevel(logging.ERROR)
