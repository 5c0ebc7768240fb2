"""Tools that want more than they may have. Each tells a journal its process."""

from __future__ import annotations

import subprocess
import time

from tests.integration.fleet.fleet_tools import note


def eat(journal: str) -> int:
    """Take memory for ever, a megabyte at a time, and use it."""
    note(journal, "start", "eat")
    eaten = []
    while True:
        eaten.append(b"x" * 1_000_000)


def gulp(journal: str) -> int:
    """Take far too much at once."""
    note(journal, "start", "gulp")
    return len(b"x" * 50_000_000_000)


def begin_and_hang(journal: str) -> None:
    """Start a process that starts another, and wait for ever."""
    with subprocess.Popen(["/bin/sh", "-c", "sleep 300 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        note(journal, "began", [shell.pid, int(shell.stdout.readline())])
        time.sleep(300)


def add(journal: str, a: int) -> int:
    """Add one."""
    note(journal, "start", "add")
    return a + 1
