"""A store that was copied while runs were under way, as docs/operations.md says, is put in place of one that is lost."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cantata.client.client import Client
from cantata.testing import ScriptedModels
from tests.integration.fleet.conftest import Journal, definitions, tool
from tests.waiting import until

MARGIN_S = 60.0
BACKUP = Path(__file__).parents[3] / "deploy" / "redis" / "backup.sh"


@pytest.mark.thorough("two stacks; that a stack started again in its folder goes on is held by fleet/test_kills.py")
@pytest.mark.slow("a stack of its own starts and ends")
def test_runs_of_a_restored_copy_go_on_and_repeat_nothing_that_was_done_before_it(
    tmp_path: Path, models: ScriptedModels, journal: Journal
) -> None:
    lost, new = tmp_path / "lost", tmp_path / "new"
    nodes = [tool("before", "slow", journal=str(journal.path), mark="before", seconds=0.1, next_node="during")]
    nodes += [tool("during", "slow", journal=str(journal.path), mark="during", seconds=2.0, next_node="gate")]
    nodes += [
        {"node_id": "gate", "kind": "wait", "next_node": "after"}
    ]  # so that what the lost store does after the copy ends here
    nodes += [tool("after", "slow", journal=str(journal.path), mark="after", seconds=0.1)]
    with Client.embedded(lost, config=definitions(), agents=1, tools=2) as client:
        over = client.submit_chain({"nodes": [tool("one", "add", a=1, b=2)], "entry_node": "one"})
        assert over.result(MARGIN_S).success
        run = client.submit_chain({"nodes": nodes, "entry_node": "before"})
        until(lambda: journal.of("start", "during"), "the start of the step in the middle")

        back_up(client, new)
    shutil.rmtree(lost)

    with Client.embedded(new, config=definitions(), agents=1, tools=2) as client:
        assert client.run(over.run_id).result(MARGIN_S).status == "succeeded"
        again = client.run(run.run_id)
        again.signal("gate", True)
        assert again.result(MARGIN_S).status == "succeeded"
    assert len(journal.of("start", "before")) == 1, "it was done before the copy was made"
    assert len(journal.of("finish", "after")) == 1


def back_up(client: Client, home: Path) -> None:
    """Copy the log of writes as the page says, also if it is written anew meanwhile."""
    redis = client.ledger.redis
    data = Path(str(redis.config_get("dir")["dir"]))
    redis.bgrewriteaof()
    subprocess.run([BACKUP, data, home / "data"], check=True, timeout=50)
