"""Queues of RabbitMQ are paused, and a worker that consumes them is drained: messages that it had not begun go back."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantata.client.client import Client
from tests.acceptance.neighbours.brokers import RabbitMQ
from tests.integration.fleet.conftest import Journal
from tests.integration.fleet.plant import PATIENCE_S, Plant, done, own_definitions, release, run_slow, state_of
from tests.waiting import until


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    """A Redis and a coordinator, beside a RabbitMQ of their own."""
    broker = RabbitMQ(tmp_path / "rabbit")
    try:
        broker.wait()
        with tempfile.TemporaryDirectory(prefix="rq", dir="/tmp", ignore_cleanup_errors=True) as folder:
            found = Plant(Path(folder), broker.url)
            try:
                found.worker("first", "coordinator", concurrency=2)
                yield found
            finally:
                found.end()
    finally:
        broker.close()


@pytest.mark.slow("a RabbitMQ is started")
def test_a_queue_of_rabbitmq_is_paused_and_its_worker_drained(plant: Plant, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    plant.worker("one", "tools", "beside")
    with Client(plant.url, config=own_definitions(), broker_url=plant.broker_url) as client:
        client.fleet.pause_queue("tools", by="ann")
        until(lambda: (found := plant.announced("one")) and found.held == ("tools",), "the pause", PATIENCE_S)
        waiting = [run_slow(client, journal, mark) for mark in range(5)]
        assert run_slow(client, journal, "beside", name="beside").result(PATIENCE_S).success
        until(lambda: client.fleet.queues()["tools"].ready == 5, "the messages", PATIENCE_S)
        assert {line["name"] for line in journal.of("start")} == {"beside"}
        client.fleet.resume_queue("tools")
        assert all(run.result(PATIENCE_S).success for run in waiting)

        held = run_slow(client, journal, "held", name="held")
        until(lambda: journal.of("start", "held"), "the start", PATIENCE_S)
        more = [run_slow(client, journal, mark) for mark in range(5, 9)]
        client.fleet.drain("one")
        until(lambda: state_of(plant, "one") == "draining", "the drain", PATIENCE_S)
        plant.worker("two", "tools")
        assert all(run.result(PATIENCE_S).success for run in more)
        assert not journal.of("finish", "held")
        release(journal)
        assert held.result(PATIENCE_S).success
        until(lambda: state_of(plant, "one") == "drained", "the end of the drain", PATIENCE_S)
        plant.stop("two")
        client.fleet.undrain("one")
        assert run_slow(client, journal, "again").result(PATIENCE_S).success

    assert done(journal) == Counter(["beside", "held", "again", *range(9)])
