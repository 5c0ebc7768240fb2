"""A backup under load and its restoration, as docs/operations.md has them: every run of the copy ends, and nothing finished is repeated."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from cantata import Client
from cantata.errors import UnknownRunError
from tests.integration.redis.fleets import Fleet, definitions, serving
from tests.integration.redis.servers import EXAMPLES, PASSWORD, Server, running, until

TOP = EXAMPLES.parents[1]
PAGE = (TOP / "docs" / "operations.md").read_text().partition("## Backup and restore")[2].partition("\n## ")[0]
RUNS, LATER = 240, 20
STEPS = "abc"
STEP_S = 0.02


def commands(folder: Path, target: Path, *programs: str) -> list[list[str]]:
    """The commands of the page that call one of these programs, for another folder of Redis's and another target."""
    lines = [
        line.strip().partition("  #")[0]
        for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
        for line in block.splitlines()
    ]
    words = [shlex.split(line) for line in lines if line]
    moved = {"/var/lib/redis": str(folder), "/var/lib/redis/": str(folder), "/backup/today": str(target)}
    moved |= {"/backup/today/appendonlydir": str(target / "appendonlydir")}
    return [[moved.get(word, word) for word in each] for each in words if each[0] in programs]


def told(words: list[str], **environment: str) -> str:
    done = subprocess.run(
        words, cwd=TOP, capture_output=True, text=True, timeout=50, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def started(folder: Path) -> Server:
    """A Redis with the files of the example, and a user for the test."""
    folder.mkdir(exist_ok=True)
    users = folder / "users.acl"
    users.write_text((EXAMPLES / "users.acl").read_text() + "user admin on >admin ~* &* +@all\n")
    options = {"aclfile": str(users), "auto-aof-rewrite-min-size": "100kb", "auto-aof-rewrite-percentage": "20"}
    return Server(folder, options, file=EXAMPLES / "redis.conf", user="admin", password="admin")


def url_of(server: Server) -> str:
    return f"redis://cantata:{PASSWORD}@{server.place}/0"


def submitted(fleet: Fleet, numbers: range) -> dict[str, int]:
    """Chains of three tools that write into a file: run → number."""
    found = {}
    for number in numbers:
        names = [f"{number}{step}" for step in STEPS]
        following = [{"next_node": name} for name in names[1:]]
        nodes = [fleet.mark(name, STEP_S, **more) for name, more in zip(names, [*following, {}], strict=True)]
        found[fleet.chain(*nodes).run_id] = number
    return found


def kill_all(fleet: Fleet) -> None:
    for worker in fleet.workers.values():
        worker.kill()
        worker.wait()


@pytest.mark.slow("two fleets, and a load of hundreds of runs")
@pytest.mark.timeout(180)
def test_a_backup_under_load_is_restored_and_its_runs_end_without_repeating_what_was_finished(tmp_path: Path) -> None:
    target, first, second = tmp_path / "copy", tmp_path / "first", tmp_path / "second"
    (tmp_path / "fleet").mkdir()
    (tmp_path / "again").mkdir()
    server = started(first)
    with running(server), serving(tmp_path / "fleet", url_of(server)) as fleet:
        runs = submitted(fleet, range(RUNS))
        until(lambda: len(fleet.marks()) > RUNS, "a third of the steps")

        (look,) = commands(server.folder, target, "redis-cli")
        look = [look[0], "-p", str(server.port), *look[1:]]
        state = told([word for word in look if word != "--askpass"], REDISCLI_AUTH=PASSWORD)
        assert "aof_enabled:1" in state
        assert "aof_last_write_status:ok" in state
        (copy,) = commands(server.folder, target, "deploy/redis/backup.sh")
        told(copy)

        unknown = submitted(fleet, range(RUNS, RUNS + LATER))
        copied = len(fleet.marks())
        until(lambda: len(fleet.marks()) > copied + 40, "steps after the copy")
        kill_all(fleet)
        assert int(server.redis.info("persistence")["aof_base_size"]) > 0
        journal = fleet.journal

    restored = started(second)
    with running(restored):
        restored.kill()  # it has made a folder of its own: the page wants an empty one
        (restored.folder / "appendonlydir").rename(tmp_path / "moved-away")
        (copy,) = commands(restored.folder, target, "cp")
        told(copy)
        restored.start()
        restored.wait()
        before = len(journal.read_text().splitlines())
        with Client(url_of(restored), config=definitions()) as client:
            done = {
                event.step
                for run_id in runs
                for event in client.run(run_id).log(timeout_s=0)
                if event.type == "done" and event.step and event.step[-1] in STEPS
            }
            over = {run_id for run_id in runs if client.run(run_id).status() == "succeeded"}
            assert 0 < len(over) < RUNS, "the copy was made in the midst of the load"
            assert len(done) > RUNS / 2
            for run_id in unknown:
                with pytest.raises(UnknownRunError):
                    client.run(run_id).status()
        with serving(tmp_path / "again", url_of(restored)) as fleet:
            results = {run_id: fleet.client.run(run_id).wait(60) for run_id in runs}
            assert {record.status for record in results.values()} == {"succeeded"}
            again = [line.split()[0] for line in journal.read_text().splitlines()[before:]]
            assert done.isdisjoint(again), "finished in the copy, and executed again"
            assert {line.split()[0] for line in journal.read_text().splitlines()} >= {
                f"{number}{step}" for number in runs.values() for step in STEPS
            }
            load = fleet.client.fleet.load()
            assert (load.runs_open, load.steps_ready, sum(load.leased.values())) == (0, 0, 0)
            assert fleet.chain(fleet.mark("new")).result(40).success
            assert fleet.submit("status").returncode == 0
