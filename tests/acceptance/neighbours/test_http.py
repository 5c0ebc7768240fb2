"""Over HTTP: a project whose pins do not fit submits runs with the file of the page alone, and nothing of ours in its environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.acceptance.neighbours.behaviour import Running
from tests.acceptance.neighbours.conftest import Start
from tests.acceptance.neighbours.environments import environment
from tests.acceptance.neighbours.our_workers import Beside, executions, url_of
from tests.acceptance.neighbours.projects import FLASK
from tests.acceptance.neighbours.test_flask import OLD
from tests.acceptance.pages import blocks
from tests.integration.redis.servers import Server
from tests.waiting import until

pytestmark = [
    OLD,
    pytest.mark.thorough("no other test runs an application that somebody else wrote"),
    pytest.mark.slow("a project of others, our workers and a gateway start in processes of their own"),
]
TOKEN = "3f1c0a5de2b94d7798a6cdbb2f4e8a10"
PATIENCE_S = 60.0
VIEWS = """
from . import runs

@bp.post("/sums")
def submit_sums():
    return {"run": runs.submit("gated", {"x": 1, "y": 1}, request.headers["Idempotency-Key"])}

@bp.get("/sums/<run_id>")
def show_sums(run_id):
    return runs.outcome(run_id)
"""


@contextmanager
def gateway(config: Path, folder: Path, redis: Server, broker: str) -> Iterator[str]:
    """Start a gateway with a token, as the page shows it, and answer its address."""
    (folder / "tokens.yaml").write_text(f"{TOKEN}: {{tenant: shop, scopes: [submit, read]}}\n")
    words = ["gateway", "--config", str(config), "--tokens-file", "tokens.yaml", "--port", "0"]
    with (folder / "gateway.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cantata.surfaces.cli", *words],
            cwd=folder,
            env={**os.environ, "REDIS_URL": url_of(redis), "CANTATA_BROKER_URL": broker},
            stdout=log,
            stderr=log,
        )

    def address() -> str | None:
        text = (folder / "gateway.log").read_text()
        assert process.poll() is None, text
        found = re.search(r"http://[\d.]+:\d+", text)
        return found[0] if found else None

    try:
        yield until(address, "the gateway")
    finally:
        process.terminate()
        process.wait(30)


def add_file_of_the_page(theirs: Running) -> None:
    """Add the file that the page shows, and views that call it."""
    (block,) = (block for block in blocks() if block.page == "docs/compatibility.md" and block.file == "runs.py")
    views = theirs.folder / FLASK.view_file
    views.with_name("runs.py").write_text(block.text)
    with views.open("a") as file:
        file.write(VIEWS)


@pytest.mark.parametrize("broker", ["redis"])
def test_a_view_submits_a_run_over_http_and_their_killed_worker_repeats_no_finished_task(
    start: Start, redis: Server, beside: Beside, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = start(FLASK, environment("flask.lock"), broker, "")
    installed = theirs.run(
        "python", "-c", "from importlib import metadata; print(*(d.name for d in metadata.distributions()))"
    )
    add_file_of_the_page(theirs)
    theirs.start_worker()

    with (
        beside(url_of(redis), theirs.config) as ours,
        gateway(theirs.config, tmp_path, redis, url_of(redis)) as address,
        theirs.server(GATEWAY=address, GATEWAY_TOKEN=TOKEN) as site,
        httpx.Client(base_url=site, headers={"Idempotency-Key": "order-1"}, timeout=PATIENCE_S) as http,
    ):
        run_id = http.post("/tasks/sums").raise_for_status().json()["run"]
        run = ours.chain(run_id)
        until(lambda: executions(theirs)["task_app.tasks.add succeeded"], "the first task", PATIENCE_S)
        theirs.kill_worker()
        gate = until(lambda: next((each.step for each in run.log() if each.type == "waiting"), None), "the second step")
        assert run.signal(gate, 1) == "taken"
        theirs.start_worker()
        run.result(PATIENCE_S)
        seen = http.get(f"/tasks/sums/{run_id}").raise_for_status().json()
        again = http.post("/tasks/sums").raise_for_status().json()["run"]

    assert "cantata" not in installed.split()
    assert "celery" in installed.split()
    assert seen["status"] == "succeeded"
    assert seen["result"]["outputs"]["after"] == {"current": 1, "total": 1}
    assert again == run_id
    assert executions(theirs) == {
        f"task_app.tasks.{name} {what}": 1 for name in ("add", "process") for what in ("received", "succeeded")
    }
