"""Metrics of a worker process: counts of it and its children, in a folder and on a port of their own."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import Metric, multiprocess
from prometheus_client.registry import Collector

from cantata.errors import UnavailableError
from cantata.operation import metrics
from cantata.operation.metrics.counts import Counts, files, fold
from cantata.operation.metrics.http_server import MetricsServer, make_handler, registry
from cantata.operation.metrics.scrape_address import ScrapeAddress

PREFIX = "cantata-metrics-"
LOCK = "lock"
BUDGETS = ("run", "tenant", "day")  # exported as 0 from the start: an alert needs a rise to see the first refusal

log = structlog.get_logger(__name__)

_merged: Any = multiprocess.MultiProcessCollector.merge  # it has no types


class CountsFolder:
    """A private folder. Its creator and its children share a lock on it until the last of them ends."""

    def __init__(self) -> None:
        _remove_stale()
        hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
        self._lock = os.open(hidden / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = hidden.rename(hidden.with_name(hidden.name[1:]))  # visible to others only now that it is locked
        self._pid = os.getpid()

    def remove(self) -> None:
        """Remove it; in a child of its creator nothing happens."""
        if os.getpid() == self._pid:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)


def _remove_stale() -> None:
    """Remove our folders whose processes have all ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


class WorkerMetrics:
    """Records in this process, and serves the counts of it and its forked children."""

    def __init__(self, address: ScrapeAddress, version: str, *, tenants: int = 0) -> None:
        """Start, with labels for so many tenants. Raises UnavailableError if the address or the folder of the counts is not available."""
        try:
            self._folder = CountsFolder()
            self._tenants = tenants
            self._counts = Counts(self._folder.path, tenants=tenants)
        except OSError as error:
            raise UnavailableError(
                f"temporary files for metrics cannot be created: {error}; name a folder with space in TMPDIR"
            ) from error
        try:
            self._server = MetricsServer(
                address, {"/metrics": make_handler(registry(version, _MergedCounts(self._folder.path)))}
            )
        except BaseException:
            self._folder.remove()
            raise
        for budget in BUDGETS:
            self._counts.add("cantata_budget_refusals_total", (budget,), 0.0)
        metrics.set_counts(self._counts)
        self.url = self._server.url

    def child_started(self) -> None:
        """Record separately from the parent; call this in a forked child."""
        self._server.close_inherited()
        metrics.set_counts(None)
        try:
            metrics.set_counts(
                Counts(self._folder.path, tenants=self._tenants)
            )  # with a lock of its own: its parent's may have been locked at the fork
        except OSError as error:
            log.warning(
                "metrics_not_recorded",
                error=str(error),
                note="this process records none; free space for temporary files",
            )

    def release(self) -> None:
        """Free the address for another process."""
        self._server.close()

    def close(self) -> None:
        """Stop and delete the counts."""
        metrics.set_counts(None)
        self._counts.close()
        self._server.close()
        self._folder.remove()


class _MergedCounts(Collector):
    """Counts of this process and its children, including those that have ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reading = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        with self._reading:
            with suppress(OSError):  # a full disk: counts that were not merged are read where they are
                fold(self._folder)
            return list(_merged([str(file) for file in files(self._folder)]))
