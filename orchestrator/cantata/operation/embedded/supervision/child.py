"""A child of the supervisor: starts its process, stops it with all that it started, and describes its state."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from cantata.errors import UnavailableError
from cantata.operation.embedded.home import Home
from cantata.operation.embedded.process_identity import ProcessIdentity, identify
from cantata.operation.embedded.stack_member import FINISH, GENERATION, LISTEN_FD, READY, READY_FD, SERVING
from cantata.operation.embedded.stack_plan import StackService
from cantata.operation.embedded.stack_record import StackProcess
from cantata.operation.embedded.supervision.prefork import ForkedProcess, start

FIRST_DELAY_S, MAX_RESTART_DELAY_S = 0.1, 30.0  # before a child restarts; doubled after each early exit
MIN_UPTIME_S = 10.0
PR_SET_PDEATHSIG = 1
BOUND = "CANTATA_TOOL_MEMORY_MB"  # what a process shares with the supervisor would count

_LIBC = ctypes.CDLL(None)  # loaded here: a process between fork and exec should do as little as possible


@dataclass
class Child:
    """A service and its current process. Processes follow each other: one exits, the next is started."""

    service: StackService
    death_signal: signal.Signals
    """The signal that Linux sends it when the supervisor is killed."""
    running: subprocess.Popen[bytes] | ForkedProcess | None = None
    """Its process, running or exited; None while it waits for its start."""
    is_ready: bool = False
    is_serving: bool = False
    """True if it has loaded all its modules; a worker may be ready before."""
    started_s: float = 0.0
    early_exits: int = 0
    """Number of consecutive exits within MIN_UPTIME_S."""
    due: float = 0.0
    """The time of its next start, by the monotonic clock."""
    log_start: int = 0
    """The offset in its log at which this process began."""
    generation: int = 0
    """Number of earlier processes of its service, each with older code."""
    is_finishing: bool = False
    """True if another child replaces it, and it only finishes its steps."""
    served: dict[str, set[str]] = field(default_factory=dict)
    """Files of user code that its process read: path → digests."""
    partial_line: bytes = b""
    """The report that is not complete yet."""

    def start(self, home: Home, environment: dict[str, str]) -> int | None:
        """Start its process. Returns the pipe end from which its reports are read; None if it sends none. Raises UnavailableError."""
        service = self.service
        ready, announce = os.pipe() if service.announces else (None, None)
        passed = {
            name: number for name, number in ((READY_FD, announce), (LISTEN_FD, service.listens)) if number is not None
        }
        variables = {
            **environment,
            GENERATION: str(self.generation),
            **{name: str(number) for name, number in passed.items()},
        }
        try:
            with home.log(service.name).open("ab") as log, open(os.devnull, "rb") as nothing:
                self.log_start = log.tell()
                streams = (nothing.fileno(), log.fileno(), log.fileno())
                self.running = start(
                    service.command,
                    environment=variables,
                    streams=streams,
                    passed=tuple(passed.values()),
                    prepare=partial(set_death_signal, os.getpid(), self.death_signal),
                    may_fork="tools" not in service.queues or not environment.get(BOUND),
                )
        except OSError as error:
            if ready is not None:
                os.close(ready)
            raise UnavailableError(
                f"{service.name!r} cannot be started with {service.command[0]!r}: {error.strerror}"
            ) from error
        finally:
            if announce is not None:
                os.close(announce)
        self.is_ready, self.is_serving = ready is None, False
        self.served, self.partial_line = {}, b""
        self.started_s = time.time()
        return ready

    def receive(self, data: bytes) -> None:
        """Apply reports of its process: that it is ready or serving, or which files it read."""
        *lines, self.partial_line = (self.partial_line + data).split(b"\n")
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
        """Let its process finish its steps and take no others."""
        self.is_finishing = True
        if self.running:
            self.running.send_signal(FINISH)

    def replacement(self) -> Child:
        """Return the child that replaces this one with newer code; its process is not started yet."""
        return Child(self.service, self.death_signal, generation=self.generation + 1)

    def is_running(self) -> bool:
        return self.running is not None and self.running.poll() is None

    def has_exited(self) -> bool:
        """Return whether its process has exited and the exit is not handled yet."""
        return self.running is not None and self.running.poll() is not None

    def ask_to_end(self) -> None:
        if self.running:
            self.running.terminate()

    def end(self, wait_s: float = 0.0) -> int:
        """Kill its process and all that it started, `wait_s` after this call at the latest. Returns the exit status."""
        if self.running is None:
            return 0
        with suppress(subprocess.TimeoutExpired):
            self.running.wait(wait_s)
        with suppress(ProcessLookupError, PermissionError):  # PermissionError: on macOS, when only zombies are left
            os.killpg(self.running.pid, signal.SIGKILL)
        self.running.kill()  # a fork without a session of its own yet has started nothing
        return self.running.wait()

    def schedule_restart(self, max_delay_s: float = MAX_RESTART_DELAY_S) -> float:
        """Set the time of the next start: at once, or with exponential back-off after early exits. Returns the delay in seconds."""
        self.early_exits = self.early_exits + 1 if time.time() - self.started_s < MIN_UPTIME_S else 0
        delay_s = min(max_delay_s, FIRST_DELAY_S * 2 ** (self.early_exits - 1)) if self.early_exits else 0.0
        self.running, self.is_ready, self.due = None, False, time.monotonic() + delay_s
        return delay_s

    def last_log_line(self, home: Home) -> str:
        """Return the last line that this process logged."""
        with home.log(self.service.name).open("rb") as log:
            log.seek(self.log_start)
            lines = log.read().decode("utf-8", "replace").split("\n")
        return next((_text_of(line.strip()) for line in reversed(lines) if line.strip()), "it logged nothing")

    def describe(self) -> StackProcess:
        pid = self.running.pid if self.running else 0
        what = " (finishing)" if self.is_finishing else ""
        return StackProcess(
            f"{self.service.name}{what}", self.service.queues, identify(pid) or ProcessIdentity(pid, ""), self.started_s
        )


def set_death_signal(parent: int, number: int) -> None:
    """Let Linux send this signal to the calling process, which is new, when its parent dies."""
    if sys.platform == "linux":
        _LIBC.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died in between
            os._exit(1)


def _text_of(line: str) -> str:
    """Return a logged line for people: of an event its error, or its name."""
    try:
        event = json.loads(line)
        return str(event.get("error") or event["event"])
    except (ValueError, LookupError, AttributeError):
        return line
