"""The Django project of Celery's examples, as it is: its own pins, its worker as its authors start it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.acceptance.neighbours.behaviour import Behaviour
from tests.acceptance.neighbours.conftest import Record
from tests.acceptance.neighbours.environments import environment, environment_with_cantata
from tests.acceptance.neighbours.projects import DJANGO

pytestmark = [
    pytest.mark.thorough("no other test runs an application that somebody else wrote"),
    pytest.mark.slow("a project of others starts in processes of its own, with a broker of its own"),
]
BROKERS = pytest.mark.parametrize("broker", ["redis", pytest.param("rabbitmq", marks=pytest.mark.whole)])
Alone = Callable[[str], Behaviour]


@pytest.fixture(scope="module")
def alone(record: Record) -> Alone:
    """Its behaviour without us, recorded once for each broker."""

    @cache
    def recorded(broker: str) -> Behaviour:
        return record(DJANGO, environment("django.lock"), broker, "")

    return recorded


@BROKERS
def test_each_of_its_tasks_does_what_it_says(alone: Alone, broker: str) -> None:
    behaviour = alone(broker)

    results = {label: call["result"] for label, call in behaviour.calls.items() if call.get("state") == "SUCCESS"}
    errors = {label: call["error"][:2] for label, call in behaviour.calls.items() if call.get("error")}
    raised = {label: call["raised"][0] for label, call in behaviour.calls.items() if call["raised"]}
    assert results == {
        "add": 5,
        "mul": 20,
        "xsum": 6,
        "count": 1,
        "rename": None,
        "chain": 12,
        "chord": 6,
        "link": 2,
        "in place": 3,
    }
    assert errors == {
        "rename unknown": ["demoapp.models.Widget.DoesNotExist", "Widget matching query does not exist."],
        "add of two types": ["builtins.TypeError", "unsupported operand type(s) for +: 'int' and 'str'"],
        "chain with an error": ["builtins.TypeError", "unsupported operand type(s) for +: 'int' and 'NoneType'"],
        "unknown task": ["celery.exceptions.NotRegistered", "'proj.nowhere'"],
        "revoked": ["celery.exceptions.TaskRevokedError", "revoked"],
    }
    assert raised == {"wrong arguments": "builtins.TypeError", "not JSON": "kombu.exceptions.EncodeError"}
    assert behaviour.more == {"group": [0, 1, 4], "widget": "nut"}


@BROKERS
def test_a_monitor_sees_the_events_of_each_task(alone: Alone, broker: str) -> None:
    events = {
        label: [event[0] for event in call["events"]] for label, call in alone(broker).calls.items() if "events" in call
    }

    done = ["task-received", "task-started", "task-succeeded"]
    assert events["add"] == events["chord"] == events["ignored result"] == done
    assert events["rename unknown"] == [*done[:2], "task-failed"]
    assert events["unknown task"] == ["task-failed"]


ADDED = """
from celery.signals import task_success
app.conf.task_send_sent_event = True
@app.task(name="spare")
def spare(): pass
task_success.connect(lambda **_: None, weak=False)
"""


def test_two_recordings_differ_in_what_was_changed_and_nothing_else(alone: Alone, record: Record) -> None:
    before, after = alone("redis"), record(DJANGO, environment("django.lock"), "redis", ADDED)

    assert before != after
    assert {name for name, value in vars(before).items() if getattr(after, name) != value} == {
        "alone",
        "calls",
        "log",
        "others",
        "ready",
        "worker",
    }
    assert {name for name, value in before.alone.items() if after.alone[name] != value} == {
        "conf",
        "receivers",
        "routes",
        "tasks",
    }
    assert after.log - before.log == {"  . spare": 1}
    assert "task-sent" in [event[0] for event in after.calls["add"]["events"]]
    assert after.calls["in place"] == before.calls["in place"]


@BROKERS
def test_installing_cantata_changes_nothing_of_it(alone: Alone, record: Record, broker: str) -> None:
    installed = record(DJANGO, environment_with_cantata("django-cantata.lock"), broker, DJANGO.installed)

    assert "cantata.sums" in installed.ready["tasks"]
    assert installed.without_ours(DJANGO) == alone(broker)
