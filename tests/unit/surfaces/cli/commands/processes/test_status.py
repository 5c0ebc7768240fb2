"""`submit status`: the line about this folder's stack."""

from __future__ import annotations

import pytest

from cantata.engine.fleet.registry import unserved
from cantata.operation.embedded import StackStatus
from cantata.operation.health.checks import HealthReport, ok
from cantata.surfaces.cli.commands.processes import status


@pytest.mark.parametrize("has_redis", [False, True])
def test_another_redis_needs_no_stack_here(capsys: pytest.CaptureFixture[str], has_redis: bool) -> None:
    found = HealthReport(status="ok", checks=(ok("Redis", "fine"),)) if has_redis else None

    status._print_status(StackStatus("/shop", running=False), found, [], as_json=False)

    assert ("/shop: no running stack" in capsys.readouterr().out) is not has_redis


def test_a_dead_worker_of_an_application_is_started_again_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANTATA_APP", "shop.celery:app")

    assert unserved("tasks") == "no worker serves queue 'tasks': start one with `submit worker`"
    assert unserved("gpu").endswith("`submit worker gpu`")
