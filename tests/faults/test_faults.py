"""The short form of `./run faults`: a little of chaos, deploys and recovery; strikes are in `test_points.py`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from cantata.engine.fleet import registry
from tests.faults import chaos, deploys, history, poison, recovery
from tests.faults.shapes import SHAPES, served_by
from tests.faults.stage import Stage, stage
from tests.waiting import at_best

NUMBERS = count()
PATIENCE_S = 60.0
OFF_S = 300.0


@pytest.mark.slow("twenty seconds of chaos")
@pytest.mark.thorough("the strikes at named points and the killed workers stay")
@pytest.mark.timeout(400)
def test_chaos_breaks_nothing(tmp_path: Path) -> None:
    runs, violations = chaos.wreak(tmp_path, 11, 20.0)

    assert violations == []
    assert runs > 0


@pytest.mark.slow("bad items among good runs, and killed workers")
@pytest.mark.thorough("tests/integration/state/test_parking.py and test_isolation.py hold each sort by itself")
@pytest.mark.timeout(600)
def test_bad_items_cost_themselves_alone(tmp_path: Path) -> None:
    _, violations = poison.poison(tmp_path, 35, 8.0, is_short=True)

    assert violations == []


@pytest.mark.slow("two deploys under load")
@pytest.mark.thorough("the worker of an older version stays")
@pytest.mark.timeout(300)
def test_a_deploy_fails_no_run_and_changes_none_under_way(tmp_path: Path) -> None:
    report = deploys.roll_out(tmp_path, 1, 6.0, every_s=3.0, drain_s=1.0, margin_s=9.0)

    assert report.violations == []
    assert report.runs > 0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A stack that is not hurt itself; workers beside it are, or are odd."""
    with stage(tmp_path_factory.mktemp("world")) as world:
        yield world
        assert history.check(world.journal, world.client.redis) == []


@pytest.mark.slow("a worker is killed, and its leases must run out")
@pytest.mark.timeout(300)
def test_steps_of_a_killed_worker_run_again_soon_and_a_step_of_a_live_one_is_not_doubled(world: Stage) -> None:
    with recovery.blocked(world, seconds=12.0, blocks_s=10.0):
        p99_s = at_best(
            lambda: recovery.measure(world, 4, (0.5, 2.0), label=f"recovery{next(NUMBERS)}").p99_s, recovery.BOUND_S
        )

    assert p99_s <= recovery.BOUND_S


@pytest.mark.slow("it waits for real time, which is what it tests")
def test_a_queue_that_nobody_serves_is_told_and_its_run_goes_on_when_a_worker_comes(world: Stage) -> None:
    run = world.submit(SHAPES["unserved"], "unserved")
    told = next(event for event in run.log(timeout_s=PATIENCE_S) if event.type == "unserved")

    with world.extra_worker("unserved"):
        record = run.wait(PATIENCE_S)

    assert told.explanation == "no worker serves queue 'unserved': start one with `submit worker unserved`"
    assert record.status == "succeeded"


@pytest.mark.slow("its workers start from nothing, with another clock")
def test_a_clock_five_minutes_off_is_told_and_corrupts_nothing(world: Stage, tmp_path: Path) -> None:
    queues = {"ahead": OFF_S, "behind": -OFF_S}
    for queue, off_s in queues.items():
        folder = tmp_path / queue
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(
            f"import time\n\nright = time.time\ntime.time = lambda: right() + {off_s}\n"
        )

    with (
        world.extra_worker("ahead", PYTHONPATH=str(tmp_path / "ahead")) as ahead,
        world.extra_worker("behind", PYTHONPATH=str(tmp_path / "behind")) as behind,
    ):
        runs = [world.submit(served_by(queue), queue) for queue in queues]
        statuses = [run.wait(PATIENCE_S).status for run in runs]
        found = {worker.pid: worker.clock_off_s for worker in registry.workers(world.client.redis)}
        told = world.client.fleet_warnings()

    assert statuses == ["succeeded", "succeeded"]
    assert [found[ahead], found[behind]] == pytest.approx([OFF_S, -OFF_S], abs=15)
    assert len([text for text in told if "s off Redis's" in text]) == 2
    logs = [path.read_text() for queue in queues for path in world.folder.glob(f"{queue}-*.log")]
    assert ["clock_off" in log for log in logs] == [True, True]


@pytest.mark.thorough("that older workers are named is held by fleet/test_bad_days.py")
@pytest.mark.slow("its worker starts from nothing")
def test_a_worker_of_an_older_version_hands_back_what_it_does_not_know(world: Stage) -> None:
    with world.extra_worker("old", program=("-m", "tests.faults.old_worker")):
        run = world.submit(served_by("old"), "old")
        record = run.wait(PATIENCE_S)
        told = world.client.fleet_warnings()

    refused = [event for event in run.log() if event.type == "refused"]
    assert record.status == "succeeded"
    assert refused, "it was the old worker that came to the gathering first"
    assert "0.0.1" in "".join(told)
