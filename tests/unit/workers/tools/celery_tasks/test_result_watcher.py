"""The watcher of the user's tasks, without its threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from celery import Celery

from cantata.engine.dispatch.celery_app import make_app
from cantata.errors import UnavailableError
from cantata_workers.tools.celery_tasks import result_watcher
from cantata_workers.tools.celery_tasks.result_watcher import ResultWatcher
from cantata_workers.tools.celery_tasks.task_results import UNREADABLE

NOWHERE = "redis://127.0.0.1:1/0"


def test_results_that_cannot_be_asked_for_are_unavailable_and_no_failure_of_the_task() -> None:
    shop = Celery("shop", broker=NOWHERE, backend=NOWHERE, set_as_current=False)
    watcher = ResultWatcher(make_app(NOWHERE), shop, cast(Any, None), print)

    with pytest.raises(UnavailableError, match="the results of shop cannot be read"):
        watcher.read(["cantata-1"])


def test_without_a_backend_there_are_no_results() -> None:
    watcher = ResultWatcher(
        make_app(NOWHERE), Celery("shop", broker=NOWHERE, set_as_current=False), cast(Any, None), print
    )

    assert watcher.read(["cantata-1"]) == {}


def test_a_result_that_is_being_written_is_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Celery("shop", broker=NOWHERE, backend=f"file://{tmp_path}", set_as_current=False)
    watcher = ResultWatcher(make_app(NOWHERE), shop, cast(Any, None), print)
    backend: Any = shop.backend
    backend.store_result("cantata-1", "done", "SUCCESS")
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()

    file.write_bytes(whole[:-5])
    assert watcher.read(["cantata-1"]) == {}
    file.write_bytes(whole)
    assert watcher.read(["cantata-1"])["cantata-1"].value == "done"

    file.write_bytes(whole[:-5])
    monkeypatch.setattr(result_watcher, "UNREADABLE_S", 0.0)
    assert watcher.read(["cantata-1"])["cantata-1"].error_type == UNREADABLE, "it is damaged"
