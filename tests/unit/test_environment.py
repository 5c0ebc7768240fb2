"""What a developer's machine may have set changes no result of the suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).parents[2]
HOSTILE = {
    "REDIS_URL": "redis://nowhere.invalid", "CANTATA_NAMESPACE": "not valid", "CANTATA_HOME": "/nowhere", "OPENAI_API_KEY": "sk-real",
    "OPENAI_API_BASE": "http://nowhere.invalid", "HTTPS_PROXY": "http://nowhere.invalid", "http_proxy": "http://nowhere.invalid",
}  # fmt: skip


def test_a_hostile_environment_changes_no_result(tmp_path: Path) -> None:
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\necho 'Redis server v=7.0.15 sha=0:1'\nexit 9\n")
    server.chmod(0o700)
    asked = ["tests/unit/test_celeryapp.py", "tests/integration/state/test_namespaces.py"]

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *asked], cwd=TOP, capture_output=True, text=True, check=False,
        env={**os.environ, **HOSTILE, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip

    assert ran.returncode == 0, ran.stdout[-3000:]
