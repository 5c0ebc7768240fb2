"""`submit status` of a cluster, of a master and its replica, and of what never answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cantata.surfaces.cli.main import submit
from tests.integration.redis.servers import HERE, Clustered, Server, running, until


def status(url: str, **environment: str) -> tuple[Result, dict[str, tuple[str, str]]]:
    """Return the result of the command, and its checks: name → status and message."""
    done = CliRunner().invoke(submit, ["status", "--json"], env={"REDIS_URL": url, **environment})
    checks = json.loads(done.stdout)["health"]["checks"] if done.stdout else []
    return done, {check["name"]: (check["status"], check["message"]) for check in checks}


def test_each_node_of_a_cluster_has_its_lines_and_its_broker_has_one(tmp_path: Path) -> None:
    cluster, broker = Clustered(tmp_path, "user default on nopass ~* &* +@all\n"), Server(tmp_path)
    with running(*cluster.nodes, broker):
        cluster.form()

        _, checks = status(cluster.url, CANTATA_BROKER_URL=f"redis://{broker.place}")
        broker.kill()
        _, lost = status(cluster.url, CANTATA_BROKER_URL=f"redis://{broker.place}")
        without, _ = status(cluster.url)

    assert {(name, found) for name, (found, _) in checks.items() if name.startswith("memory")} == {
        (f"memory {node.place}", "ok") for node in cluster.nodes
    }
    assert "at 3 nodes" in checks["Redis"][1]
    assert checks["broker"] == ("ok", f"redis://{broker.place} answers")
    assert lost["broker"][0] == "failing"
    assert (without.exit_code, "set CANTATA_BROKER_URL" in without.stderr) == (2, True)


@pytest.mark.slow("a replica is made")
def test_a_master_tells_of_its_replica_which_is_refused_itself(tmp_path: Path) -> None:
    master = Server(tmp_path)
    replica = Server(tmp_path, {"replicaof": f"{HERE} {master.port}", "repl-diskless-sync-delay": "0"})
    with running(master, replica):
        until(lambda: master.redis.info("replication").get("slave0", {}).get("state") == "online", "the replica")

        _, checks = status(f"redis://{master.place}")
        refused, _ = status(f"redis://{replica.place}")

    assert checks["replicas"] == ("ok", "1 in sync")
    assert (refused.exit_code, "is a read-only replica; name its master" in refused.stderr) == (3, True)


def test_what_never_answers_costs_seconds_and_is_told() -> None:
    with socket.socket() as silent:
        silent.bind((HERE, 0))
        silent.listen()
        since = time.monotonic()

        command = [sys.executable, "-m", "cantata.surfaces.cli", "status"]
        url = f"redis://:geheim@{HERE}:{silent.getsockname()[1]}/0"
        done = subprocess.run(
            command, env={**os.environ, "REDIS_URL": url}, capture_output=True, text=True, timeout=120, check=False
        )

    assert time.monotonic() - since < 60  # some 4 s, and what a busy machine takes to start a process
    assert done.returncode == 3
    assert [line for line in done.stdout.splitlines() if line.startswith("failing") and "gave no answer within" in line]
    assert "geheim" not in done.stdout + done.stderr
