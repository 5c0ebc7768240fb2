"""The handle of a stack: start one, attach to a kept one, read its status, stop it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cantata.errors import ConfigError, UnavailableError
from cantata.operation.embedded import ports
from cantata.operation.embedded.home import Home, HomePath
from cantata.operation.embedded.process_identity import ProcessIdentity, identify, wait_ended
from cantata.operation.embedded.stack_plan import (
    DEFAULT_PORTS,
    KEEP,
    ORPHAN_GRACE_S,
    PYTHON,
    SERVER_STOP_S,
    StackPlan,
    WorkerCommand,
    cpu_count,
    make_plan,
    worker_command,
)
from cantata.operation.embedded.stack_record import StackProcess, StackRecord, clear_stale_record, read_record
from cantata.operation.embedded.valkey import is_responding, server_url
from cantata.operation.extras import check_extras

READY_S = (
    120.0  # an agents worker loads LiteLLM, which takes 4 s, 15 s on a cold disk, and 30 s on an overloaded machine
)
ANSWER_S = 5.0  # the server of a kept stack may be restarting
FORCED_STOP_S = SERVER_STOP_S + 2.0  # for a supervisor that was asked to stop at once
NOT_KEPT = (
    "a stack with virtual time is for one test run, and cannot be kept: start it without keep, or without virtual_time"
)


class Stack:
    """A running stack. As a context manager, it stops at the end of the block, unless it is kept."""

    def __init__(
        self,
        home: Home,
        url: str,
        *,
        supervisor: ProcessIdentity | None = None,
        link: subprocess.Popen[bytes] | None = None,
        moved: Mapping[str, int] | None = None,
        virtual_time: bool = False,
        has_workers: bool = True,
    ) -> None:
        self.home = home
        self.url = url
        """The URL of its Redis, in Celery's form: `redis+socket:///path?virtual_host=0`."""
        self.moved = moved or {}
        """Service → its default port, for services that had to start on another port."""
        self.has_workers = has_workers
        self._supervisor = supervisor  # None until it is known to be ready
        self._virtual_time = virtual_time
        self._link = link  # the pipes to a stack that ends with this process; None for a kept one

    @classmethod
    def start(
        cls,
        home: HomePath = None,
        *,
        agents: int = 1,
        tools: int | None = None,
        flower: bool = False,
        gateway: bool = False,
        config: str | Path | None = None,
        keep: bool = False,
        command: WorkerCommand = worker_command,
        virtual_time: bool = False,
        server_only: bool = False,
        wait: bool = True,
        timeout_s: float = READY_S,
    ) -> Self:
        """Start a stack and wait until its workers take steps.

        `agents` is the number of processes for model turns, `tools` the number of slots of the tools worker (by default one per core).
        Without `keep` the stack stops with the calling process, however that ends. `virtual_time`, for tests, allows `skip`. With
        `server_only` there are no workers. Without `wait` only `url` is known, so that the caller can load its modules meanwhile; then it
        calls `wait_ready`. Raises UnavailableError if there is no server, or another stack runs in the folder; ConfigError for `keep` with
        `virtual_time`.
        """
        if keep and virtual_time:
            raise ConfigError(NOT_KEPT)
        services = {"flower": flower, "gateway": gateway}
        check_extras(
            "worker", *(name for name, is_wanted in services.items() if is_wanted), needed_by="a stack on this machine"
        )
        home = Home(home)
        home.prepare()
        slots = cpu_count() if tools is None else tools
        bound = ports.bind(home, {name: DEFAULT_PORTS[name] for name, is_wanted in services.items() if is_wanted})
        try:
            plan = make_plan(
                home,
                agents=agents,
                tools=slots,
                ports=bound,
                config=config,
                command=command,
                virtual_time=virtual_time,
                server_only=server_only,
            )
            moved = {name: port.wanted for name, port in bound.items() if port.wanted not in (0, port.number)}
            stack = cls(
                home,
                server_url(plan.socket),
                link=_start_supervisor(home, plan),
                moved=moved,
                virtual_time=virtual_time,
                has_workers=not server_only,
            )
        finally:
            ports.close(bound)
        if wait or keep:
            try:
                stack.wait_ready(timeout_s)
                if keep:
                    stack.keep()
            except BaseException:
                stack._close_link()
                raise
        return stack

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Return when all workers take steps. Raises UnavailableError with the reason if they will not."""
        if self._link and not self._supervisor:
            self._supervisor = identify(int(self._ask(self._link, timeout_s)["pid"]))

    def keep(self) -> None:
        """Let a ready stack outlive this process: it runs until `down`. Raises ConfigError if it has virtual time."""
        if self._virtual_time:
            raise ConfigError(NOT_KEPT)
        if self._link:
            assert self._link.stdin
            self._link.stdin.write(KEEP)
            self._ask(self._link, ANSWER_S)
            self._close_link(wait_s=0.0)

    def skip(self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0) -> None:
        """Advance the ledger's timers by this time in all, and return when the ledger has handled all that became due. Takes milliseconds.

        This affects waits, retries, pauses that providers ask for, deadlines and time-outs of runs, and the expiry of runs, sessions,
        memories and cached replies. One call is one jump: a timer that starts because another fired runs its whole time. Steps under way
        continue and are not restarted. Leases, time-outs of tools and model calls, rate limits, daily budgets and recorded times follow
        the real clock.

        Raises ConfigError unless the stack was started with `virtual_time=True` and the time is a number from 0.001 s; UnavailableError if
        no worker of the stack responds.
        """
        if not self._virtual_time:
            raise ConfigError("time can be skipped in a stack for tests only: start it with virtual_time=True")
        from cantata.engine.fleet import clock_skip  # noqa: PLC0415  # with them comes redis; to attach to a stack needs none
        from cantata.ledger.redis import connection  # noqa: PLC0415  # with them comes redis; to attach to a stack needs none

        more = 60 * minutes + 3600 * hours + 86_400 * days
        redis = connection.connect(self.url)
        try:
            clock_skip.skip(redis, seconds + more if more else seconds)
        finally:
            redis.close()

    def stop(self, grace_s: float = 10.0) -> None:
        """Stop the stack: workers may finish their steps within the grace period, then the server writes its data to the disk."""
        if self._supervisor:
            _end(self.home, self._supervisor, grace_s)
        self._close_link()

    def processes(self) -> list[StackProcess]:
        """Return the running processes: the supervisor first, then its children."""
        record = read_record(self.home)
        return [] if record is None else _all_processes(record)

    def status(self) -> StackStatus:
        """Return the status of this stack."""
        return status(self.home)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._link:
            self.stop()

    def _ask(self, link: subprocess.Popen[bytes], timeout_s: float) -> dict[str, str]:
        """Return the supervisor's next reply. Raises UnavailableError."""
        assert link.stdout
        line = _read_line(link.stdout.fileno(), timeout_s)
        logs = f"its logs are in {str(self.home.logs)!r}"
        if line is None:
            raise UnavailableError(f"the stack in {str(self.home.path)!r} was not ready after {timeout_s:g} s; {logs}")
        if not line:
            raise UnavailableError(f"the supervisor of the stack in {str(self.home.path)!r} died; {logs}")
        reply: dict[str, str] = json.loads(line)
        if "error" in reply:
            raise UnavailableError(reply["error"])
        return reply

    def _close_link(self, wait_s: float = ORPHAN_GRACE_S + FORCED_STOP_S) -> None:
        """Close the supervisor's standard input, which stops a stack that is not kept, and wait until it has stopped."""
        link, self._link = self._link, None
        if link and link.stdin and link.stdout:
            link.stdin.close()
            deadline = time.monotonic() + wait_s
            while (left := deadline - time.monotonic()) > 0 and _read_line(link.stdout.fileno(), left):
                pass
            link.stdout.close()
            link.wait()


