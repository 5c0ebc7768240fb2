"""Runs of the release before the move are executed by workers of this one, and the other way round: also steps of functions of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from cantata.client.client import Client
from cantata.flows.events import Action, RunClosed
from cantata.flows.wire import ChainResponse
from cantata.ledger.ledger import Ledger
from tests import release_before
from tests.integration.state.play import Play, wait

CONFIG = """
version: 1
tools:
  faults: {function: "cantata.workers.tools.mcp:faults", queue: agents}
  value: {function: "cantata.frontends.langswarm.workflows.inputs:value", cheap: true}
  check: {function: "cantata.frontends.langswarm.workflows.inputs:check", cheap: true}
  read: {function: "cantata.frontends.langswarm.filesystem:read_file", values: {folder: FOLDER, grants: {".": read_only}}}
chains:
  all:
    entry_node: faults
    nodes:
      - {node_id: faults, kind: tool, name: faults, input: {servers: {}, folder: null}, next_node: value}
      - {node_id: value, kind: tool, name: value, input_map: {value: input.file}, next_node: check}
      - {node_id: check, kind: tool, name: check, input: {given: {}, schema: {type: object}}, next_node: read}
      - {node_id: read, kind: tool, name: read, input_map: {path: value}}
"""
SUBMIT = """
import sys
from cantata import Client
with Client(config=sys.argv[1]) as client:
    print(client.submit_chain("all", initial_input={"file": "note.txt"}).run_id)
"""
WORKERS = {"before": "cantata.workers", "now": "cantata_workers"}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release_before.unpack(tmp_path_factory.mktemp("before"))


READ = """
import sys
from cantata import Client
with Client() as client:
    for run_id in sys.argv[1:]:
        print([event.type for event in client.run(run_id).log(timeout_s=0)])
    client.run(sys.argv[1]).signal("ask", True)
    client.run(sys.argv[2]).cancel()
"""


@contextmanager
def working(module: str, environment: dict[str, str], folder: Path) -> Iterator[None]:
    """Have one worker for all queues."""
    command = [
        sys.executable,
        "-P",
        "-m",
        module,
        "coordinator",
        "tools",
        "agents",
        "--name",
        "all",
        "--concurrency",
        "2",
    ]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log) as worker,
    ):
        try:
            yield
        finally:
            worker.terminate()


@pytest.mark.slow("its processes import all that they need, one of them from another release")
@pytest.mark.parametrize(("client", "worker"), [("before", "now"), ("now", "before")])
def test_runs_of_one_release_are_executed_by_the_other(
    client: str, worker: str, valkey: Redis, before: Path, tmp_path: Path
) -> None:
    valkey.flushdb()
    url = f"unix://{valkey.connection_pool.connection_kwargs['path']}"
    usual = {**os.environ, "REDIS_URL": url}
    environments = {"before": {**usual, "PYTHONPATH": str(before)}, "now": usual}
    (tmp_path / "note.txt").write_text("tea is hot")
    (tmp_path / "shop.yaml").write_text(CONFIG.replace("FOLDER", str(tmp_path)))

    command = [sys.executable, "-P", "-c", SUBMIT, str(tmp_path / "shop.yaml")]
    submitted = subprocess.run(
        command, env=environments[client], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert submitted.returncode == 0, submitted.stderr
    with working(WORKERS[worker], environments[worker], tmp_path), Client(url) as own:
        result = own.run(submitted.stdout.strip()).result(timeout_s=100)

    assert isinstance(result, ChainResponse)
    assert (result.error, result.final_output) == (None, "tea is hot")


def test_each_release_reads_the_events_of_the_other_with_and_without_an_author(
    ledger: Ledger, before: Path, tmp_path: Path
) -> None:
    url = f"unix://{ledger.redis.connection_pool.connection_kwargs['path']}"
    ended, open_one = Play(ledger, "ended"), Play(ledger, "open")
    for play in (ended, open_one):
        play.plan(wait("first"), wait("ask"))
    with Client(url) as client:
        client.run("ended").signal("first", 1, by="ann")
        client.run("open").signal("first", 1)

        environment = {**os.environ, "REDIS_URL": url, "PYTHONPATH": str(before)}
        command = [sys.executable, "-P", "-c", READ, "ended", "open"]
        read = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        by_before = [event for event in client.run("ended").log(timeout_s=0) if isinstance(event, Action)]
        closed = [*client.run("open").log(timeout_s=0)][-1]

    assert read.returncode == 0, read.stderr
    assert read.stdout.count("'signal', 'done'") == 2
    assert [event.author for event in by_before if event.type == "signal"] == ["ann (claimed)", ""]
    assert isinstance(closed, RunClosed)
    assert (closed.status, closed.by, closed.verified) == ("cancelled", "", None)
