"""Of whatever a run was, each fork and retry is sound at any time, comes to its end, and does nothing again that it took over."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from cantata.errors import ConfigError
from cantata.features.forks import fork_store
from cantata.features.forks import rewind as planning
from cantata.flows.forks import Fork
from cantata.flows.graph import Outcome
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Begun
from cantata.ledger.redis.keys import shard_of
from tests.examples import examples
from tests.integration.state import invariants
from tests.integration.state.shapes import LATER_S
from tests.integration.state.test_ledger_properties import RUN, SHARD, Runs

FORK = next(name for name in (f"fork{n}" for n in range(10_000)) if shard_of(name) == shard_of(RUN))
MOST = 6  # forks of one run


class Forks(Runs):
    """A run as it may go, forked in several places when it is over."""

    def teardown(self) -> None:
        """Whatever happened, the run can be forked."""
        if sys.exc_info()[0] is not None:
            return
        self.bring_to_its_end()
        source = invariants.take(self.redis, RUN)
        past = fork_store.read(self.ledger, RUN)
        steps = sorted(past.steps)
        for from_step in (None, *steps[:: max(1, len(steps) // MOST)]):
            try:
                fork = planning.retry(past) if from_step is None else planning.fork(past, from_step)
            except ConfigError:
                continue
            self.play(fork, source)
            assert invariants.take(self.redis, RUN) == source, "the source stays as it was"
        super().teardown()

    def play(self, fork: Fork, source: invariants.Picture) -> None:
        fork_store.make(self.ledger, FORK, fork, request={}, given=None, labels={})
        anew = {redone.step_id for redone in fork.restarted}
        kept = source.cells.keys() - anew - set(fork.removed)
        while self.check(kept).status == "running":
            self.go_on()
        run = self.check(kept)
        assert run.status == "succeeded", "what is done anew is done well"
        assert all(
            run.cells[step_id].word == source.cells[step_id].word and not run.cells[step_id].attempt for step_id in kept
        )
        assert all(run.outs.get(step_id) == source.outs.get(step_id) for step_id in kept - {"@start"}), (
            "outputs are taken over"
        )
        assert all(run.cells[step_id].attempt <= 1 for step_id in anew)
        invariants.check_keys(self.redis, FORK)
        for key in self.redis.scan_iter(match=f"{SHARD}:run:{FORK}*"):
            self.redis.delete(key)
        for index in ("runs", "finished"):
            self.redis.zrem(f"{SHARD}:{index}", FORK)

    def check(self, kept: set[str]) -> invariants.Picture:
        picture = invariants.take(self.redis, FORK)
        invariants.check(picture)
        assert kept <= picture.cells.keys()
        return picture

    def go_on(self) -> None:
        """Do one thing that may be done."""
        cells = invariants.take(self.redis, FORK).cells
        sent = sorted(step_id for step_id, cell in cells.items() if cell.word == "sent")
        parked = sorted(step_id for step_id, cell in cells.items() if cell.word == "waiting_signal")
        assert sent or parked, "a fork never hangs"
        if not sent:
            assert self.ledger.steps.signal(FORK, parked[0], None)[0] == "taken"
            return
        begun = self.ledger.steps.begin(FORK, sent[0], "worker0")
        assert isinstance(begun, Begun)
        assert self.ledger.steps.commit(begun, Outcome(), output="null", info={}).result == "ok"


@pytest.mark.slow("many runs of many steps, and forks of each")
@pytest.mark.timeout(600)  # to find the smallest way to fail, if it fails
def test_forks_of_whatever_a_run_was_are_sound(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Forks, "ledger", Ledger(ledger.redis, lease_s=LATER_S), raising=False)
    run_state_machine_as_test(
        Forks,
        settings=settings(
            parent=examples(60),
            stateful_step_count=30,
            derandomize=True,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
