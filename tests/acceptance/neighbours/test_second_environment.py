"""A project on a Celery that our worker does not run with: our worker in an environment of its own, made by the lines of the pages."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from cantata import ChainRun, Client
from cantata.ledger.redis.connection import connect
from tests.acceptance.neighbours.conftest import Start
from tests.acceptance.neighbours.environments import HERE, environment, environment_with_cantata, uv
from tests.acceptance.neighbours.our_workers import OurWorkers
from tests.acceptance.neighbours.projects import DJANGO
from tests.acceptance.pages import Block, blocks, lines, words
from tests.integration.redis.servers import Server, until

PATIENCE_S = 60.0


def of_page(page: str, language: str) -> Block:
    """The block of a page that makes that environment."""
    own = [block for block in blocks() if block.page == f"docs/{page}.md" and block.language == language]
    return next(block for block in own if "uv venv" in block.text or block.file == "overrides.txt")


def is_waiting(run: ChainRun) -> bool:
    """Whether a run waits at its gate."""
    gate = run.steps(["gate"]).get("gate")
    return gate is not None and gate.state == "waiting_signal"


@pytest.mark.parametrize("page", ["django", "flask"])
def test_the_pages_have_the_overrides_that_are_locked(page: str) -> None:
    shown = of_page(page, "text").text.splitlines()

    assert [line for line in shown if line and not line.startswith("#")] == (
        HERE / "overrides.txt"
    ).read_text().splitlines()
    assert lines(of_page(page, "sh"))[:2] == lines(of_page("django", "sh"))[:2]


@pytest.mark.thorough("no other test has our worker in an environment that is made from a project's pins")
@pytest.mark.slow("environments of two kinds, and workers of both")
def test_our_worker_executes_runs_over_tasks_of_a_project_on_celery_5_5(
    start: Start, redis: Server, tmp_path: Path
) -> None:
    theirs = start(DJANGO, environment("django.lock"), "redis", "")
    theirs.start_worker()
    second = environment_with_cantata("django-worker.lock")
    pins = re.findall(r"^([a-z0-9-]+==[^\\]+?) *\\?$", (HERE / "django.lock").read_text(), re.MULTILINE)
    (theirs.folder / "requirements.txt").write_text("\n".join(pins))
    (theirs.folder / "overrides.txt").write_text((HERE / "overrides.txt").read_text())

    # The page's lines make the environment that the lock has, so uv has nothing to do.
    _, install, worker = lines(of_page("django", "sh"))
    os.symlink(second, theirs.folder / ".cantata")
    command = [uv(), *words(install)[1:], "--offline", "--dry-run"]
    ran = subprocess.run(command, cwd=theirs.folder, capture_output=True, text=True, check=False)
    assert (ran.returncode, "Would make no changes" in ran.stderr) == (0, True), ran.stderr

    url = f"redis://{redis.place}/0"
    with connect(url) as connected:
        ours = OurWorkers.of(theirs.folder, connected, words(worker), {**os.environ, **theirs.environment})
        try:
            with Client(url, config=theirs.config) as client:
                run = client.submit_chain("sums", initial_input={"x": 1, "y": 2})
                until(lambda: is_waiting(run), "the end of the first task", PATIENCE_S)
                run.signal("gate", 10)
                assert run.result(PATIENCE_S).outputs == {"add": 3, "gate": 10, "mul": 30, "xsum": 33}
        finally:
            ours.stop()
