"""Log lines of runs: written by workers with a short delay, readable from any machine."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, cast

import structlog
from pydantic import ValidationError
from redis import Redis

from cantata.errors import CantataError, UnknownRunError
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis import clock
from cantata.ledger.redis.connection import RedisFailure, connect
from cantata.ledger.redis.keys import run_key
from cantata.ledger.redis.pieces import Entry, streams_in
from cantata.operation import logs
from cantata.operation.logs.lines import LogLine, encode

MAX_LINES = 1000  # of one run; the oldest go first
MAX_BYTES = 200_000
DELAY_S = 0.15  # how long a line may wait for others; a killed process loses lines of this age
FLUSH_S = 1.0  # how long a process that ends waits for its last lines
PATIENCE_S = 1.0  # while Redis is unavailable; then lines are lost
MAX_BUFFERED = 5000  # lines that wait in a process; the oldest go first
BATCH = 200  # lines of a run in one call
PAGE = 500
BLOCK_MS = 500
SETTLE_S = 0.5  # after the end of a run: its last lines may not be written yet

log = structlog.get_logger(__name__)


class RunLogs:
    """Writes the lines of runs, from a thread that starts with the first line. One for each process."""

    def __init__(self, redis_url: str, worker: str) -> None:
        self._ledger = Ledger(connect(redis_url), patience_s=PATIENCE_S)
        self._worker = worker
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque(maxlen=MAX_BUFFERED)
        self._come = threading.Event()
        self._hurry = threading.Event()
        self._written = threading.Condition()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_writing = False
        self._lost = 0

    def add(self, run_id: str, line: dict[str, Any]) -> None:
        """Buffer a line; it is in Redis within a fifth of a second."""
        if len(self._waiting) == MAX_BUFFERED:
            self._lost += 1
        self._waiting.append((run_id, line))
        if not self._come.is_set():
            self._come.set()
        if self._thread is None:
            self._start()

    def flush_soon(self) -> None:
        """Write the buffered lines soon, without waiting for more."""
        if self._waiting:
            self._hurry.set()

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Write the buffered lines now, and wait for it."""
        self.flush_soon()
        with self._written:
            self._written.wait_for(lambda: not (self._waiting or self._is_writing), timeout_s)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_on, name="run-logs", daemon=True)
                self._thread.start()

    def _write_on(self) -> None:
        while True:
            self._come.wait()
            self._hurry.wait(DELAY_S)
            self._come.clear()
            self._hurry.clear()
            try:
                self._write()
            except (CantataError, RedisFailure, OSError) as error:
                log.warning("run_logs_lost", error=str(error), note="the runs are not harmed")
            except Exception:  # the edge of a thread: without it no line would be written any more
                log.exception("run_logs_crashed")
            finally:
                with self._written:
                    self._is_writing = False
                    self._written.notify_all()

    def _write(self) -> None:
        self._is_writing = True
        by_run: dict[str, list[str]] = {}
        while self._waiting:
            run_id, line = self._waiting.popleft()
            by_run.setdefault(run_id, []).append(self._text(line))
        lost, self._lost = self._lost, 0
        if lost:
            log.warning(
                "run_logs_lost", lines=lost, note="more was logged than could be written; the runs are not harmed"
            )
        for run_id, texts in by_run.items():
            for start in range(0, len(texts), BATCH):
                self._ledger.runs.append_log(run_id, texts[start : start + BATCH], most=MAX_LINES, most_bytes=MAX_BYTES)

    def _text(self, line: dict[str, Any]) -> str:
        line.setdefault("worker", self._worker)
        line["at"] = round(line["at"] - clock.off_s(), 3)
        return encode(line, logs.secrets())


class Logs:
    """Reads the log lines of a run."""

    def __init__(self, redis: Redis, run_id: str) -> None:
        self._redis = redis
        self._run_id = run_id
        self._key = f"{run_key(redis, run_id)}:logs"

    def read(self, *, after: str = "", most: int = MAX_LINES) -> list[LogLine]:
        """Return the lines after an id, in the order of their times. Waits for the last lines of a run that has just ended."""
        self._settle()
        entries = cast("list[Entry]", self._redis.xrange(self._key, min=f"({after}" if after else "-", count=most))
        return _in_order(entries)

    def dropped(self) -> int:
        """Return how many older lines were dropped."""
        return int(cast("str | None", self._redis.hget(run_key(self._redis, self._run_id), "log_dropped")) or 0)

    def follow(self) -> Iterator[LogLine]:
        """Yield the lines as they arrive, until the run is over. Raises UnknownRunError if it is gone."""
        after = "0-0"
        while True:
            is_over = self._is_over()
            if is_over:
                self._settle()
            reply = self._redis.xread({self._key: after}, count=PAGE, block=None if is_over else BLOCK_MS)
            entries = streams_in(reply).get(self._key, [])
            if entries:
                after = entries[-1][0]
                yield from _in_order(entries)
            elif is_over:
                return

    def _is_over(self) -> bool:
        status = self._redis.hget(run_key(self._redis, self._run_id), "status")
        if status is None:
            raise UnknownRunError.of(self._run_id)
        return status not in ("accepted", "running")

    def _settle(self) -> None:
        closed_at = self._redis.hget(run_key(self._redis, self._run_id), "closed_at")
        if closed_at is not None:
            time.sleep(min(SETTLE_S, max(0.0, int(cast(str, closed_at)) / 1000 + SETTLE_S - clock.now())))


def at_least(line: LogLine, level: str) -> bool:
    """Return whether a line is of this level or above."""
    known = logging.getLevelNamesMapping()
    return known.get(line.level.upper(), 0) >= known.get(level.upper(), 0)


def of_step(line: LogLine, step: str) -> bool:
    """Return whether a line is of a step, or of one that it added."""
    return line.step is not None and (line.step == step or line.step.startswith(f"{step}/"))


def _in_order(entries: Sequence[Entry]) -> list[LogLine]:
    """Return the lines sorted by time, since each process writes its own with a delay; those of one process stay in order."""
    newest: dict[
        str | None, float
    ] = {}  # a process may synchronize its clock between two lines, and the second then seems older
    placed: list[tuple[float, LogLine]] = []
    for entry_id, fields in entries:
        if line := _line(entry_id, fields["d"]):
            newest[line.worker] = max(line.at, newest.get(line.worker, line.at))
            placed.append((newest[line.worker], line))
    return [line for _, line in sorted(placed, key=lambda each: each[0])]


def _line(entry_id: str, text: str) -> LogLine | None:
    try:
        return LogLine.model_validate({**json.loads(text), "id": entry_id}, extra="ignore")
    except (ValueError, ValidationError):  # of another version
        return None
