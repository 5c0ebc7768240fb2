"""What becomes of workflows whose workers die, and whose code is changed: no finished step is executed again."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

import pytest

from cantata.client.client import Client
from cantata.client.runs import ChainRun
from cantata.flows.definitions import Definitions, PythonWorkflow, Tool
from cantata.ledger import refused_steps
from tests.integration.workflows.conftest import PATIENCE_S
from tests.waiting import until

AFTER_COMMITS = ("begun", "committed", "graph-expanded", "successors-sent")
IN_AN_ATTEMPT = ("tool-started", "tool-finished", "commit-replied")


@pytest.fixture
def fault(journal: Path) -> Path:
    """What is written to this file strikes the workers once."""
    return journal.parent / "fault"


@pytest.mark.slow("a worker is killed, and its lease must run out")
@pytest.mark.parametrize("label", [*AFTER_COMMITS, *IN_AN_ATTEMPT])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_kill_costs_the_attempt_under_way_at_most(
    client: Client, journal: Path, fault: Path, tmp_path: Path, label: str, number: int
) -> None:
    (tmp_path / "go").touch()
    before = Counter(journal.read_text().splitlines())
    fault.write_text(f"{label}:{number}:kill")

    run = client.submit_workflow("journey", {"file": str(tmp_path / "go")})

    assert run.result(PATIENCE_S).raise_for_status().final_output == [2, "middle", 4]
    done = Counter(journal.read_text().splitlines()) - before
    finished = [done[line] for line in ("add 1 1", "middle", "add 3 1")]
    assert sum(finished) <= (3 if label in AFTER_COMMITS else 4), done
    fault.unlink(missing_ok=True)


MODULE = """
import pathlib, time
from cantata import workflow

def add(a):
    return a + 1

def other(a):
    return -a

def version(folder, mine, its):
    pathlib.Path(folder, mine).touch()
    while not pathlib.Path(folder, its).exists():
        time.sleep(0.01)
    return {version}

@workflow
async def trip(wf):
"""


class Trip:
    """A module whose workflow is changed, and a client of the configuration that names it."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._folder = folder
        self._version = 0
        tools = {"version": Tool(function="trip:version")}
        self.client = client.with_definitions(
            Definitions(folder=str(folder), tools=tools, workflows={"trip": PythonWorkflow(function="trip:trip")})
        )

    def write(self, body: str) -> None:
        """Change the workflow, and wait until both processes of the worker execute the new code."""
        self._version += 1
        text = MODULE.replace("{version}", str(self._version)) + "".join(f"    {line}\n" for line in body.splitlines())
        (self._folder / "trip.py").write_text(text)
        until(lambda: self._versions() == [self._version] * 2, "the new code")

    def _versions(self) -> list[object]:
        """The version in each of the two processes: each call waits for the other one."""
        meeting = self._folder / uuid.uuid4().hex
        meeting.mkdir()
        runs = [
            self.client.submit_chain(
                {
                    "nodes": [
                        {
                            "node_id": "a",
                            "kind": "tool",
                            "name": "version",
                            "input": {"folder": str(meeting), "mine": mine, "its": its},
                        }
                    ],
                    "entry_node": "a",
                }
            )
            for mine, its in (("one", "two"), ("two", "one"))
        ]
        return [run.result(PATIENCE_S).final_output for run in runs]

    def begin(self) -> ChainRun:
        """A run that waits for its signal."""
        run = self.client.submit_workflow("trip", {})
        until(lambda: any(step.state == "waiting_signal" for step in run.record().steps.values()), "the wait")
        return run


@pytest.fixture
def trip(client: Client, tmp_path: Path) -> Trip:
    """The module, with the old code."""
    made = Trip(client, tmp_path)
    made.write(OLD)
    return made


OLD = """
one = await wf.call(add, 1)
await wf.wait("go")
return [one, await wf.call(add, 2)]
"""
COMPATIBLE = """
one = await wf.call(add, 1)
await wf.wait("go")
return [one, await wf.call(add, 20), "new"]
"""
OTHER_COMMAND = OLD.replace("call(add, 1)", "call(other, 1)")
OTHER_ARGUMENT = OLD.replace("call(add, 1)", "call(add, 7)")
FEWER = "return 5"
MORE = OLD.replace("one =", "wf.call(other, 3)\none =")
WITHOUT_WAIT = """
one = await wf.call(add, 1)
return [one, await wf.call(add, 2)]
"""
PATCHED = """
one = await wf.call(add, 1)
if wf.patched("faster"):
    await wf.call(other, 1)
await wf.wait("go")
return [one, await wf.call(add, 2), wf.patched("faster"), wf.patched("at the end")]
"""


