"""The supervisor of a stack: starts the server, then the other processes; restarts those that exit; stops all when its command is gone.

It is one thread around one `select`. Its standard input is a control pipe: the first line is the plan; then the pipe stays open as long as
the command that started the stack runs. A "k" on it keeps the stack. Replies go to the standard output. SIGTERM asks the supervisor to
stop, a second SIGTERM to stop at once. If the supervisor itself is killed, Linux ends its children; elsewhere the workers notice it, and
the next start finds the server by the record."""

from __future__ import annotations

import json
import os
import selectors
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from cantata.errors import UnavailableError
from cantata.operation import json_streams
from cantata.operation.embedded import ports, valkey
from cantata.operation.embedded.home import Home
from cantata.operation.embedded.process_identity import identify
from cantata.operation.embedded.stack_member import STACK_PID, VIRTUAL_TIME
from cantata.operation.embedded.stack_plan import KEEP, ORPHAN_GRACE_S, SERVER_STOP_S, StackPlan
from cantata.operation.embedded.stack_record import StackProcess, StackRecord, clear_record, read_record
from cantata.operation.embedded.supervision.child import FIRST_DELAY_S, Child
from cantata.operation.embedded.supervision.code_watch import POLL_S, CodeWatch, compare
from cantata.operation.embedded.supervision.prefork import can_fork
from cantata.operation.worker_parts import worker_part

CONTROL, REPLIES, LOG = 0, 1, 2

PING_S = 0.003  # between two pings of a starting server
LOCK_S = 2.0  # to wait for a command that cleans up in this folder
ENDING_S = ORPHAN_GRACE_S + SERVER_STOP_S  # to wait for a stopping stack, whose command may be started again at once
MAX_FINISHING = 4  # processes of one service that finish their steps with older code
STOP_LIMIT_S = 60.0  # for the workers after SIGTERM, if no second one comes


