"""Identities of processes that stay valid over time: a pid alone may be reused by another process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class ProcessIdentity:
    """A process by its pid and its start time. The command line is not included, since Celery's workers change theirs."""

    pid: int
    started: str
    """Its start time as the system states it: boot id and clock ticks on Linux, a date elsewhere."""

    def is_alive(self) -> bool:
        """Return whether it still runs."""
        return identify(self.pid) == self

    def signal(self, signal_number: int, *, group: bool = False) -> None:
        """Send a signal to this process, or with `group` to its process group; never to another process that reuses its pid."""
        if self.is_alive():
            with suppress(ProcessLookupError, PermissionError):  # PermissionError: on macOS, when only zombies are left
                (os.killpg if group else os.kill)(self.pid, signal_number)


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a process; None if no process has this pid, or it is a zombie."""
    return _from_proc(pid) if sys.platform == "linux" else _from_ps(pid)


def wait_ended(identities: Sequence[ProcessIdentity], timeout_s: float) -> bool:
    """Wait until all these processes have ended. Returns false if the time-out passed before."""
    deadline = time.monotonic() + timeout_s
    while any(identity.is_alive() for identity in identities):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _from_proc(pid: int) -> ProcessIdentity | None:
    try:
        # The process name in parentheses may contain ")": the fields behind the last one are fixed.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    state, ticks = fields[0], fields[19]
    return None if state in "ZX" else ProcessIdentity(pid, f"{_boot()} {ticks}")


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not every sandbox shows it
        return ""


def _from_ps(pid: int) -> ProcessIdentity | None:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    output = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    ).stdout
    state, _, started = output.strip().partition(" ")
    return None if not started or state.startswith("Z") else ProcessIdentity(pid, " ".join(started.split()))
