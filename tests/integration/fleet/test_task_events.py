"""Celery's own events of our tasks, as its receiver hears them: a failed attempt is a failed task, one that is tried again is retried."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.events.state import State, Task

from cantata.client.client import EmbeddedClient
from cantata.engine.dispatch.celery_app import make_app
from cantata.flows.wire import ChainResponse
from cantata.surfaces.flower.task_links import task_target
from cantata.testing import ScriptedModels
from tests.integration.fleet.conftest import Journal, tool
from tests.waiting import until


class Receiver:
    """A receiver of events with Celery's own fold of them, such as Flower has."""

    def __init__(self, redis_url: str) -> None:
        self._app = make_app(redis_url)
        self._stop, self._ready = threading.Event(), threading.Event()
        self._state: Any = State()
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()
        assert self._ready.wait(40.0)

    def _receive(self) -> None:
        with self._app.connection_for_read() as connection:
            receiver: Any = self._app.events.Receiver(connection, handlers={"*": self._state.event})
            with receiver.consumer_context() as (own, _, _):
                self._ready.set()
                while not self._stop.is_set():
                    try:
                        own.drain_events(timeout=0.2)
                    except TimeoutError:
                        continue

    def tasks(self, run_id: str, step_id: str) -> list[Task]:
        """Return the tasks with a step of a run, in the order in which they were received."""
        known = sorted(dict(self._state.tasks).values(), key=lambda task: task.received or task.timestamp)
        return [
            task for task in known if (place := task_target(task)) and place.run_id == run_id and step_id in place.steps
        ]

    def states(self, run_id: str, step_id: str) -> list[str]:
        """Return the states of those tasks."""
        return [task.state for task in self.tasks(run_id, step_id)]

    def close(self) -> None:
        """Receive no more."""
        self._stop.set()
        self._thread.join()
        self._app.close()


@pytest.fixture(scope="module")
def receiver(client: EmbeddedClient) -> Iterator[Receiver]:
    """A receiver for all tests of this module."""
    receiver = Receiver(client.redis_url)
    yield receiver
    receiver.close()


Ends = Callable[..., tuple[ChainResponse, list[Task]]]


@pytest.fixture
def ends(client: EmbeddedClient, receiver: Receiver) -> Ends:
    """Run a chain, and return its response with the tasks of the step when they have these states."""

    def ends(
        states: list[str], step_id: str, *nodes: dict[str, Any], **request: Any
    ) -> tuple[ChainResponse, list[Task]]:
        run = client.submit_chain({"nodes": list(nodes), "entry_node": nodes[0]["node_id"], **request})
        response = run.result(40)
        try:
            until(lambda: receiver.states(run.run_id, step_id) == states, f"{states} of the tasks of {step_id}", 10.0)
        except TimeoutError:
            raise AssertionError(
                [(t.state, t.name, t.args, t.exception, t.uuid) for t in receiver.tasks(run.run_id, step_id)]
            ) from None
        return response, receiver.tasks(run.run_id, step_id)

    return ends


def test_a_failed_step_is_a_failed_task_with_its_error_and_its_canvas_goes_on(ends: Ends) -> None:
    nodes = [tool("n", "fail", message="boom", on_error="skip", next_node="next"), tool("next", "add", a=1)]

    response, [task] = ends(["FAILURE"], "n", *nodes)

    assert response.outputs["next"] == 2
    assert task.name == "tool.call"
    assert "RuntimeError: boom" in str(task.exception)
    assert "RuntimeError: boom" in str(task.traceback)


def test_an_attempt_that_is_tried_again_is_a_retried_task(ends: Ends, journal: Journal) -> None:
    response, tasks = ends(
        ["RETRY", "SUCCESS"], "n", tool("n", "fail_until", journal=str(journal.path), times=2, retry=1)
    )

    assert response.final_output == 2
    assert "call 1 fails" in str(tasks[0].exception)


@pytest.mark.slow("it waits for real time, which is what it tests")
@pytest.mark.parametrize("kind", ["tool", "proc"])
def test_a_step_that_was_stopped_at_its_time_out_is_a_failed_task(ends: Ends, journal: Journal, kind: str) -> None:
    node = (
        tool("n", "hang", journal=str(journal.path), mark="x", seconds=600)
        if kind == "tool"
        else {"node_id": "n", "kind": "proc", "name": "sleep", "input": {"args": ["600"]}, "timeout": 1}
    )

    _, [task] = ends(["FAILURE"], "n", node)

    assert "took longer than its 1 s and was stopped" in str(task.exception)


def test_an_agent_is_retried_in_a_pool_of_threads_too(ends: Ends, models: ScriptedModels) -> None:
    models.script([{"status": 500, "reply": "out of luck", "times": 1}, {"reply": "said"}])

    response, tasks = ends(
        ["RETRY", "SUCCESS"], "n", {"node_id": "n", "kind": "agent", "name": "ann", "input": {"text": "x"}}
    )

    assert response.final_output == "said"
    assert str(tasks[0].exception).startswith("StepError(")
    assert "out of luck" in str(tasks[0].exception)


def test_rows_that_meet_are_one_task_each_and_so_is_their_join(
    ends: Ends, receiver: Receiver, models: ScriptedModels
) -> None:
    models.script([{"reply": "said"}])
    agents = {"p": [], "q": [], "p2": ["p"], "q2": ["q"], "join": ["p2", "q2"]}
    nodes = [
        {"node_id": name, "kind": "agent", "name": "ann", "input": {"text": "x"}, "deps": deps}
        for name, deps in agents.items()
    ]
    both = {"node_id": "both", "kind": "branch", "condition": "`true`", "true_node": ["p", "q"]}

    response, _ = ends(["SUCCESS"], "join", both, *nodes)

    assert response.final_output == "said"
    until(lambda: [receiver.states(response.run_id, name) for name in agents] == [["SUCCESS"]] * 5, "five tasks", 10.0)


def test_an_agent_that_fails_is_a_failed_task(ends: Ends) -> None:
    _, [task] = ends(["FAILURE"], "n", {"node_id": "n", "kind": "agent", "name": "keyless", "input": {"text": "x"}})

    assert "ANTHROPIC_API_KEY" in str(task.exception)


def test_each_step_of_a_message_is_shown_with_its_own_end(ends: Ends) -> None:
    mapping = {"node_id": "m", "kind": "map", "items_path": "input.items", "map_node": "w", "on_error": "skip"}
    each = {"node_id": "w", "kind": "tool", "name": "add", "input_map": {"a": "_item"}}

    response, tasks = ends(["FAILURE"], "m/3", mapping, each, initial_input={"items": [1, 2, 3, "x"]})

    assert "m/3" in str(tasks[0].exception)
    assert response.failed == ["w[3]"]