class Supervisor:
    """The supervisor of one stack; `run` returns when the stack has stopped."""

    def __init__(self, plan: StackPlan) -> None:
        self._plan = plan
        self._home = Home(plan.home)
        self._server = Child(plan.server, signal.SIGTERM)
        self._workers = [Child(service, signal.SIGKILL) for service in plan.services]
        self._finishing: list[Child] = []
        self._loading: threading.Thread | None = None
        self._code = CodeWatch()
        self._code_fault = ""
        self._environment = {**os.environ, **plan.environment, STACK_PID: str(os.getpid())}
        self._started_s = time.time()
        self._is_tested = VIRTUAL_TIME in plan.environment  # its processes are killed on purpose
        self._is_kept = False
        self._stop_by: float | None = None
        self._selector = selectors.DefaultSelector()
        self._listen()

    def run(self) -> None:
        """Run the stack until it is stopped. Raises UnavailableError if it cannot start."""
        lock = _take_lock(self._home)
        try:
            clear_record(self._home)
            ports.save(self._home, self._plan.ports)
            self._home.make_socket()  # again: the stack that this one waited for has removed it
            self._write_record()
            self._start()
            _reply("ready", pid=os.getpid())
            _log("stack_ready", pid=os.getpid(), seconds=round(time.time() - self._started_s, 3))
            self._watch()
        finally:
            self._stop()
            os.close(lock)

    # Phases

    def _start(self) -> None:
        self._start_child(self._server)
        while not self._is_stopping() and not valkey.is_responding(self._plan.socket):
            self._fail_on_exit(self._wait_for_events(PING_S))
        self._preload()
        for child in self._workers:
            if child.running is None and not self._is_stopping():
                self._start_child(child)
        self._write_record()
        while not self._is_stopping() and not all(child.is_ready for child in self._workers):
            self._fail_on_exit(self._wait_for_events(None))
        if self._is_stopping():
            raise UnavailableError("the stack was stopped while it started")

    def _watch(self) -> None:
        while not self._is_stopping():
            for child in self._waiting():
                if child.due <= time.monotonic():
                    self._restart(child)
            dues = [child.due - time.monotonic() for child in self._waiting()]
            if any(child.served for child in self._workers):
                self._check_code()
                dues.append(POLL_S)
            self._preload_models()
            for child in self._wait_for_events(max(0.0, min(dues)) if dues else None):
                self._on_child_exit(child)

    def _stop(self) -> None:
        if not self._is_stopping():  # an error
            self._ask_stop(0.0)
        _log("stack_stops", grace_s=round(self._grace_left(), 1))
        self._write_record()
        workers = [*self._workers, *self._finishing]
        for child in workers:
            child.ask_to_end()
        while any(child.is_running() for child in workers) and self._grace_left() > 0:
            self._wait_for_events(self._grace_left())
        for child in workers:
            child.end()
        valkey.shut_down(self._plan.socket)
        self._server.ask_to_end()
        self._server.end(SERVER_STOP_S)
        for path in (Path(self._plan.socket), self._home.record):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            Path(self._plan.socket).parent.rmdir()
        _log("stack_stopped")

    # Children

    def _preload(self) -> None:
        """Import the libraries that its workers share; also LiteLLM, which takes longest, if several workers need it."""
        if not (self._workers and can_fork()):
            return
        try:
            libraries = _libraries()
            libraries.common()
            if sum("agents" in child.service.queues for child in self._workers) > 1:
                for child in self._workers:
                    if "agents" not in child.service.queues and not self._is_stopping():
                        self._start_child(child)  # while there is no LiteLLM here
                libraries.models()
        except Exception as error:  # noqa: BLE001  # the workers import the same, and report the error
            _log("libraries_not_loaded", error=repr(error))

    def _children(self) -> Iterable[Child]:
        return (self._server, *self._workers, *self._finishing)

    def _waiting(self) -> list[Child]:
        return [child for child in self._children() if child.running is None]

    def _start_child(self, child: Child) -> None:
        ready = child.start(self._home, self._environment)
        if ready is not None:
            self._selector.register(ready, selectors.EVENT_READ, partial(self._on_child_report, child, ready))

    def _fail_on_exit(self, dead: Iterable[Child]) -> None:
        """Raise UnavailableError if a child exited: during the start, a restart would fail again."""
        for child in dead:
            name, status = child.service.name, child.end()
            log = self._home.logs / f"{name}.log"
            raise UnavailableError(
                f"{name!r} ended at its start with status {status}: {child.last_log_line(self._home)}; its log is {str(log)!r}"
            )

    def _on_child_exit(self, child: Child) -> None:
        status, lived_s = child.end(), time.time() - child.started_s
        if child.is_finishing:
            self._finishing.remove(child)
            _log("code_finished", name=child.service.name, generation=child.generation, status=status)
            self._write_record()
            return
        delay_s = child.schedule_restart(FIRST_DELAY_S) if self._is_tested else child.schedule_restart()
        _log("child_died", name=child.service.name, status=status, lived_s=round(lived_s, 1), restart_in_s=delay_s)

    def _restart(self, child: Child) -> None:
        try:
            self._start_child(child)
        except UnavailableError as error:
            _log("child_not_started", name=child.service.name, error=str(error), restart_in_s=child.schedule_restart())
            return
        _log("child_started", name=child.service.name, pid=child.describe().pid)
        self._write_record()

    # Changed code

    def _check_code(self) -> None:
        """Replace processes whose code has changed. While a changed file cannot be imported, they continue with the code that they read."""
        served: dict[str, set[str]] = {}
        for child in self._workers:
            for path, digests in child.served.items():
                served.setdefault(path, set()).update(digests)
        if not self._code.poll(served, time.monotonic()):
            return
        faults = [fault for child in list(self._workers) if child.served and (fault := self._replace_if_changed(child))]
        if (fault := faults[0] if faults else "") != self._code_fault:
            self._code_fault = fault
            _log("code_not_served", fault=fault) if fault else _log("code_served_again")
            self._write_record()

    def _replace_if_changed(self, child: Child) -> str:
        """Replace a child by a new process if its code has changed. Returns the reason why that cannot be done."""
        status, name = compare(child.served, self._code.files), child.service.name
        if not (status.changed and child.is_running()):
            return status.fault
        if sum(other.service.name == name for other in self._finishing) >= MAX_FINISHING:
            file = status.changed[0]
            return f"{file} is loaded when one of the {MAX_FINISHING} older processes of {name!r} ends: wait, or cancel their runs"
        replacement = child.replacement()
        self._workers[self._workers.index(child)] = replacement
        self._finishing.append(child)
        child.finish()
        _log("code_changed", name=name, generation=replacement.generation, files=", ".join(status.changed[:5]))
        self._restart(replacement)
        self._write_record()
        return ""

    def _preload_models(self) -> None:
        """Import LiteLLM once all workers serve, so that agents workers that restart later need not import it."""
        has_agents = any("agents" in child.service.queues for child in self._workers)
        if not (self._is_kept and has_agents and self._loading is None and can_fork()):
            return
        if all(child.is_serving for child in self._workers if child.service.queues):
            self._loading = threading.Thread(target=_libraries().models, name="load", daemon=True)
            self._loading.start()

    # Events

    def _listen(self) -> None:
        """Let signals and the control pipe wake the `select`."""
        wake, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop_signal)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._selector.register(wake, selectors.EVENT_READ, partial(os.read, wake, 512))
        self._selector.register(CONTROL, selectors.EVENT_READ, self._on_control)

    def _wait_for_events(self, timeout_s: float | None) -> list[Child]:
        """Wait for events and handle them. Returns the children that have exited."""
        for key, _ in self._selector.select(timeout_s):
            key.data()
        return [child for child in self._children() if child.has_exited()]

    def _on_stop_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._ask_stop(0.0 if self._is_stopping() else STOP_LIMIT_S)

    def _on_control(self) -> None:
        if os.read(CONTROL, 1) == KEEP:
            self._is_kept = True
            self._write_record()
            _reply("kept")
            return
        self._selector.unregister(CONTROL)
        if not self._is_kept:
            self._ask_stop(ORPHAN_GRACE_S)

    def _on_child_report(self, child: Child, ready: int) -> None:
        if data := os.read(ready, 65_536):
            child.receive(data)
            return
        self._selector.unregister(ready)
        os.close(ready)

    def _ask_stop(self, grace_s: float) -> None:
        """Stop within this time, or sooner if an earlier call asked for that."""
        by = time.monotonic() + grace_s
        self._stop_by = by if self._stop_by is None else min(by, self._stop_by)

    def _is_stopping(self) -> bool:
        return self._stop_by is not None

    def _grace_left(self) -> float:
        return 0.0 if self._stop_by is None else max(0.0, self._stop_by - time.monotonic())

    def _write_record(self) -> None:
        me = identify(os.getpid())
        assert me
        supervisor = StackProcess("supervisor", (), me, self._started_s)
        processes = tuple(child.describe() for child in self._children() if child.running)
        plan = self._plan
        record = StackRecord(
            supervisor,
            plan.socket,
            self._is_kept,
            plan.flower_url,
            processes,
            self._is_stopping(),
            plan.gateway_url,
            self._code_fault,
            self._environment.get("CANTATA_CONFIG", ""),
        )
        try:
            record.write(self._home)
        except OSError as error:  # for example, the disk is full; the stack continues
            _log("record_not_written", error=str(error))


