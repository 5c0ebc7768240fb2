"""Tells processes apart over time: by now a pid alone may be somebody else's."""

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
    """A process as the system describes it. Its command line is no part of it: Celery's workers change theirs."""

    pid: int
    started: str
    """When it started, in the system's own words: the boot and clock ticks since on Linux, a date elsewhere."""

    def is_alive(self) -> bool:
        """It still runs."""
        return identify(self.pid) == self

    def signal(self, signal_number: int, *, group: bool = False) -> None:
        """Send a signal to exactly this process (with `group`, to those of its session too): never to one that merely got its pid."""
        if self.is_alive():
            with suppress(ProcessLookupError, PermissionError):  # PermissionError: on macOS, when only zombies are left
                (os.killpg if group else os.kill)(self.pid, signal_number)


def identify(pid: int) -> ProcessIdentity | None:
    """Describe a process; None if there is none of this pid, or only its zombie."""
    return _from_proc(pid) if sys.platform == "linux" else _from_ps(pid)


def wait_ended(identities: Sequence[ProcessIdentity], timeout_s: float) -> bool:
    """Wait until none of these processes is left; false if the time ran out before."""
    give_up = time.monotonic() + timeout_s
    while any(identity.is_alive() for identity in identities):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.005)
    return True


def _from_proc(pid: int) -> ProcessIdentity | None:
    try:
        # The name in parentheses may hold anything, even ")": what follows the last one is fixed.
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
    ask = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    told = subprocess.run(ask, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}).stdout
    state, _, started = told.strip().partition(" ")
    return None if not started or state.startswith("Z") else ProcessIdentity(pid, " ".join(started.split()))
