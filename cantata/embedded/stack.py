"""The handle on a stack: start one, find the one that is kept, see what runs, end it."""

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

from cantata.embedded import ports
from cantata.embedded.home import Home
from cantata.embedded.process_identity import ProcessIdentity, identify, wait_ended
from cantata.embedded.stack_plan import (
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
from cantata.embedded.stack_record import StackProcess, StackRecord, clear_stale_record, read_record
from cantata.embedded.valkey import is_responding, server_url
from cantata.errors import ConfigError, UnavailableError
from cantata.extras import check_extras

READY_S = 120.0  # an agents worker loads LiteLLM, which takes 4 s, 15 s on a cold disk, and 30 s on a machine with far too much to do
ANSWER_S = 5.0  # the server of a kept stack may be starting again
FORCED_STOP_S = SERVER_STOP_S + 2.0  # for a supervisor that was told to end at once
KEPT = "a stack with virtual time is for one test run, and is not kept: start it without keep, or without virtual_time"


class Stack:
    """A stack that runs. As a context manager it ends with the block, unless it is kept."""

    def __init__(
        self, home: Home, url: str, *, supervisor: ProcessIdentity | None = None, link: subprocess.Popen[bytes] | None = None,
        moved: Mapping[str, int] | None = None, virtual_time: bool = False,
    ) -> None:  # fmt: skip
        self.home = home
        self.url = url
        """Where its Redis is, in Celery's form: `redis+socket:///path?virtual_host=0`."""
        self.moved = moved or {}
        """Services that were just started on another port than this one, their usual."""
        self._supervisor = supervisor  # None until it is known to be ready
        self._virtual_time = virtual_time
        self._link = link  # the pipes to a stack that ends with this process; None for a kept one

    @classmethod
    def start(
        cls,
        home: Home | str | Path | None = None,
        *,
        agents: int = 1,
        tools: int | None = None,
        flower: bool = False,
        gateway: bool = False,
        config: str | Path | None = None,
        keep: bool = False,
        command: WorkerCommand = worker_command,
        virtual_time: bool = False,
        timeout_s: float = READY_S,
    ) -> Self:
        """Start a stack and wait until its workers take work.

        `agents` counts the processes for model turns, `tools` (one a core, if not given) the slots of the worker for tools. Without `keep`
        it ends with the calling process, however that ends. With `virtual_time`, which is for tests, `skip` is allowed. Raises
        UnavailableError if there is no server, or another stack in the folder; ConfigError if a stack with virtual time is to be kept.
        """
        if keep and virtual_time:
            raise ConfigError(KEPT)
        stack = cls.launch(
            home, agents=agents, tools=tools, flower=flower, gateway=gateway, config=config, command=command, virtual_time=virtual_time
        )
        try:
            stack.wait_ready(timeout_s)
            if keep:
                stack.keep()
        except BaseException:
            stack._close_link()
            raise
        return stack

    @classmethod
    def launch(
        cls,
        home: Home | str | Path | None = None,
        *,
        agents: int = 1,
        tools: int | None = None,
        flower: bool = False,
        gateway: bool = False,
        config: str | Path | None = None,
        command: WorkerCommand = worker_command,
        virtual_time: bool = False,
    ) -> Self:
        """Begin to start a stack: `url` is known at once, so the caller can load what it needs meanwhile; then `wait_ready`."""
        services = {"flower": flower, "gateway": gateway}
        check_extras("worker", *(name for name, is_wanted in services.items() if is_wanted), needed_by="a stack on this machine")
        home = home if isinstance(home, Home) else Home(home)
        home.prepare()
        slots = cpu_count() if tools is None else tools
        wanted = {name: DEFAULT_PORTS[name] for name, is_wanted in services.items() if is_wanted}
        bound = ports.bind(home, wanted)
        try:
            plan = make_plan(home, agents=agents, tools=slots, ports=bound, config=config, command=command, virtual_time=virtual_time)
            moved = {name: port.wanted for name, port in bound.items() if port.wanted not in (0, port.number)}
            return cls(home, server_url(plan.socket), link=_start_supervisor(home, plan), moved=moved, virtual_time=virtual_time)
        finally:
            ports.close(bound)

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Return when all workers take work; raise UnavailableError with the reason if they never will."""
        if self._link and not self._supervisor:
            self._supervisor = identify(int(self._ask(self._link, timeout_s)["pid"]))

    def keep(self) -> None:
        """Let a stack that is ready outlive this process: it runs until `down`. Raises ConfigError if it has virtual time."""
        if self._virtual_time:
            raise ConfigError(KEPT)
        if self._link:
            assert self._link.stdin
            self._link.stdin.write(KEEP)
            self._ask(self._link, ANSWER_S)
            self._close_link(wait_s=0.0)

    def skip(self, seconds: float) -> None:
        """Let so many seconds pass for what this stack's ledger keeps for later, and return when all that became due has happened in it.

        That takes milliseconds. Waits, retries, pauses that providers ask for, deadlines and time-outs of runs, and the ends of what is
        kept (runs, sessions, memories, cached replies) come nearer by that time. One call is one jump: what begins because a timer fired
        has its whole time before it. Steps under way go on, and are not begun again. Leases, time-outs of tools and of model calls, rate
        limits, budgets of a day and the times that are recorded go by the real clock.

        Raises ConfigError unless the stack was started with `virtual_time=True`, and `seconds` is a number from 0.001; UnavailableError if
        no worker of the stack answers.
        """
        if not self._virtual_time:
            raise ConfigError("time can be skipped in a stack for tests only: start it with virtual_time=True")
        from cantata.state.fleet import clock_skip  # noqa: PLC0415  # with them comes redis; to attach to a stack needs none
        from cantata.state.redis import connection  # noqa: PLC0415  # with them comes redis; to attach to a stack needs none

        redis = connection.connect(self.url)
        try:
            clock_skip.skip(redis, seconds)
        finally:
            redis.close()

    def stop(self, grace_s: float = 10.0) -> None:
        """End the stack: workers finish what they do within the grace, then the server writes all it knows to the disk."""
        if self._supervisor:
            _end(self.home, self._supervisor, grace_s)
        self._close_link()

    def processes(self) -> list[StackProcess]:
        """What runs: the supervisor first, then its children."""
        record = read_record(self.home)
        return [] if record is None else _all_processes(record)

    @property
    def flower_url(self) -> str | None:
        """Where Flower's pages are; none if it was not wanted."""
        record = read_record(self.home)
        return None if record is None else record.flower_url

    @property
    def code_fault(self) -> str:
        """Return why changed code is not served; empty if it is."""
        record = read_record(self.home)
        return "" if record is None else record.code_fault

    @property
    def gateway_url(self) -> str | None:
        """Where its gateway is asked; none if it was not wanted."""
        record = read_record(self.home)
        return None if record is None else record.gateway_url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._link:
            self.stop()

    def _ask(self, link: subprocess.Popen[bytes], timeout_s: float) -> dict[str, str]:
        """The supervisor's next reply."""
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
        """Let go of the lifeline: a stack that is not kept ends. Waits until it did."""
        link, self._link = self._link, None
        if link and link.stdin and link.stdout:
            link.stdin.close()
            give_up = time.monotonic() + wait_s
            while (left := give_up - time.monotonic()) > 0 and _read_line(link.stdout.fileno(), left):
                pass
            link.stdout.close()
            link.wait()


@dataclass(frozen=True)
class StackStatus:
    """What runs in a folder."""

    home: str
    running: bool
    kept: bool = False
    """Whether it outlives the command that started it."""
    url: str | None = None
    flower_url: str | None = None
    gateway_url: str | None = None
    processes: tuple[StackProcess, ...] = ()
    code_fault: str = ""
    """Why changed code is not served, if it is not."""

    def to_json(self) -> dict[str, object]:
        """The same as values for `json.dumps`."""
        processes = [
            {"name": each.name, "queues": list(each.queues), "pid": each.pid, "alive": each.alive, "started_s": each.started_s}
            for each in self.processes
        ]
        return {**vars(self), "processes": processes}


def attach(home: Home | str | Path | None = None) -> Stack | None:
    """The kept stack of this folder; None if there is none that answers. The record of a dead one is cleared."""
    home = home if isinstance(home, Home) else Home(home)
    record = _current_record(home)
    if record is None or not record.kept:
        return None
    give_up = time.monotonic() + ANSWER_S
    while not is_responding(record.socket):
        if time.monotonic() > give_up or not record.is_current():
            return None
        time.sleep(0.01)
    return Stack(home, server_url(record.socket), supervisor=record.supervisor.identity)


def stack_url() -> str:
    """Where the Redis of the stack that is kept in this folder is. Raises UnavailableError if there is none."""
    stack = attach()
    if stack is None:
        raise UnavailableError("nothing to talk to: set REDIS_URL, or start a stack in this folder with `submit up`")
    return stack.url


def status(home: Home | str | Path | None = None) -> StackStatus:
    """What runs in this folder."""
    home = home if isinstance(home, Home) else Home(home)
    record = read_record(home)
    if record is None or not record.is_current():
        return StackStatus(str(home.path), running=False)
    processes = tuple(_all_processes(record))
    return StackStatus(
        str(home.path), True, record.kept, server_url(record.socket), record.flower_url, record.gateway_url, processes, record.code_fault
    )


def down(home: Home | str | Path | None = None, grace_s: float = 10.0) -> bool:
    """End the stack of this folder; whether there was one. Workers still busy after the grace (at most 60 s) are killed."""
    home = home if isinstance(home, Home) else Home(home)
    record = _current_record(home)
    if record is None:
        return False
    _end(home, record.supervisor.identity, grace_s)
    return True


def _end(home: Home, supervisor: ProcessIdentity, grace_s: float) -> None:
    for wait_s in (grace_s, FORCED_STOP_S):
        supervisor.signal(signal.SIGTERM)  # the second one means: at once
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
    command = [*PYTHON, "-m", "cantata.embedded", "supervise", str(home.path)]
    with home.log("stack").open("ab") as log:
        sockets = [service.listens for service in plan.services if service.listens is not None]
        supervisor = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True, bufsize=0, pass_fds=sockets
        )
    assert supervisor.stdin
    with suppress(BrokenPipeError):  # it died: the missing reply will tell
        supervisor.stdin.write(plan.to_json().encode() + b"\n")
    return supervisor


def _read_line(number: int, timeout_s: float) -> bytes | None:
    """A line from a pipe; empty at its end, None if the time is over."""
    line = b""
    give_up = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(number, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, give_up - time.monotonic())):
                return None
            if not (byte := os.read(number, 1)):
                return b""
            line += byte
    return line
