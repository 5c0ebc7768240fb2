"""The threads that keep a fleet alive: hearts and sweepers outlive what they meet."""

from __future__ import annotations

import threading
import time

from redis import Redis

from orchestrator.celeryapp import make_app
from orchestrator.coordinator import Sweeper
from orchestrator.models.graph import START
from orchestrator.state.fleet import WORKERS_KEY
from orchestrator.state.keys import key_of
from orchestrator.state.ledger import Ledger
from tests.integration.state.play import Play
from workers.runtime import Process


def url_of(valkey: Redis) -> str:
    return f"unix://{valkey.connection_pool.connection_kwargs['path']}"


def test_a_heart_outlives_what_a_newer_worker_says_of_itself(ledger: Ledger) -> None:
    ledger.redis.hset(key_of(None, WORKERS_KEY), "newer", '{"name": "newer", "unknown_here": 1}')

    process = Process(url_of(ledger.redis), "old")
    time.sleep(0.6)

    assert "heart" in [thread.name for thread in threading.enumerate()]
    process.stop()


def test_after_an_outage_owners_renew_before_leases_count_as_run_out(ledger: Ledger) -> None:
    begun = Play(Ledger(ledger.redis, lease_s=0.01)).begin(START)
    time.sleep(0.05)

    sweeper = Sweeper(make_app(url_of(ledger.redis)), ledger, "sweeper", every_s=0.05)
    sweeper.start()
    time.sleep(0.5)

    assert ledger.renew([begun.lease]) == set()
    sweeper.stop()
    sweeper.join()
