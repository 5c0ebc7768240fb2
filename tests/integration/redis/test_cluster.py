"""Runs on a Redis Cluster of three nodes, with another Redis as the broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.testing import ScriptedModels
from tests.integration.redis.fleets import Fleet, serving, use_everything
from tests.integration.redis.servers import Clustered, Server, running


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, clustered: Clustered, models: ScriptedModels) -> Iterator[Fleet]:
    """A fleet on the cluster."""
    folder = tmp_path_factory.mktemp("fleet")
    broker = Server(folder)
    with running(broker), serving(folder, clustered.url, f"redis://{broker.place}") as fleet:
        yield fleet


def test_all_that_touches_redis_works_on_a_cluster(workers: Fleet) -> None:
    use_everything(workers, "all")