def test_new_code_that_asks_for_the_same_goes_on(trip: Trip) -> None:
    run = trip.begin()
    trip.write(COMPATIBLE)
    run.signal("go", 1)

    assert run.result(PATIENCE_S).final_output == [2, 21, "new"]


@pytest.mark.slow("workers notice the changed code, and a step that was refused is sent again after a while")
@pytest.mark.parametrize(
    ("code", "message"),
    [
        pytest.param(OTHER_COMMAND, ", and now is call 'trip:other' at trip.py:", id="another command"),
        pytest.param(OTHER_ARGUMENT, "with other arguments", id="other arguments"),
        pytest.param(FEWER, ", and now the code ended without it", id="fewer commands"),
        pytest.param(MORE, "command 0 was call 'trip:add' at trip.py:", id="another command before"),
        pytest.param(WITHOUT_WAIT, "command 1 was wait 'go' at trip.py:", id="another order"),
    ],
)
def test_new_code_that_asks_for_something_else_parks_the_run_until_the_old_code_is_back(
    trip: Trip, code: str, message: str
) -> None:
    run = trip.begin()
    trip.write(code)
    run.signal("go", 1)
    refused = until(
        lambda: [each for each in refused_steps.recent(trip.client.redis) if run.run_id in each], "the refusal"
    )
    assert message in refused[0]
    assert "does not follow the run's history" in refused[0]
    assert run.status() == "running"

    trip.write(OLD)

    assert run.result(PATIENCE_S).raise_for_status().final_output == [2, 3]


def test_a_patch_keeps_runs_under_way_on_the_old_code(trip: Trip) -> None:
    run = trip.begin()
    trip.write(PATCHED)
    fresh = trip.begin()
    for each in (run, fresh):
        each.signal("go", 1)

    assert run.result(PATIENCE_S).final_output == [2, 3, False, True]
    assert fresh.result(PATIENCE_S).final_output == [2, 3, True, True]


def test_messages_that_come_twice_execute_nothing_twice(client: Client, journal: Path, tmp_path: Path) -> None:
    before = Counter(journal.read_text().splitlines())
    run = client.submit_workflow("journey", {"file": str(tmp_path / "go")})
    until(lambda: "journey/1.held" in run.record().steps, "the held step")
    for step_id, step in run.record().steps.items():
        for _ in range(3):
            client.app.send_task(
                step.spec.kind, args=[run.run_id, [step_id]], queue=client.app.broker_queue(step.spec.queue)
            )
    (tmp_path / "go").touch()

    assert run.result(PATIENCE_S).raise_for_status().final_output == [2, "middle", 4]
    done = Counter(journal.read_text().splitlines()) - before
    assert done == Counter(["add 1 1", "start middle", "middle", "add 3 1"])


def test_a_fork_executes_the_commands_from_a_step_on_again(client: Client, journal: Path, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    run = client.submit_workflow("journey", {"file": str(tmp_path / "go")})
    assert run.result(PATIENCE_S).success
    before = Counter(journal.read_text().splitlines())

    fork = client.fork(run.run_id, "journey/1.held")
    assert isinstance(fork, ChainRun)

    assert fork.result(PATIENCE_S).raise_for_status().final_output == [2, "middle", 4]
    assert Counter(journal.read_text().splitlines()) - before == Counter(["start middle", "middle", "add 3 1"])


def test_a_retry_of_a_failed_workflow_goes_on_where_it_failed(client: Client, journal: Path) -> None:
    run = client.submit_workflow("broken", {"order": {"item": "pen", "amount": 41}})
    assert not run.result(PATIENCE_S).success
    before = Counter(journal.read_text().splitlines())

    assert "KeyError" in str(client.retry(run.run_id).result(PATIENCE_S).error)
    assert Counter(journal.read_text().splitlines()) == before
