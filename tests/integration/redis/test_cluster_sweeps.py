"""Sweeps of a Redis Cluster that has no other workers, while one of its nodes is away."""

from __future__ import annotations

import time
from functools import partial
from typing import cast

import pytest

from cantata.engine.dispatch.celery_app import make_app
from cantata.engine.dispatch.queues import waiting
from cantata.engine.sweeper import Sweeper
from cantata.errors import UnavailableError
from cantata.ledger.intervals import LEASE_S
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.cluster import Cluster
from cantata.ledger.redis.connection import connect
from cantata_workers.process.duties import sweep_once
from tests.integration.redis.servers import Clustered, until
from tests.integration.state.play import Play, work


@pytest.mark.slow("a node of a cluster is away for longer than a lease")
@pytest.mark.parametrize(
    "victim", [0, *(pytest.param(number, marks=pytest.mark.thorough("another node")) for number in (1, 2))]
)
def test_what_healthy_nodes_have_is_swept_and_kept_while_another_is_away(clustered: Clustered, victim: int) -> None:
    for node in clustered.nodes:
        node.redis.config_set("cluster-require-full-coverage", "no")
    clustered.nodes[victim].redis.config_set(
        "appendfsync", "always"
    )  # what it accepts is on disk, however busy that is, until it is killed
    with connect(clustered.url) as redis:
        ledger, app = Ledger(redis, patience_s=1.0), make_app(clustered.url, "memory://")
        plays = [Play(ledger, f"away{victim}.{number}") for number in range(12)]
        queue = f"away{victim}"
        for play in plays:
            play.plan(work("a", queue=queue))
        held = [play.begin("a").lease for play in plays]
        node = clustered.nodes[victim]
        at = node.place
        healthy = [play for play in plays if cast(Cluster, redis).node_of(play.shard) != at]
        assert 0 < len(healthy) < len(plays)
        sweeper = Sweeper(app, ledger, "sweeper", sweep_once, every_s=0.05)

        node.kill()
        try:
            with pytest.raises(UnavailableError):
                ledger.leases.renew(held)
            renewed_at = time.monotonic()
            sweeper.start()
            until(lambda: waiting(app, [queue])[queue].count >= len(healthy), "the steps of the healthy nodes")
            assert time.monotonic() - renewed_at > LEASE_S / 2, "leases that could be renewed were"
        finally:
            sweeper.stop()
            sweeper.join()
            node.start()
            clustered.wait_ok()
            for each in clustered.nodes:
                until(partial(each.redis.config_set, "cluster-require-full-coverage", "yes"), "the usual setting")
        for play in plays:
            ledger.runs.cancel(play.run_id)
        app.close()
