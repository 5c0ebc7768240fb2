"""Invenio, Girder Worker and pretalx: what they did alone they do with Cantata too. Each has its own pins and its own broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from tests.acceptance.neighbours.behaviour import Behaviour
from tests.acceptance.neighbours.conftest import Record
from tests.acceptance.neighbours.environments import environment, environment_with_cantata
from tests.acceptance.neighbours.projects import GIRDER, INVENIO, PRETALX, Project

pytestmark = [
    pytest.mark.thorough("no other test runs an application that somebody else wrote"),
    pytest.mark.slow("a project of others starts in processes of its own, with a broker of its own"),
]
NUMBER = "girder_worker._test_plugins.tasks.celery_task"
REVOKED = ["celery.exceptions.TaskRevokedError", "revoked"]


@dataclass(frozen=True)
class Expected:
    """What the calls of a project come to when it is alone."""

    results: Mapping[str, Any]
    errors: Mapping[str, list[str]]
    raised: Mapping[str, str]
    """What a caller is told at once."""
    more: Mapping[str, Any]
    lines: Mapping[str, int]
    """Lines of its worker, and how often."""


EXPECTED = {
    "invenio": Expected(
        results=dict.fromkeys(["letter", "with a file", "by keyword", "chain", "in place"]),
        errors={
            "no letter": ["builtins.TypeError", "'int' object is not iterable"],
            "no base64": ["builtins.TypeError", "argument should be a bytes-like object or ASCII string, not 'int'"],
            "unknown task": ["celery.exceptions.NotRegistered", "'invenio_mail.nowhere'"],
            "revoked": REVOKED,
        },
        raised={
            "too large a file": "invenio_mail.errors.AttachmentOversizeException",
            "wrong arguments": "builtins.TypeError",
            "not serializable": "kombu.exceptions.EncodeError",
        },
        more={"group": [None, None]},
        lines={"It is due.": 8, "To: ada@localhost": 8, "Content-Disposition: loan.txt; filename": 1},
    ),
    "girder": Expected(
        results={"number": 5, "by keyword": 6, "with a title": 7, "chain": 1, "link": 2, "in place": 3},
        errors={
            "unknown task": ["celery.exceptions.NotRegistered", "'girder_worker.nowhere'"],
            "revoked": REVOKED,
        },
        raised={"wrong arguments": "builtins.TypeError"},
        more={"group": [0, 1, 2]},
        lines={f"[TIME: INFO/MainProcess] Task {NUMBER}[ID] received": 11},
    ),
    "pretalx": Expected(
        results=dict.fromkeys(
            [
                "letter", "with HTML", "scores of no event", "services of no event", "pages of no event", "no picture", "no file",
                "chain",
            ]
        ),
        errors={
            "of no event": ["pretalx.event.models.event.Event.DoesNotExist", "Event matching query does not exist."],
            "no field": ["builtins.AttributeError", "'str' object has no attribute 'path'"],
            "unknown task": ["celery.exceptions.NotRegistered", "'pretalx.nowhere'"],
            "revoked": REVOKED,
        },
        raised={"wrong arguments": "builtins.TypeError", "not JSON": "builtins.TypeError"},
        more={"group": [None, None], "tables": 55},
        lines={"It is accepted.": 6, "To: ada@localhost": 6},
    ),
}  # fmt: skip
APPLICATIONS = pytest.mark.parametrize(
    ("project", "broker"),
    [
        pytest.param(INVENIO, "redis", id="invenio"),
        pytest.param(GIRDER, "rabbitmq", id="girder"),
        pytest.param(PRETALX, "redis", id="pretalx", marks=pytest.mark.whole),
    ],
)
Alone = Callable[[Project, str], Behaviour]


@pytest.fixture(scope="module")
def alone(record: Record) -> Alone:
    """The behaviour of each without us, recorded once."""

    @cache
    def recorded(name: str, broker: str) -> Behaviour:
        (project,) = (each for each in (INVENIO, GIRDER, PRETALX) if each.name == name)
        return record(project, environment(f"{name}.lock"), broker, "")

    return lambda project, broker: recorded(project.name, broker)


@APPLICATIONS
def test_each_of_its_tasks_does_what_it_says(alone: Alone, project: Project, broker: str) -> None:
    behaviour, expected = alone(project, broker), EXPECTED[project.name]

    calls = behaviour.calls
    assert {
        label: call["result"] for label, call in calls.items() if call.get("state") == "SUCCESS"
    } == expected.results
    assert {label: call["error"][:2] for label, call in calls.items() if call.get("error")} == expected.errors
    assert {label: call["raised"][0] for label, call in calls.items() if call["raised"]} == expected.raised
    assert behaviour.more == expected.more
    assert {line: behaviour.log[line] for line in expected.lines} == expected.lines
    assert [event[0] for event in calls["ignored result"]["events"]] == [
        "task-received",
        "task-started",
        "task-succeeded",
    ]


@APPLICATIONS
def test_installing_cantata_changes_nothing_of_it(alone: Alone, record: Record, project: Project, broker: str) -> None:
    installed = record(project, environment_with_cantata(f"{project.name}-cantata.lock"), broker, project.installed)

    assert f"cantata.{project.chain}" in installed.ready["tasks"]
    assert installed.without_ours(project) == alone(project, broker)
