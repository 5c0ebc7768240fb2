"""The record of a stack in `stack.json`: its processes, and where its server listens."""

from __future__ import annotations

import json
import logging
import os
import signal
from dataclasses import asdict, dataclass

from cantata.operation.embedded.home import Home
from cantata.operation.embedded.process_identity import ProcessIdentity, wait_ended

SERVER = "valkey"
KILL_S = 5.0  # for a left-over server to flush its log before it is killed

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StackProcess:
    """One process of the stack."""

    name: str
    queues: tuple[str, ...]
    """The queues that it serves; empty if it is not a worker."""
    identity: ProcessIdentity
    started_s: float
    """The start time, in seconds since 1970."""

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def alive(self) -> bool:
        """Return whether it runs now."""
        return self.identity.is_alive()


@dataclass(frozen=True)
class StackRecord:
    """The whole stack, as its supervisor last recorded it."""

    supervisor: StackProcess
    socket: str
    kept: bool
    """True if it outlives the command that started it."""
    flower_url: str | None
    processes: tuple[StackProcess, ...]
    """The supervisor's children."""
    is_ending: bool = False
    """True if it is stopping."""
    gateway_url: str | None = None
    code_fault: str = ""
    """The reason why changed code is not loaded; empty if it is."""
    config: str = ""
    """The configuration that it was started with; empty if its processes search for one."""

    def is_current(self) -> bool:
        """Return whether the supervisor that wrote this still runs."""
        return self.supervisor.identity.is_alive()

    def write(self, home: Home) -> None:
        """Replace the folder's record atomically."""
        draft = home.record.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")
        draft.replace(home.record)


def read_record(home: Home) -> StackRecord | None:
    """Return the record in this folder; None if there is none, or it cannot be read."""
    try:
        found = json.loads(home.record.read_text("utf-8"))
        processes = tuple(map(_read_process, found["processes"]))
        return StackRecord(**{**found, "supervisor": _read_process(found["supervisor"]), "processes": processes})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        logger.warning("the record %s cannot be read and is ignored: %s", home.record, error)
        return None


def _read_process(found: dict[str, object]) -> StackProcess:
    return StackProcess(**{**found, "queues": tuple(found["queues"]), "identity": ProcessIdentity(**found["identity"])})  # type: ignore[arg-type]  # as written by asdict


def clear_record(home: Home) -> None:
    """Remove the record of a stack whose supervisor is gone, and stop its left-over processes. The caller must hold the folder's lock."""
    record = read_record(home)
    if record is None:
        return
    servers = [each.identity for each in record.processes if each.name == SERVER]
    workers = [each.identity for each in record.processes if each.name != SERVER]
    left = [each.name for each in record.processes if each.alive]
    for identity in workers:
        identity.signal(signal.SIGKILL, group=True)
    for identity in servers:
        identity.signal(signal.SIGTERM)  # so that it flushes its log
    if not wait_ended(servers, KILL_S):
        for identity in servers:
            identity.signal(signal.SIGKILL)
    home.record.unlink(missing_ok=True)
    ran = ", ".join(left) or "nothing"
    logger.warning(
        "cleared the record of a stack in %s whose supervisor %d is gone; still running were: %s",
        home.path,
        record.supervisor.pid,
        ran,
    )


def clear_stale_record(home: Home) -> None:
    """Clear the record, unless another process holds the folder's lock."""
    if not home.record.exists() or (lock := home.try_lock()) is None:
        return
    try:
        clear_record(home)
    finally:
        os.close(lock)
