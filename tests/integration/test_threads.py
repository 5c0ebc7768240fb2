"""The threads that keep a fleet alive: renewal and sweepers outlive what they meet."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from cantata.engine import isolation
from cantata.engine.dispatch.celery_app import make_app
from cantata.engine.fleet.registry import WORKERS_KEY
from cantata.engine.sweeper import Sweeper
from cantata.flows.definitions import Definitions, Limits
from cantata.flows.graph import START
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.keys import definitions_digest, key_of
from cantata_workers.process.duties import sweep_once
from cantata_workers.process.process import MAX_CACHED_DEFINITIONS, Process
from tests.integration.state.play import Play
from tests.waiting import until


def url_of(valkey: Redis) -> str:
    return f"unix://{valkey.connection_pool.connection_kwargs['path']}"


def test_renewal_outlives_an_unknown_field_of_a_newer_worker(ledger: Ledger) -> None:
    ledger.redis.hset(key_of(None, WORKERS_KEY), "newer", '{"name": "newer", "unknown_here": 1}')

    process = Process(url_of(ledger.redis), "old")
    time.sleep(0.6)

    assert "lease renewal" in [thread.name for thread in threading.enumerate()]
    process.stop()


def test_after_an_outage_owners_renew_before_leases_count_as_run_out(ledger: Ledger) -> None:
    begun = Play(Ledger(ledger.redis, lease_s=0.01)).begin(START)
    time.sleep(0.05)

    sweeper = Sweeper(make_app(url_of(ledger.redis)), ledger, "sweeper", sweep_once, every_s=0.05)
    sweeper.start()
    time.sleep(0.5)

    assert ledger.leases.renew([begun.lease]) == set()
    sweeper.stop()
    sweeper.join()


@pytest.mark.parametrize("is_ending", [True, False])
def test_a_sweep_that_breaks_is_told_unless_the_process_ends(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, is_ending: bool
) -> None:
    sweeper = Sweeper(make_app(url_of(ledger.redis)), ledger, "sweeper", sweep_once, every_s=0.01)
    swept = threading.Event()

    def submit(*_: object) -> None:
        if is_ending:
            sweeper.stop()
        swept.set()
        raise RuntimeError("cannot schedule new futures after shutdown")

    told: list[str] = []
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    monkeypatch.setattr(isolation, "log", SimpleNamespace(error=lambda event, **_: told.append(event)))
    monkeypatch.setattr(isolation, "_logged_at", {})
    sweeper.start()
    assert swept.wait(20)
    until(lambda: told or is_ending, "it is told")
    sweeper.stop()
    sweeper.join()

    assert told == ([] if is_ending else ["sweep_crashed"]), "once, however often it breaks"


def test_the_definitions_that_threads_share_are_changed_under_a_lock_and_bounded(ledger: Ledger) -> None:
    texts = {
        f"{n}": Definitions(limits=Limits(max_nodes=n + 1)).model_dump_json() for n in range(MAX_CACHED_DEFINITIONS + 6)
    }
    runs = {definitions_digest(text): f"run{n}" for n, text in enumerate(texts.values())}
    for run_id, text in zip(runs.values(), texts.values(), strict=True):
        Play(ledger, run_id, definitions=text)
    process = Process(url_of(ledger.redis), "worker")

    class Watched(OrderedDict[str, Definitions]):
        """Notices who changes it without the lock."""

        def __setitem__(self, key: str, value: Definitions) -> None:
            assert process._lock.locked()
            super().__setitem__(key, value)

        def get(self, key: str, default: Any = None) -> Any:
            assert process._lock.locked()
            return super().get(key, default)

        def popitem(self, last: bool = True) -> tuple[str, Definitions]:
            assert process._lock.locked()
            return super().popitem(last)

    process._definitions = Watched()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda run: process.definitions(run[1], run[0]).limits.max_nodes, [*runs.items()] * 4))
    process.stop()

    assert found == [*range(1, MAX_CACHED_DEFINITIONS + 7)] * 4
    assert len(process._definitions) == MAX_CACHED_DEFINITIONS
