"""Runs on a Redis Cluster of three nodes, as the user of our example, with another Redis as the broker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from cantata.errors import ConfigError, UnavailableError
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import connect
from cantata.ledger.redis.keys import run_key
from cantata.testing import ScriptedModels
from tests.integration.redis.fleets import Door, Fleet, serving, use_everything
from tests.integration.redis.servers import Clustered, Server, running, until


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, clustered: Clustered, models: ScriptedModels) -> Iterator[Fleet]:
    """A fleet on the cluster, in which tests of the ledger may have left runs that no worker can execute."""
    for node in clustered.nodes:
        if node.say("ROLE")[0] == "master":
            node.say("FLUSHALL")
    folder = tmp_path_factory.mktemp("fleet")
    broker = Server(folder)
    url = clustered.url.replace("://", "://cantata:change-this-password@")
    with running(broker), serving(folder, url, f"redis://{broker.place}") as fleet:
        yield fleet


@pytest.mark.slow("everything that touches Redis, on a fleet of its own")
def test_all_that_touches_redis_works_on_a_cluster(workers: Fleet, clustered: Clustered) -> None:
    use_everything(workers, "all")
    run_id = workers.client.runs(most=1)[0].run_id
    with (
        Door(workers, "gateway") as gateway,
        httpx.stream("GET", f"{gateway}/runs/{run_id}/events", timeout=40) as events,
    ):
        assert "event: closed" in events.read().decode()

    slots = {
        clustered.nodes[0].say("CLUSTER KEYSLOT", run_key(None, run.run_id)) for run in workers.client.runs(most=50)
    }
    assert len(slots) > 1, "runs lie all over the cluster"
    for node in clustered.nodes:
        assert [(entry["object"], entry["reason"]) for entry in node.redis.acl_log()] == []


@pytest.mark.thorough("another Redis; the test above does everything on a cluster")
def test_a_run_goes_on_while_its_slot_moves_to_another_node(workers: Fleet, clustered: Clustered) -> None:
    steps = [
        workers.mark(f"moving{step}", 0.2, **({"next_node": f"moving{step + 1}"} if step < 4 else {}))
        for step in range(5)
    ]
    run = workers.chain(*steps)
    until(lambda: "moving0" in workers.marks(), "the first step")
    slot = clustered.nodes[0].say("CLUSTER KEYSLOT", run_key(None, run.run_id))

    source, target = clustered.move_slot(slot)

    assert run.result(40).success
    assert workers.marks().count("moving4") == 1
    assert source.say("CLUSTER COUNTKEYSINSLOT", slot) == 0
    assert target.say("CLUSTER COUNTKEYSINSLOT", slot) > 0
    assert workers.tracebacks() == []


@pytest.mark.thorough("another Redis; the test above does everything on a cluster")
def test_a_cluster_without_a_node_is_waited_for(workers: Fleet, clustered: Clustered) -> None:
    run = workers.chain(
        *[
            workers.mark(f"lost{step}", 0.2, **({"next_node": f"lost{step + 1}"} if step < 2 else {}))
            for step in range(3)
        ]
    )
    until(lambda: "lost0" in workers.marks(), "the first step")
    node = clustered.nodes[2]

    node.kill()
    with connect(clustered.url) as redis:
        impatient = Ledger(redis, patience_s=0.5)
        with pytest.raises(
            UnavailableError, match=r"Redis (cannot be reached|is a cluster in which nodes are missing)"
        ):
            impatient.reader.newest()
    node.start()
    clustered.wait_ok()

    assert run.result(60).success
    assert workers.tracebacks() == []


@pytest.mark.thorough("another Redis; the test above does everything on a cluster")
def test_a_cluster_needs_a_broker_and_has_no_replicas_to_wait_for(workers: Fleet, clustered: Clustered) -> None:
    with (
        connect(clustered.url) as redis,
        pytest.raises(ConfigError, match="CANTATA_WAIT_REPLICAS is not for a Redis Cluster"),
    ):
        Ledger(redis, replicas=1)

    said = workers.submit("worker", "tools", CANTATA_BROKER_URL="")
    assert said.returncode == 2
    assert json.loads(said.stderr)["error"] == (
        "Celery cannot use a Redis Cluster as its broker: set CANTATA_BROKER_URL to a single Redis, to Sentinels or to RabbitMQ"
    )
