"""A chain over tasks of others, on their workers: finished tasks are not done again, whoever is killed meanwhile."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from cantata import ChainRun, Client
from cantata.ledger.redis.connection import connect
from tests.acceptance.neighbours.behaviour import Running
from tests.acceptance.neighbours.brokers import RabbitMQ
from tests.acceptance.neighbours.conftest import Start
from tests.acceptance.neighbours.environments import environment, environment_with_cantata
from tests.acceptance.neighbours.our_workers import OurWorkers
from tests.acceptance.neighbours.test_flask import OLD
from tests.acceptance.neighbours.projects import DJANGO, FLASK
from tests.integration.redis.servers import Server, until

pytestmark = [
    pytest.mark.thorough(
        "that tasks of an application are durable steps is held by integration/user_tasks, with an application of ours"
    ),
    pytest.mark.slow("workers of others and of ours are killed and started again, and their broker"),
]
BROKERS = pytest.mark.parametrize("broker", ["redis", pytest.param("rabbitmq", marks=pytest.mark.whole)])
PATIENCE_S = 60.0

CALL = """
from proj.celery import sums
print(sums.delay(x=1, y=2).get(timeout=40))
"""


class Ours:
    """Our workers beside a project, a client, and the broker of all."""

    def __init__(self, workers: OurWorkers, client: Client, broker: RabbitMQ | Server) -> None:
        self.workers, self.client = workers, client
        self._broker = broker

    def restart_broker(self) -> None:
        """Restart it, and wait until our workers serve again."""
        if isinstance(self._broker, RabbitMQ):
            self._broker.restart()
        else:  # at once, and it keeps the runs and the results too
            self._broker.kill()
            self._broker.start()
            self._broker.wait()
        self.workers.wait()

    def chain(self, run_id: str) -> ChainRun:
        """A run of a chain."""
        run = self.client.run(run_id)
        assert isinstance(run, ChainRun)
        return run


Beside = Callable[[str | None, Path], AbstractContextManager[Ours]]
"""Starts ours, which know a result backend or none; runs are submitted with a configuration."""


@pytest.fixture
def beside(redis: Server, broker: str, request: pytest.FixtureRequest, tmp_path: Path) -> Beside:
    """Starts our workers with the project's broker."""

    @contextmanager
    def started(backend: str | None, config: Path) -> Iterator[Ours]:
        url = url_of(redis)
        server: RabbitMQ | None = request.getfixturevalue("rabbitmq") if broker == "rabbitmq" else None
        broker_url = server.url if server else url
        with ExitStack() as opened:
            connected = connect(url)
            opened.callback(connected.close)
            workers = OurWorkers(tmp_path / "ours", connected, url, broker_url, backend)
            opened.callback(workers.stop)
            yield Ours(
                workers, opened.enter_context(Client(url, broker_url=broker_url, config=config)), server or redis
            )

    return started


def url_of(redis: Server) -> str:
    return f"redis://{redis.place}/0"


def executions(theirs: Running) -> Counter[str]:
    """How often each task of a run was received by their worker, and how often it succeeded."""
    return Counter(
        f"{name} {what}" for name, what in re.findall(r"Task (\S+)\[cantata-\S+\] (received|succeeded)", theirs.log())
    )


def event_of(run: ChainRun, kind: str, step: str) -> Mapping[str, Any] | None:
    """The first event of that kind of a step, if it came."""
    return next((event.model_dump() for event in run.log() if (event.type, event.step) == (kind, step)), None)


@BROKERS
def test_a_run_that_their_worker_submitted_goes_on_where_it_was(
    start: Start, redis: Server, beside: Beside, broker: str
) -> None:
    theirs = start(DJANGO, environment_with_cantata("django-cantata.lock"), broker, DJANGO.installed)
    theirs.start_worker()

    # With RabbitMQ, results stay where its authors put them: in SQLite, which our workers do not know.
    with beside(url_of(redis) if broker == "redis" else None, theirs.config) as ours:
        run = ours.chain(theirs.run(*DJANGO.shell, reads=CALL).split()[-1])
        until(lambda: event_of(run, "waiting", "gate"), "the end of the first task", PATIENCE_S)
        theirs.kill_worker()
        assert run.signal("gate", 10) == "taken"
        until(lambda: event_of(run, "dispatched", "mul"), "the second task")
        ours.restart_broker()
        ours.workers.kill_tasks_worker()
        theirs.start_worker()
        response = run.result(PATIENCE_S)

    assert response.outputs == {"add": 3, "gate": 10, "mul": 30, "xsum": 33}
    names = ("demoapp.tasks.add", "demoapp.tasks.mul", "demoapp.tasks.xsum")
    assert executions(theirs) == {f"{name} {what}": 1 for name in names for what in ("received", "succeeded")}


@OLD
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_task_that_was_lost_with_their_worker_is_done_again_and_no_other_is(
    start: Start, redis: Server, beside: Beside, broker: str
) -> None:
    theirs = start(FLASK, environment("flask.lock"), broker, "")
    theirs.start_worker()
    results = Celery(backend=url_of(redis), set_as_current=False)

    with beside(url_of(redis), theirs.config) as ours:
        run = ours.client.submit_chain("sums", initial_input={"x": 1, "y": 1})
        task = until(lambda: event_of(run, "dispatched", "process"), "the second task", PATIENCE_S)["task_id"]
        until(lambda: str(results.AsyncResult(task).state) == "PROGRESS", "the task's own report")
        theirs.kill_worker()
        ours.restart_broker()
        ours.workers.kill_tasks_worker()
        theirs.start_worker()
        response = run.result(PATIENCE_S)
    results.close()

    assert response.outputs == {"before": 2, "process": {"current": 2, "total": 2}, "after": 4}
    assert executions(theirs) == {
        "task_app.tasks.add received": 2,
        "task_app.tasks.add succeeded": 2,
        "task_app.tasks.process received": 2,
        "task_app.tasks.process succeeded": 1,
    }


@pytest.mark.parametrize("lock", [pytest.param("flask.lock", marks=OLD), "flask-next.lock"])
@pytest.mark.parametrize("broker", ["redis"])
def test_a_task_that_ignores_its_result_is_done_once_though_our_workers_do_not_know_it(
    start: Start, redis: Server, beside: Beside, broker: str, lock: str
) -> None:
    theirs = start(FLASK, environment(lock), broker, "")
    theirs.start_worker()
    nodes = [
        {"node_id": "a", "kind": "tool", "name": "block", "next_node": "b"},
        {"node_id": "b", "kind": "tool", "name": "add", "input": {"a": 1, "b": "x"}},
    ]

    with beside(url_of(redis), theirs.config) as ours:
        response = ours.client.submit_chain({"entry_node": "a", "nodes": nodes}).result(PATIENCE_S)

    assert response.error
    assert (
        response.error.message
        == "node 'b' failed: task task_app.tasks.add raised TypeError: unsupported operand type(s) for +: 'int' and 'str'"
    )
    assert executions(theirs) == {
        "task_app.tasks.block received": 1,
        "task_app.tasks.block succeeded": 1,
        "task_app.tasks.add received": 1,
    }
