"""Runs on a master that Sentinels watch: it is killed, or gives way, and runs go on with what the replica has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cantata.errors import UnavailableError
from cantata.ledger.ledger import Ledger
from cantata.ledger.redis.connection import connect
from cantata.ledger.redis.keys import run_key
from cantata.testing import ScriptedModels
from tests.integration.redis.fleets import Fleet, serving, use_everything
from tests.integration.redis.servers import OPEN, Watched, running, until

STEPS = 5


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A master and a replica under Sentinels."""
    watched = Watched(tmp_path_factory.mktemp("watched"), OPEN)
    with running(*watched.all):
        watched.form()
        yield watched


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, watched: Watched, models: ScriptedModels) -> Iterator[Fleet]:
    """A fleet that knows the Sentinels only."""
    with serving(tmp_path_factory.mktemp("fleet"), watched.url) as fleet:
        yield fleet


def test_a_run_is_accepted_when_replicas_have_it_if_they_are_waited_for(watched: Watched) -> None:
    replica = watched.replica
    with connect(watched.url) as redis:
        accept(Ledger(redis, replicas=1), "waited-for")
        assert replica.redis.hget(run_key(None, "waited-for"), "status") == "accepted"

        impatient = Ledger(redis, replicas=2, patience_s=3.0)
        with pytest.raises(
            UnavailableError, match=r"Redis made the change, but 1 of 2 replicas have it \(CANTATA_WAIT_REPLICAS\)"
        ):
            accept(impatient, "not-confirmed")
    watched.master.redis.flushdb()


@pytest.mark.thorough("another Redis; that runs go on when Redis is killed is held by gateway/test_chat.py")
@pytest.mark.slow("Sentinels take their time to agree")
def test_runs_go_on_when_the_master_is_killed(workers: Fleet, watched: Watched) -> None:
    old = watched.master
    rows = begin_rows(workers, "killed")

    old.kill()

    marks = check_rows(workers, "killed", rows)
    assert sum(marks.values()) <= len(rows) * (STEPS + 2), (
        f"only what was under way or just done is done again: {marks}"
    )
    assert watched.master is not old
    use_everything(workers, "after")
    assert workers.tracebacks() == []


@pytest.mark.thorough("another Redis; as the test above, with the other cause")
@pytest.mark.slow("Sentinels take their time to agree")
def test_runs_go_on_when_the_master_gives_way(workers: Fleet, watched: Watched) -> None:
    missing = watched.replica
    missing.start()
    until(lambda: missing.redis.info("replication").get("master_link_status") == "up", "the former master as a replica")
    old = watched.master
    rows = begin_rows(workers, "graceful")
    replicated = begun(workers, "graceful")
    old.redis.set("here", "so far")
    assert old.redis.wait(1, 20_000) == 1, "the replica has all of them"

    def has_given_way() -> bool:
        """Whether there is another master; the Sentinels are asked again for one, since a failover may be given up."""
        return watched.master is not old or (watched.sentinels[0].say("SENTINEL FAILOVER main") and False)

    until(has_given_way, "another master", 100)

    marks = check_rows(workers, "graceful", rows)
    # What the old master took after its replica was promoted is lost, for as long as the Sentinels let it: those steps are done again.
    done = {mark for mark in replicated if mark[:-1] + str(int(mark[-1]) + 1) in replicated}
    assert done, "a step was done before"
    assert {mark: marks[mark] for mark in done} == dict.fromkeys(done, 1)
    assert workers.tracebacks() == []
    for server in watched.servers:
        assert [(entry["username"], entry["object"]) for entry in server.redis.acl_log()] == [], (
            "of no user of our example"
        )


def accept(ledger: Ledger, run_id: str) -> None:
    """Take a run in that nobody will do."""
    ledger.runs.accept(
        run_id, kind="chain", request="{}", definitions="{}", timeout_s=60, max_attempts=3, max_steps=9, queue="nobody"
    )


def begin_rows(workers: Fleet, name: str) -> list[Any]:
    """Chains of steps that take their time, when the second step of one has begun."""
    rows = []
    for row in range(3):
        names = [f"{name}{row}{step}" for step in range(STEPS)]
        pairs = zip(names, [*names[1:], ""], strict=True)
        rows.append(
            workers.chain(
                *[workers.mark(each, 0.4, **({"next_node": after} if after else {})) for each, after in pairs]
            )
        )
    until(lambda: any(mark.startswith(name) and mark.endswith("1") for mark in workers.marks()), "steps under way")
    return rows


def begun(workers: Fleet, name: str) -> Counter[str]:
    """The steps of these rows that have begun, and how often."""
    return Counter(mark for mark in workers.marks() if mark.startswith(name))


def check_rows(workers: Fleet, name: str, rows: list[Any]) -> Counter[str]:
    """They succeed, and all their steps were done. Returns how often each was."""
    assert [row.result(60).success for row in rows] == [True] * len(rows)
    marks = begun(workers, name)
    assert set(marks) == {f"{name}{row}{step}" for row in range(len(rows)) for step in range(STEPS)}
    return marks
