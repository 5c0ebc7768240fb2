"""The beat schedule of a Celery application becomes tools and schedules that a configuration accepts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from cantata.config import loading
from cantata.flows.schedules import Schedule
from cantata.surfaces.cli.main import submit

APP = """
from datetime import timedelta
from celery import Celery
from celery.schedules import BaseSchedule, crontab

app = Celery("beaten", broker="memory://")
app.conf.timezone = "Europe/Berlin"


class solar(BaseSchedule):
    pass  # Celery itself has one, which needs a library



@app.task(name="beaten.add")
def add(a, b=1):
    return a + b


@app.task(name="beaten.many", bind=True)
def many(self, *numbers):
    return sum(numbers)


app.conf.beat_schedule = {
    "every 30 seconds": {"task": "beaten.add", "schedule": 30.0, "args": (16,), "kwargs": {"b": 2}},
    "weekdays": {"task": "beaten.add", "schedule": crontab(minute=30, hour="7,12", day_of_week="monday-friday"), "args": (1, 2)},
    "quarters": {"task": "elsewhere.sum", "schedule": crontab(minute="*/15"), "kwargs": {"n": [1]}, "options": {"queue": "slow"}},
    "daily": {"task": "beaten.add", "schedule": timedelta(days=1), "kwargs": {"a": 1}},
    "dawn": {"task": "beaten.add", "schedule": solar(), "kwargs": {"a": 1}},
    "both": {"task": "beaten.add", "schedule": crontab(minute=0, hour=0, day_of_month="13", day_of_week="fri"), "kwargs": {"a": 1}},
    "nameless": {"task": "elsewhere.sum", "schedule": 10, "args": (1,)},
    "variadic": {"task": "beaten.many", "schedule": 10, "args": (1, 2)},
    "expiring": {"task": "beaten.add", "schedule": 10, "kwargs": {"a": 1}, "options": {"expires": 5}},
    "misfit": {"task": "beaten.add", "schedule": 10, "args": (1, 2, 3)},
    "quick": {"task": "beaten.add", "schedule": 0.1, "kwargs": {"a": 1}},
}
"""


def test_entries_are_imported_and_those_that_cannot_be_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beaten.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    done = CliRunner().invoke(submit, ["schedules", "import", "beaten:app"])

    assert done.exit_code == 1, "some are left out"
    found = yaml.safe_load(done.stdout)
    schedules = {name: Schedule.model_validate(each) for name, each in found["schedules"].items()}
    assert {name: (each.cron, each.every, each.timezone, each.overlap) for name, each in schedules.items()} == {
        "every-30-seconds": (None, 30, "UTC", "allow"),
        "weekdays": ("30 7,12 * * mon-fri", None, "Europe/Berlin", "allow"),
        "quarters": ("*/15 * * * *", None, "Europe/Berlin", "allow"),
        "daily": (None, 86_400, "UTC", "allow"),
    }
    nodes = {name: each["chain"]["nodes"][0] for name, each in found["schedules"].items()}
    assert {name: (node["name"], node["input"]) for name, node in nodes.items()} == {
        "every-30-seconds": ("beaten.add", {"a": 16, "b": 2}),
        "weekdays": ("beaten.add", {"a": 1, "b": 2}),
        "quarters": ("elsewhere.sum@slow", {"n": [1]}),
        "daily": ("beaten.add", {"a": 1}),
    }
    assert found["tools"] == {
        "beaten.add": {"task": "beaten.add"},
        "elsewhere.sum@slow": {"task": "elsewhere.sum", "queue": "slow"},
    }
    faults = dict(line.removeprefix("submit: ").split(": ", 1) for line in done.stderr.splitlines())
    assert "a schedule of type 'solar' cannot be imported" in faults["dawn"]
    assert "day_of_month and day_of_week both match" in faults["both"]
    assert "write them as 'kwargs'" in faults["nameless"]
    assert "keyword arguments only" in faults["variadic"]
    assert "the options expires have no counterpart" in faults["expiring"]
    assert "the arguments do not fit the task 'beaten.add'" in faults["misfit"]
    assert "greater than or equal to 1" in faults["quick"]
    (tmp_path / "config.yaml").write_text("version: 1\n" + done.stdout)
    assert len(loading.load_sound(tmp_path / "config.yaml").definitions.schedules) == 4
