"""The thread that records steps as dispatched."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

from celery import Celery

from cantata.dispatch.celery_app import make_app
from cantata.models.graph import Outcome, Spec
from cantata.state.ledger.records import AttemptRecord, Begun
from cantata.workers.celery_tasks.result_watcher import ResultWatcher, _Watched

NOWHERE = "redis://127.0.0.1:1/0"


def watcher_of(commit: Any) -> ResultWatcher:
    shop = Celery("shop", broker=NOWHERE, backend=NOWHERE, set_as_current=False)
    process = SimpleNamespace(ledger=SimpleNamespace(steps=SimpleNamespace(commit=commit)))
    watcher = ResultWatcher(make_app(NOWHERE), shop, cast(Any, process), print)
    watcher._dispatcher.start()
    return watcher


def dispatch(watcher: ResultWatcher, step_id: str) -> None:
    begun = Begun("run", step_id, 1, "me~1", Spec(kind="task"), None, 0, {}, "")
    call = watcher.call(begun, "task")
    now = time.monotonic()
    watcher._watched[call.task_id] = _Watched(call, now, now + 60)
    assert watcher.dispatch_later(begun, AttemptRecord(Outcome(status="dispatched"), "null", {"task_id": call.task_id}))


def test_stopping_just_behind_a_dispatch_ends() -> None:
    recorded: list[str] = []

    def commit(begun: Begun, *_: Any, **__: Any) -> Any:
        recorded.append(begun.step_id)
        return SimpleNamespace(result="ok")

    watcher = watcher_of(commit)
    time.sleep(0.05)
    dispatch(watcher, "a")
    stopping = threading.Thread(target=watcher.stop, daemon=True)
    watcher._ended.set()
    watcher._has_dispatches.set()
    stopping.start()
    stopping.join(3)

    assert recorded == ["a"]
    assert not stopping.is_alive()


def test_stop_called_at_once_behind_a_dispatch_ends() -> None:
    hung = 0
    for _ in range(40):
        watcher = watcher_of(lambda *_, **__: SimpleNamespace(result="ok"))
        time.sleep(0.01)
        stopping = threading.Thread(target=watcher.stop, daemon=True)
        dispatch(watcher, "a")
        stopping.start()
        stopping.join(1)
        hung += stopping.is_alive()
    assert hung == 0


def test_a_dispatch_that_cannot_be_recorded_keeps_no_other_waiting() -> None:
    recorded: list[str] = []

    def commit(begun: Begun, *_: Any, **__: Any) -> Any:
        recorded.append(begun.step_id)
        if begun.step_id == "a":
            raise RuntimeError("Redis refused it")
        return SimpleNamespace(result="ok")

    watcher = watcher_of(commit)
    for step_id in "abc":
        dispatch(watcher, step_id)
    time.sleep(2)

    assert recorded == ["a", "b", "c"]
