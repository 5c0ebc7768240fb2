"""A user's own package that has the name of one of Cantata's is named, before a worker starts with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_worker_is_not_started_where_a_package_of_that_name_comes_first(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    for name in ("__init__", "jobs"):
        (tmp_path / "workers" / f"{name}.py").write_text("x = 1\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "REDIS_URL": "redis://localhost:1/0"}

    done = subprocess.run(
        [sys.executable, "-P", "-m", "orchestrator.cli", "worker", "tools"], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 3
    assert f"the package 'workers' at {tmp_path}/workers/__init__.py hides Cantata's own, so no worker can start; rename it" in done.stderr