@dataclass(frozen=True)
class StackStatus:
    """The status of a folder's stack."""

    home: str
    running: bool
    kept: bool = False
    """True if it outlives the command that started it."""
    url: str | None = None
    flower_url: str | None = None
    gateway_url: str | None = None
    processes: tuple[StackProcess, ...] = ()
    code_fault: str = ""
    """The reason why changed code is not loaded; empty if it is."""
    config: str = ""
    """The configuration that it was started with; empty if its processes search for one."""

    def to_json(self) -> dict[str, object]:
        """Return the status as values for `json.dumps`."""
        processes = [
            {
                "name": each.name,
                "queues": list(each.queues),
                "pid": each.pid,
                "alive": each.alive,
                "started_s": each.started_s,
            }
            for each in self.processes
        ]
        return {**vars(self), "processes": processes}


def attach(home: HomePath = None) -> Stack | None:
    """Return the kept stack of this folder; None if none responds. The record of a dead one is cleared."""
    home = Home(home)
    record = _current_record(home)
    if record is None or not record.kept:
        return None
    deadline = time.monotonic() + ANSWER_S
    while not is_responding(record.socket):
        if time.monotonic() > deadline or not record.is_current():
            return None
        time.sleep(0.01)
    return Stack(home, server_url(record.socket), supervisor=record.supervisor.identity)


