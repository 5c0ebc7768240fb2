"""Runs of every sort go on from one release to the next, and back: of chains, agents, teams, workflows and each frontend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import releases
from tests.faults.releases import Release


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, Release]:
    return releases.both(tmp_path_factory.mktemp("before"))


@pytest.mark.thorough("integration/test_release_before.py has each release execute a chain of the other")
@pytest.mark.slow("workers and clients of two releases start from nothing")
@pytest.mark.parametrize("is_rollback", [False, True], ids=["deploy", "rollback"])
@pytest.mark.timeout(400)
def test_runs_that_one_release_began_are_finished_by_the_other(
    both: tuple[Release, Release], tmp_path: Path, *, is_rollback: bool
) -> None:
    before, now = both
    report = releases.change(tmp_path, *((now, before) if is_rollback else (before, now)))

    assert report.violations == []
    assert report.open == dict.fromkeys(releases.OPEN, 2)
    assert set(releases.FRONTENDS) <= set(report.open)
