"""A worker's heartbeat: the file that health checks of containers look at."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from redis import Redis

from cantata.engine.fleet import registry
from tests.waiting import until

HEALTHY = Path(__file__).parents[3] / "deploy" / "healthy"


def is_healthy(heartbeat: Path) -> bool:
    environment = {"PATH": os.environ["PATH"], "CANTATA_HEARTBEAT_FILE": str(heartbeat)}
    return subprocess.run([HEALTHY, "5"], env=environment, timeout=20, check=False).returncode == 0


def test_a_worker_is_healthy_from_when_it_takes_work_until_it_ends(valkey: Redis, tmp_path: Path) -> None:
    heartbeat = tmp_path / "heartbeat"
    url = f"unix://{valkey.connection_pool.connection_kwargs['path']}"
    environment = {**os.environ, "REDIS_URL": url, "CANTATA_HEARTBEAT_FILE": str(heartbeat)}

    with subprocess.Popen(
        [sys.executable, "-P", "-m", "cantata_workers", "coordinator", "--name", "beating"], env=environment
    ) as worker:
        try:
            until(lambda: is_healthy(heartbeat), "the first beat")
            assert [each.pid for each in registry.workers(valkey) if each.name.startswith("beating@")] == [worker.pid]
            first = heartbeat.stat().st_mtime_ns
            until(lambda: heartbeat.stat().st_mtime_ns > first, "the next beat")
        finally:
            worker.terminate()
        assert worker.wait(timeout=60) == 0

    os.utime(heartbeat, (time.time() - 60,) * 2)
    assert not is_healthy(heartbeat)