def main() -> None:
    """Read a plan from standard input and run its stack, detached from the command."""
    json_streams.install_if_wanted()
    plan = StackPlan.from_json(_read_line(CONTROL))
    if os.fork():
        os._exit(0)  # the command waits for this process only: it need not reap the stack, and may exit before it
    try:
        Supervisor(plan).run()
    except UnavailableError as error:
        _log("stack_failed", error=str(error))
        _reply("failed", error=str(error))


def _libraries() -> Any:
    return worker_part("prefork_imports")


def _take_lock(home: Home) -> int:
    since = time.monotonic()
    while (lock := home.try_lock()) is None:
        other = read_record(home)
        is_current = other is not None and other.is_current()
        timeout_s = LOCK_S if not (other and is_current) else ENDING_S if other.is_ending else 0.0
        if time.monotonic() - since > timeout_s:
            detail = (
                f"its supervisor is process {other.supervisor.pid}"
                if other and is_current
                else "it is just starting or stopping"
            )
            raise UnavailableError(
                f"another stack is running in {str(home.path)!r} ({detail}): "
                "stop it with `submit down`, or give this one another folder with CANTATA_HOME"
            )
        time.sleep(0.01)
    return lock


def _read_line(number: int) -> str:
    """Read one line and not a byte more: the `select` handles what follows."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(number, 1)):
        line += byte
    return line.decode()


def _reply(word: str, **fields: str | int) -> None:
    with suppress(OSError):  # the command has exited; the control pipe reports that
        os.write(REPLIES, json.dumps({"reply": word, **fields}).encode() + b"\n")


def _log(event: str, **fields: str | float) -> None:
    line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields})
    with suppress(OSError):  # a full disk must not end the stack
        os.write(LOG, line.encode() + b"\n")
