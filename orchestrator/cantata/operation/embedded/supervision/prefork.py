"""Starts processes as forks of this one, which has imported their libraries already.

An import of Celery takes one second, one of LiteLLM two to six and 150 MB; a fork takes 20 ms and shares the memory. The process that forks
has one thread, no connection and none of the user's modules, so a fork cannot share anything by mistake.
"""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from setproctitle import setproctitle

POLL_S = 0.002


class ForkedProcess:
    """A child process with the same attributes and methods as in `subprocess.Popen`."""

    stdin = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has exited, and return its status. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has exited."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def can_fork() -> bool:
    """Return whether this process has a single thread, also outside Python. On macOS, frameworks forbid a fork without exec."""
    return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
    passed: Sequence[int] = (),
    prepare: Callable[[], object] = bool,
    may_fork: bool = True,
) -> ForkedProcess | subprocess.Popen[bytes]:
    """Start `python -m MODULE` in a session of its own: as a fork if possible, else as a new program. The process calls `prepare` first.

    It keeps the file descriptors `passed` and, as 0, 1 and 2, `streams`.
    """
    arguments = [argument for argument in command if argument != "-P"]
    has_same_path = sys.flags.safe_path or "-P" not in command  # a fork has the path of this process
    if may_fork and has_same_path and arguments[:2] == [sys.executable, "-m"] and can_fork():
        module, *arguments = arguments[2:]

        def run() -> None:
            prepare()
            run_module(module, arguments)

        return fork(run, command, environment=environment, streams=streams, passed=passed)
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        pass_fds=passed,
        start_new_session=True,
        preexec_fn=prepare,
    )


def run_module(module: str, arguments: Sequence[str]) -> None:
    """Run a module as `python -m` does."""
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def fork(
    run: Callable[[], object],
    title: Sequence[str],
    *,
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
    passed: Sequence[int] = (),
) -> ForkedProcess:
    """Call a function in a process and a session of its own; its exit status is that of `sys.exit`, else 0.

    It keeps the file descriptors `passed` and, as 0, 1 and 2, `streams`; `title` is the command line that `ps` shows.
    """
    gc.freeze()  # a collection in the child would copy the shared memory
    sys.stdout.flush()
    sys.stderr.flush()
    mask = signal.pthread_sigmask(
        signal.SIG_BLOCK, signal.valid_signals()
    )  # the child must not handle one as its parent does
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return ForkedProcess(pid)
    status: int = 1
    try:
        _detach(title, environment, streams, passed, mask)
        status = _run_to_exit(run)
    except BaseException:  # noqa: BLE001  # of _detach: printed before it is lost
        traceback.print_exc()
    finally:
        os._exit(status)  # not up the stack, whose frames are the parent's


def _detach(
    title: Sequence[str],
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
    passed: Sequence[int],
    mask: Iterable[int],
) -> None:
    """Replace the parent's session, signal handlers, file descriptors and environment."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for reset in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(reset, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    above = [os.dup(number) if number < 3 else number for number in streams]  # none is overwritten before it is used
    for target, source in enumerate(above):
        os.dup2(source, target)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in passed:
            with suppress(OSError):  # the descriptor of listdir itself
                os.close(number)
    setproctitle(
        " ".join(title)
    )  # it finds the memory to write to by the environment that the process was started with
    variables = {name: value for name, value in environment.items() if name}  # a copy: it may be our own
    os.environ.clear()
    os.environ.update(variables)


def _run_to_exit(run: Callable[[], object]) -> int:
    """Run a function to its end as the interpreter would: wait for threads, call exit handlers. Returns the exit status."""
    status: object = None
    try:
        run()
    except SystemExit as error:
        status = error.code
    except BaseException:  # noqa: BLE001  # printed as the interpreter prints it
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)
