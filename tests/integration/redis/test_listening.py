"""Results that are announced while another one is being recorded."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery
from redis import Redis

from cantata.dispatch.celery_app import make_app
from cantata.models.graph import Spec
from cantata.state.ledger.records import AttemptRecord, Begun
from cantata.workers.celery_tasks.result_watcher import ResultWatcher
from tests.waiting import until


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_step_behind_a_result_that_takes_long_delays_no_other_result(valkey: Redis) -> None:
    url = f"redis+socket://{valkey.connection_pool.connection_kwargs['path']}?virtual_host=7"
    theirs = Celery("shop", broker="memory://", backend=url, set_as_current=False)
    resumed: dict[str, float] = {}
    release = threading.Event()

    def resume(begun: Begun, record: AttemptRecord) -> None:
        resumed[begun.step_id] = time.monotonic()
        if begun.step_id == "slow":
            release.wait(10)  # a cheap step behind it hangs

    definitions = SimpleNamespace(limits=SimpleNamespace(output_bytes=1000), defaults=SimpleNamespace(max_attempts=3))
    watcher = ResultWatcher(make_app(url), theirs, cast(Any, SimpleNamespace(definitions=lambda *_: definitions)), resume)
    watcher.start()
    try:
        until(lambda: valkey.pubsub_numpat() >= 1, "a subscription")
        ended = {}
        for name in ("slow", "a", "b"):
            call = watcher.call(Begun("run", name, 1, "me~1", Spec(kind="task", timeout_s=60), None, 0, {}, ""), "task")
            watcher._watch(call)
            time.sleep(0.1)
            ended[name] = time.monotonic()
            theirs.backend.store_result(call.task_id, 1, "SUCCESS")
        until(lambda: len(resumed) == 3, "all results")
        late = {name: round(resumed[name] - ended[name], 2) for name in ended}
        print(late)
        assert max(late.values()) < 1
    finally:
        release.set()
        watcher.stop()
        theirs.close()
