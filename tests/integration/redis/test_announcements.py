"""Announcements of results by a Redis that goes away and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from celery import Celery

from cantata.engine.dispatch.celery_app import make_app
from cantata_workers.process.process import Process
from cantata_workers.tools.celery_tasks.result_watcher import ResultWatcher
from tests.integration.redis.servers import Server, running, until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A Redis of its own: it is killed."""
    server = Server(tmp_path)
    with running(server):
        yield server


def _nothing(*_: Any) -> None:
    raise AssertionError("no task has ended")


def test_a_watcher_subscribes_again_when_its_backend_is_back(server: Server) -> None:
    url = f"redis://{server.place}/1"
    theirs = Celery("shop", broker="memory://", backend=url, set_as_current=False)
    theirs.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 0}}
    watcher = ResultWatcher(make_app(url), theirs, cast(Process, None), _nothing)  # the process only records outcomes
    watcher.start()
    try:
        until(lambda: server.redis.pubsub_numpat() == 1, "a subscription")

        server.kill()
        server.start()
        server.wait()

        until(lambda: server.redis.pubsub_numpat() == 1, "another subscription")
    finally:
        watcher.stop()
        theirs.close()
