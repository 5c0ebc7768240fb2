"""A chain over tasks of others, on their workers: finished tasks are not done again, whoever is killed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest
from celery import Celery

from cantata.values import JsonValue
from tests.acceptance.neighbours.behaviour import Running
from tests.acceptance.neighbours.conftest import Start
from tests.acceptance.neighbours.environments import environment, environment_with_cantata
from tests.acceptance.neighbours.our_workers import Beside, event_of, executions, url_of
from tests.acceptance.neighbours.projects import DJANGO, FLASK, GIRDER, INVENIO, PRETALX, Project
from tests.acceptance.neighbours.test_flask import OLD
from tests.integration.redis.servers import Server, until

pytestmark = [
    pytest.mark.thorough(
        "that tasks of an application are durable steps is held by integration/user_tasks, with an application of ours"
    ),
    pytest.mark.slow("workers of others and of ours are killed and started again, and their broker"),
]
PATIENCE_S = 60.0

CALL = """
from {module} import submitting
print(submitting.delay(**{inputs}).get(timeout=40))
"""


@dataclass(frozen=True)
class Case:
    """A chain of a project's tasks around a `wait` step."""

    project: Project
    after: str
    """The step after the wait, which our killed worker had sent."""
    signal: JsonValue
    outputs: Mapping[str, JsonValue]
    done: Mapping[str, int]
    """How often each task is done in all; the first is that before the wait."""
    reads_results: bool = True
    """Whether our workers read its results; else its tasks report their ends."""


MAIL, FILES = "invenio_mail.tasks.send_email", "invenio_mail.tasks._send_email_with_attachments"
CASES = {
    "django": Case(
        DJANGO,
        "mul",
        10,
        {"add": 2, "gate": 10, "mul": 20, "xsum": 22},
        {"demoapp.tasks.add": 1, "demoapp.tasks.mul": 1, "demoapp.tasks.xsum": 1},
    ),
    "invenio": Case(
        INVENIO,
        "files",
        [],
        {"letter": None, "gate": [], "files": None},
        {MAIL: 1, FILES: 1},
        reads_results=False,  # they are in msgpack, which is not installed with our workers
    ),
    "girder": Case(
        GIRDER,
        "second",
        6,
        {"first": 5, "gate": 6, "second": [5, 6]},
        {"girder_worker._test_plugins.tasks.celery_task": 2},
    ),
    "pretalx": Case(
        PRETALX,
        "scores",
        True,
        {"letter": None, "gate": True, "scores": None},
        {"pretalx.common.send_mail": 1, "pretalx.submission.recalculate_review_scores": 1},
    ),
}


@contextmanager
def submitted(theirs: Running) -> Iterator[str]:
    """Have the project submit a run, in a view if it has a web server, else in its worker. The server stays until the block ends."""
    project = theirs.project
    if not project.view:
        call = CALL.format(
            module=project.celery_file.removesuffix(".py").replace("/", "."), inputs=dict(project.inputs)
        )
        yield theirs.run(*project.shell, reads=call).split()[-1]
        return
    with theirs.server() as address:
        yield httpx.post(f"{address}/{project.chain}", json=project.inputs, timeout=PATIENCE_S).raise_for_status().text


@pytest.mark.parametrize(
    ("name", "broker"),
    [
        ("django", "redis"),
        pytest.param("django", "rabbitmq", marks=pytest.mark.whole),
        ("invenio", "redis"),
        ("girder", "rabbitmq"),
        pytest.param("pretalx", "redis", marks=pytest.mark.whole),
    ],
)
def test_a_run_that_they_submitted_goes_on_where_it_was(
    start: Start, redis: Server, beside: Beside, broker: str, name: str
) -> None:
    case = CASES[name]
    theirs = start(case.project, environment_with_cantata(f"{name}-cantata.lock"), broker, case.project.installed)
    theirs.start_worker()

    # With RabbitMQ, results stay where its authors put them: in SQLite or in replies, which our workers do not know.
    with (
        beside(url_of(redis) if case.reads_results and broker == "redis" else None, theirs.config) as ours,
        submitted(theirs) as run_id,
    ):
        run = ours.chain(run_id)
        until(lambda: event_of(run, "waiting", "gate"), "the end of the first task", PATIENCE_S)
        until(lambda: executions(theirs)[f"{next(iter(case.done))} succeeded"], "the line of the first task")
        theirs.kill_worker()
        assert run.signal("gate", case.signal) == "taken"
        until(lambda: event_of(run, "dispatched", case.after), "the second task")
        ours.restart_broker()
        ours.workers.kill_tasks_worker()
        theirs.start_worker()
        response = run.result(PATIENCE_S)

    assert response.outputs == case.outputs
    assert executions(theirs) == {
        f"{task} {what}": n for task, n in case.done.items() for what in ("received", "succeeded")
    }


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
