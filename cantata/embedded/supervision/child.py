"""One child of the supervisor: starts its process, ends it with all that it started, and says how it fared."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from cantata.embedded.home import Home
from cantata.embedded.process_identity import ProcessIdentity, identify
from cantata.embedded.stack_member import FINISH, GENERATION, LISTEN_FD, READY, READY_FD, SERVING
from cantata.embedded.stack_plan import StackService
from cantata.embedded.stack_record import StackProcess
from cantata.embedded.supervision.prefork import ForkedProcess, start
from cantata.errors import UnavailableError

FIRST_DELAY_S, MAX_RESTART_DELAY_S = 0.1, 30.0  # before a dead child is started again; doubled each time it dies young
MIN_UPTIME_S = 10.0
PR_SET_PDEATHSIG = 1
BOUND = "CANTATA_TOOL_MEMORY_MB"  # what a process shares with the supervisor would count

_LIBC = ctypes.CDLL(None)  # loaded here: a process between fork and exec should do as little as possible


@dataclass
class Child:
    """One service, over all the processes that do its work one after the other."""

    service: StackService
    death_signal: signal.Signals
    """What Linux sends it when the supervisor is killed."""
    running: subprocess.Popen[bytes] | ForkedProcess | None = None
    """Its process, dead or alive; None while it waits to be started."""
    is_ready: bool = False
    is_serving: bool = False
    """Whether it has loaded all that it needs; a worker may be ready before."""
    started_s: float = 0.0
    early_exits: int = 0
    """How often in a row it died young."""
    due: float = 0.0
    """When it is to be started again, by the monotonic clock."""
    log_start: int = 0
    """Where in its log this process began."""
    generation: int = 0
    """How many processes did its work before it, each with older code."""
    is_finishing: bool = False
    """Whether another does its work now, and it only finishes its steps."""
    served: dict[str, set[str]] = field(default_factory=dict)
    """Files of user code that its process read: path → digests."""
    partial_line: bytes = b""
    """The beginning of a line that it is telling."""

    def start(self, home: Home, environment: dict[str, str]) -> int | None:
        """Start its process. Returns the end of a pipe where it will say that it is ready, if it is one that says so."""
        service = self.service
        ready, announce = os.pipe() if service.announces else (None, None)
        passed = {name: number for name, number in ((READY_FD, announce), (LISTEN_FD, service.listens)) if number is not None}
        told = {**environment, GENERATION: str(self.generation), **{name: str(number) for name, number in passed.items()}}
        try:
            with home.log(service.name).open("ab") as log, open(os.devnull, "rb") as nothing:
                self.log_start = log.tell()
                streams = (nothing.fileno(), log.fileno(), log.fileno())
                self.running = start(
                    service.command, environment=told, streams=streams, passed=tuple(passed.values()),
                    prepare=partial(_set_death_signal, os.getpid(), self.death_signal),
                    may_fork="tools" not in service.queues or not environment.get(BOUND),
                )  # fmt: skip
        except OSError as error:
            if ready is not None:
                os.close(ready)
            raise UnavailableError(f"{service.name!r} cannot be started with {service.command[0]!r}: {error.strerror}") from error
        finally:
            if announce is not None:
                os.close(announce)
        self.is_ready, self.is_serving = ready is None, False
        self.served, self.partial_line = {}, b""
        self.started_s = time.time()
        return ready

    def receive(self, told: bytes) -> None:
        """Take in what its process tells: that it is ready, or which files it read."""
        *lines, self.partial_line = (self.partial_line + told).split(b"\n")
        for line in lines:
            what, *more = os.fsdecode(line).split("\t")
            if what == READY:
                self.is_ready = True
            elif what == SERVING:
                self.is_serving = True
            elif what == "file" and len(more) == 2:
                path, digest = more
                self.served.setdefault(path, set()).add(digest)

    def finish(self) -> None:
        """Tell its process to finish its steps and take no more."""
        self.is_finishing = True
        if self.running:
            self.running.send_signal(FINISH)

    def replacement(self) -> Child:
        """Return the child that does this one's work when its code has changed; its process is not started yet."""
        return Child(self.service, self.death_signal, generation=self.generation + 1)

    def is_running(self) -> bool:
        return self.running is not None and self.running.poll() is None

    def has_exited(self) -> bool:
        """It ended, and nobody dealt with that yet."""
        return self.running is not None and self.running.poll() is not None

    def ask_to_end(self) -> None:
        if self.running:
            self.running.terminate()

    def end(self, wait_s: float = 0.0) -> int:
        """Make sure that nothing is left of its process, nor of those that this started. Returns the exit status."""
        if self.running is None:
            return 0
        with suppress(subprocess.TimeoutExpired):
            self.running.wait(wait_s)
        with suppress(ProcessLookupError, PermissionError):  # PermissionError: on macOS, when only zombies are left
            os.killpg(self.running.pid, signal.SIGKILL)
        self.running.kill()  # a fork that has no session of its own yet has started nothing
        return self.running.wait()

    def schedule_restart(self) -> float:
        """Set when to start again: at once, or the later the more often it died young. Returns the delay in seconds."""
        self.early_exits = self.early_exits + 1 if time.time() - self.started_s < MIN_UPTIME_S else 0
        delay_s = min(MAX_RESTART_DELAY_S, FIRST_DELAY_S * 2 ** (self.early_exits - 1)) if self.early_exits else 0.0
        self.running, self.is_ready, self.due = None, False, time.monotonic() + delay_s
        return delay_s

    def last_log_line(self, home: Home) -> str:
        """The last line that this process logged."""
        with home.log(self.service.name).open("rb") as log:
            log.seek(self.log_start)
            lines = log.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")

    def describe(self) -> StackProcess:
        pid = self.running.pid if self.running else 0
        what = " (finishing)" if self.is_finishing else ""
        return StackProcess(f"{self.service.name}{what}", self.service.queues, identify(pid) or ProcessIdentity(pid, ""), self.started_s)


def _set_death_signal(parent: int, number: int) -> None:
    """In a new process: have Linux send it this signal when the supervisor dies."""
    if sys.platform == "linux":
        _LIBC.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died in between
            os._exit(1)
