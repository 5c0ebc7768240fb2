"""The Celery project of Flask's examples: with the pins of its authors, and with a Celery that we support."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.acceptance.neighbours.behaviour import Behaviour
from tests.acceptance.neighbours.conftest import Record
from tests.acceptance.neighbours.environments import HERE, environment, environment_with_cantata, project
from tests.acceptance.neighbours.projects import FLASK

pytestmark = [
    pytest.mark.thorough("no other test runs an application that somebody else wrote"),
    pytest.mark.slow("a project of others starts in processes of its own; one of its tasks sleeps for five seconds"),
]
OLD = pytest.mark.skipif(sys.version_info >= (3, 12), reason="the pins of its authors are for Python 3.11")
RECORDED = [
    pytest.param("flask.lock", "redis", marks=OLD), pytest.param("flask-next.lock", "redis"),
    pytest.param("flask-next.lock", "rabbitmq", marks=pytest.mark.whole),
]  # fmt: skip
Alone = Callable[[str, str], Behaviour]


@pytest.fixture(scope="module")
def alone(record: Record) -> Alone:
    """Its behaviour without us, recorded once for each environment and broker."""

    @cache
    def recorded(lock: str, broker: str) -> Behaviour:
        return record(FLASK, environment(lock), broker, "")

    return recorded


def test_the_lock_has_the_pins_of_its_authors(tmp_path: Path) -> None:
    def pins(text: str) -> set[tuple[str, str]]:
        return set(re.findall(r"^([a-z0-9-]+)(?:\[redis\])?(==[^\s\\;]+)", text, re.MULTILINE))

    theirs = project(FLASK.sdist, FLASK.path, tmp_path / "copy") / "requirements.txt"

    ours = (HERE / "flask.lock").read_text()
    assert pins(ours) - pins(theirs.read_text()) == {("colorama", "==0.4.6")}, "it is for Windows only"
    assert pins(theirs.read_text()) <= pins(ours)


@pytest.mark.parametrize(("lock", "broker"), RECORDED)
def test_each_of_its_tasks_does_what_it_says(alone: Alone, lock: str, broker: str) -> None:
    behaviour = alone(lock, broker)

    calls = behaviour.calls
    results = {label: call["result"] for label, call in calls.items() if call.get("state") == "SUCCESS"}
    errors = {label: call["error"][:2] for label, call in calls.items() if call.get("error")}
    assert results == {
        "add": 5,
        "chain": 7,
        "in place": 3,
        "process": {"current": 1, "total": 1},
        "chain of two kinds": {"current": 0, "total": 0},
    }
    assert errors == {
        "add of two types": ["builtins.TypeError", "unsupported operand type(s) for +: 'int' and 'str'"],
        "unknown task": ["celery.exceptions.NotRegistered", "'task_app.nowhere'"],
        "revoked": ["celery.exceptions.TaskRevokedError", "revoked"],
    }
    assert calls["wrong arguments"]["raised"][1] == "add() missing 1 required positional argument: 'b'"
    assert [event[0] for event in calls["ignored over HTTP"]["events"]] == [
        "task-received",
        "task-started",
        "task-succeeded",
    ]
    assert behaviour.more == {
        "answers": {
            "added": [200, [200, {"ready": True, "successful": True, "value": 5}]],
            "wrong": [200, [500, "INTERNAL SERVER ERROR"]],
        },
        "index": [404, "NOT FOUND"],
    }


@pytest.mark.parametrize("broker", ["redis", pytest.param("rabbitmq", marks=pytest.mark.whole)])
def test_installing_cantata_changes_nothing_of_it(alone: Alone, record: Record, broker: str) -> None:
    installed = record(FLASK, environment_with_cantata("flask-next-cantata.lock"), broker, FLASK.installed)

    assert "cantata.sums" in installed.ready["tasks"]
    assert installed.without_ours(FLASK) == alone("flask-next.lock", broker)
