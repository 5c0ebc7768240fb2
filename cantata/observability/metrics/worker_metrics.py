"""The metrics of a worker process: what it and its children count, on a port of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import Metric, multiprocess
from prometheus_client.registry import Collector

from cantata.errors import UnavailableError
from cantata.observability import metrics
from cantata.observability.metrics.counts import Counts, files, fold
from cantata.observability.metrics.http_server import MetricsServer
from cantata.observability.metrics.registries import page_of, registry
from cantata.observability.metrics.scrape_address import ScrapeAddress
from cantata.observability.metrics.worker_folder import Folder

BUDGETS = ("run", "tenant", "day")  # shown as 0 from the start: an alert sees the first refusal only as a rise

log = structlog.get_logger(__name__)

_merged: Any = multiprocess.MultiProcessCollector.merge  # it has no types


class WorkerMetrics:
    """Counts in this process, and serves what it and its forked children counted."""

    def __init__(self, scrape_address: ScrapeAddress, version: str) -> None:
        """Start. Raises UnavailableError if the scrape_address cannot be had, or no folder for what is counted."""
        try:
            self._folder = Folder()
            self._counts = Counts(self._folder.path)
        except OSError as error:
            raise UnavailableError(f"metrics need a little room for temporary files: {error}; name a folder with room in TMPDIR") from error
        try:
            self._server = MetricsServer(scrape_address, {"/metrics": page_of(registry(version, _Counted(self._folder.path)))})
        except BaseException:
            self._folder.remove()
            raise
        for budget in BUDGETS:
            self._counts.add("cantata_budget_refusals_total", (budget,), 0.0)
        metrics.set_counts(self._counts)
        self.url = self._server.url

    def child_started(self) -> None:
        """In a forked child: count on its own."""
        self._server.forget()
        metrics.set_counts(None)
        try:
            metrics.set_counts(Counts(self._folder.path))  # with a lock of its own: its parent's may have been held when it was forked
        except OSError as error:
            log.warning("not_counted", error=str(error), note="this process counts nothing; make room where temporary files are")

    def release(self) -> None:
        """Let another process show its metrics at this scrape_address."""
        self._server.close()

    def close(self) -> None:
        """Stop; what was counted is gone."""
        metrics.set_counts(None)
        self._counts.close()
        self._server.close()
        self._folder.remove()


class _Counted(Collector):
    """What was counted by this process, by its children, and by those of them that are gone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reading = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        with self._reading:
            with suppress(OSError):  # a full disk: what was not moved is read where it is
                fold(self._folder)
            return list(_merged([str(file) for file in files(self._folder)]))
