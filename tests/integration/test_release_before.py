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
from cantata.flows.wire import ChainResponse
from tests import release_before

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