def stack_url() -> str:
    """Return the Redis URL of this folder's kept stack. Raises UnavailableError if there is none."""
    stack = attach()
    if stack is None:
        raise UnavailableError(
            "there is no Redis to connect to: set REDIS_URL, or start a stack in this folder with `submit up`"
        )
    return stack.url


def status(home: HomePath = None) -> StackStatus:
    """Return the status of this folder's stack."""
    home = Home(home)
    record = read_record(home)
    if record is None or not record.is_current():
        return StackStatus(str(home.path), running=False)
    processes = tuple(_all_processes(record))
    return StackStatus(
        str(home.path),
        True,
        record.kept,
        server_url(record.socket),
        record.flower_url,
        record.gateway_url,
        processes,
        record.code_fault,
        record.config,
    )


def down(home: HomePath = None, grace_s: float = 10.0) -> bool:
    """Stop the stack of this folder. Workers still busy after the grace period (at most 60 s) are killed. Returns whether a stack ran."""
    home = Home(home)
    record = _current_record(home)
    if record is None:
        return False
    _end(home, record.supervisor.identity, grace_s)
    return True


def _end(home: Home, supervisor: ProcessIdentity, grace_s: float) -> None:
    for wait_s in (grace_s, FORCED_STOP_S):
        supervisor.signal(signal.SIGTERM)  # the second one means: stop at once
        if wait_ended([supervisor], wait_s):
            return
    supervisor.signal(signal.SIGKILL)
    wait_ended([supervisor], FORCED_STOP_S)
    clear_stale_record(home)


def _current_record(home: Home) -> StackRecord | None:
    record = read_record(home)
    if record and record.is_current():
        return record
    clear_stale_record(home)
    return None


def _all_processes(record: StackRecord) -> list[StackProcess]:
    return [record.supervisor, *record.processes]


def _start_supervisor(home: Home, plan: StackPlan) -> subprocess.Popen[bytes]:
    command = [*PYTHON, "-m", "cantata.operation.embedded", "supervise", str(home.path)]
    with home.log("stack").open("ab") as log:
        sockets = [service.listens for service in plan.services if service.listens is not None]
        supervisor = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            bufsize=0,
            pass_fds=sockets,
        )
    assert supervisor.stdin
    with suppress(BrokenPipeError):  # it died: _ask finds that
        supervisor.stdin.write(plan.to_json().encode() + b"\n")
    return supervisor


def _read_line(number: int, timeout_s: float) -> bytes | None:
    """Return a line from a pipe; empty at its end, None after the time-out."""
    line = b""
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(number, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            if not (byte := os.read(number, 1)):
                return b""
            line += byte
    return line
