"""A look for the results of tasks: a step, a result or an entry that cannot be read is in the way of no other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from celery import Celery, states

from cantata.engine import isolation
from cantata.engine.dispatch.celery_app import make_app
from cantata.flows.graph import Outcome
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import AttemptRecord, Begun
from cantata.ledger.redis.keys import run_key
from cantata_workers.process.process import Process
from cantata_workers.tools.celery_tasks.result_watcher import ResultWatcher
from tests.integration.state.play import Play, work
from tests.integration.test_threads import url_of

STEPS = [f"s{number}" for number in range(10)]
BAD = "s4"
DEEP = "[" * 100_000 + "]" * 100_000
ENTRIES = ("garbage", "run|x|s1", "gone|1|a", "|1|", "run|1|missing", "run|9|s1")


class Watched(ResultWatcher):
    """A watcher that keeps what it records and revokes."""

    def __init__(self, process: Process, folder: Path) -> None:
        self.recorded: dict[str, AttemptRecord] = {}
        self.revoked: list[str] = []
        theirs = Celery("shop", broker="memory://", backend=folder.as_uri(), set_as_current=False)
        super().__init__(make_app("memory://"), theirs, process, self.keep)

    def keep(self, begun: Begun, record: AttemptRecord) -> None:
        """Keep the outcome of a step."""
        self.recorded[begun.step_id] = record

    def revoke(self, task_ids: Sequence[str]) -> None:
        """Keep what would be revoked."""
        self.revoked += task_ids


@pytest.fixture
def watcher(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """A watcher, and ten steps whose tasks have ended."""
    monkeypatch.setattr(isolation, "_logged_at", {})
    play = Play(ledger)
    play.plan(*(work(step_id, timeout_s=600.0) for step_id in STEPS))
    for step_id in STEPS:
        play.commit(play.begin(step_id), outcome=Outcome(status="dispatched", retry_in_s=5))
    process = Process(url_of(ledger.redis), "worker")
    watcher = Watched(process, tmp_path)
    for step_id in STEPS:
        watcher.user_app.backend.store_result(watcher.task_id("run", 1, step_id), step_id, states.SUCCESS)
    yield watcher
    watcher.stop()
    process.stop()
    ledger.redis.flushdb()  # with what a test has damaged


def outputs(watcher: Watched) -> dict[str, str]:
    """The outputs that were recorded."""
    return {step_id: record.output for step_id, record in watcher.recorded.items() if record.outcome.status == "done"}


@pytest.mark.parametrize("part", [":state", ":steps"])
@pytest.mark.parametrize("text", ["no JSON", "[1]", DEEP])
def test_a_step_that_cannot_be_read_is_in_the_way_of_no_other(
    ledger: Ledger, watcher: Watched, part: str, text: str
) -> None:
    ledger.redis.hset(f"{run_key(None, 'run')}{part}", BAD, text)

    watcher.check([f"run|1|{step_id}" for step_id in STEPS], [])

    good = {step_id: f'"{step_id}"' for step_id in STEPS if step_id != BAD}
    assert {step_id: text for step_id, text in outputs(watcher).items() if step_id != BAD} == good


def test_entries_that_name_no_step_are_in_the_way_of_no_other(watcher: Watched) -> None:
    watcher.check([*ENTRIES, *(f"run|1|{step_id}" for step_id in STEPS)], ["garbage", "run|x|s1", "run|1|s2"])

    assert [*outputs(watcher)] == STEPS
    assert watcher.revoked == [watcher.task_id("run", 1, "s2")]


@pytest.mark.parametrize("text", ["no JSON", "[1]", '{"status": 1}', DEEP])
def test_a_result_that_cannot_be_read_fails_its_step_and_no_other(watcher: Watched, tmp_path: Path, text: str) -> None:
    (path,) = (path for path in tmp_path.iterdir() if watcher.task_id("run", 1, BAD) in path.name)
    path.write_text(text)

    watcher.check([f"run|1|{step_id}" for step_id in STEPS], [])

    assert [*outputs(watcher)] == [step_id for step_id in STEPS if step_id != BAD]
    if BAD in watcher.recorded:
        error = watcher.recorded[BAD].outcome.error
        assert error is not None
        assert error.code == "unreadable_result"
