"""The brokers of these tests, and what records how a project behaves with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from cantata import Client
from cantata.ledger.redis.connection import connect
from tests.acceptance.neighbours.behaviour import Behaviour, Running
from tests.acceptance.neighbours.brokers import RabbitMQ
from tests.acceptance.neighbours.environments import project as copy_project
from tests.acceptance.neighbours.our_workers import Beside, Ours, OurWorkers, url_of
from tests.acceptance.neighbours.projects import FLASK, Project
from tests.integration.redis.servers import Server, running


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of these tests."""
    return tmp_path_factory.mktemp("neighbours")


@pytest.fixture(scope="package")
def redis(folder: Path) -> Iterator[Server]:
    """A Redis of its own."""
    server = Server(folder)
    with running(server):
        yield server


@pytest.fixture(scope="package")
def rabbitmq(folder: Path) -> Iterator[RabbitMQ]:
    """A RabbitMQ of its own, which may still be starting."""
    server = RabbitMQ(folder / "rabbitmq")
    try:
        yield server
    finally:
        server.close()


class Start(Protocol):
    """Copies a project, with lines at the end of its Celery module, and points it to a broker by variables."""

    def __call__(self, project: Project, environment: Path, broker: str, lines: str) -> Running:
        """Return the copy, whose worker is not started."""


Record = Callable[[Project, Path, str, str], Behaviour]


@pytest.fixture(scope="package")
def start(folder: Path, redis: Server, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Copies projects, and points them to a broker by the variables that they or Celery read; results stay where a project puts them."""
    copies: list[Running] = []

    def kill_workers() -> None:  # they would take each other's tasks
        for each in copies:
            each.kill_worker()

    def started(project: Project, environment: Path, broker: str, lines: str) -> Running:
        kill_workers()
        url = f"redis://{redis.place}/0"
        if broker == "rabbitmq":
            server: RabbitMQ = request.getfixturevalue("rabbitmq")
            server.wait()
            server.empty()
            broker_url = server.url
        else:
            redis.redis.flushall()
            broker_url = url
        copied = copy_project(project.sdist, project.path, folder / f"{project.name}{len(list(folder.iterdir()))}")
        for name, added in ((project.celery_file, lines), (project.view_file, project.view if lines else "")):
            if added:
                with (copied / name).open("a") as file:
                    file.write(added)
        variables = {**project.variables(broker_url, url), "REDIS_URL": url}
        running = Running(project, environment, copied, variables, masked=(url, broker_url))
        copies.append(running)
        if project.prepare:
            running.prepare()
        return running

    yield started
    kill_workers()


@pytest.fixture(scope="package")
def record(start: Start) -> Record:
    """Starts a project as its authors do, with lines at the end of its Celery module, and calls all of its tasks."""

    def recorded(project: Project, environment: Path, broker: str, lines: str) -> Behaviour:
        copied = start(project, environment, broker, lines)
        copied.start_worker("listener")
        if project is FLASK:  # whose calls go to its server
            with copied.server() as address:
                return copied.behaviour(address, URL=address)
        return copied.behaviour()

    return recorded


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
