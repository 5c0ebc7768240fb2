"""Invenio, Girder Worker and pretalx: what they did alone they do with Cantata too. Each has its own pins and its own broker."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.acceptance.neighbours.behaviour import Behaviour
from tests.acceptance.neighbours.conftest import Record
from tests.acceptance.neighbours.environments import environment, environment_with_cantata
from tests.acceptance.neighbours.projects import GIRDER, INVENIO, PRETALX, Project

pytestmark = [
    pytest.mark.thorough("no other test runs an application that somebody else wrote"),
    pytest.mark.slow("a project of others starts in processes of its own, with a broker of its own"),
]
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
    behaviour = alone(project, broker)
    import json, sys
    for label, call in behaviour.calls.items():
        print(label, call.get("state"), call.get("result"), (call.get("error") or [])[:2], (call["raised"] or [])[:2], [e[0] for e in call.get("events", [])])
    print(behaviour.more)
    print("\n".join(behaviour.log))


@APPLICATIONS
def test_installing_cantata_changes_nothing_of_it(alone: Alone, record: Record, project: Project, broker: str) -> None:
    installed = record(project, environment_with_cantata(f"{project.name}-cantata.lock"), broker, project.installed)

    import sys; sys.path.insert(0, "/tmp/w/h41B-scratch"); import diff; diff.show(installed.without_tasks("cantata."), alone(project, broker))
    assert f"cantata.{project.chain}" in installed.ready["tasks"]
    assert installed.without_tasks("cantata.") == alone(project, broker)
