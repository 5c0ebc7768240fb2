"""Processes are known by more than their numbers."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from cantata.operation.embedded import process_identity
from cantata.operation.embedded.process_identity import identify, wait_ended


def test_a_process_is_known_by_more_than_its_pid(sleeper: subprocess.Popen[bytes]) -> None:
    known = identify(sleeper.pid)

    assert known is not None
    assert known.is_alive()
    assert not replace(known, started="earlier").is_alive()


def test_a_process_that_changes_its_title_is_the_same() -> None:
    code = "import setproctitle; print(flush=True); input(); setproctitle.setproctitle('another'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        known = identify(process.pid)
        print(file=process.stdin, flush=True)
        process.stdout.readline()

        assert known is not None
        assert "another" in Path(f"/proc/{process.pid}/cmdline").read_text()
        known.signal(signal.SIGKILL)
        assert process.wait(5) == -signal.SIGKILL


def test_a_process_that_merely_got_the_pid_is_not_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    known = identify(sleeper.pid)
    assert known is not None

    replace(known, started="earlier").signal(signal.SIGKILL)
    replace(known, started="earlier").signal(signal.SIGKILL, group=True)
    assert sleeper.poll() is None

    known.signal(signal.SIGKILL)
    assert sleeper.wait(5) == -signal.SIGKILL


def test_a_zombie_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    known = identify(sleeper.pid)
    assert known is not None

    sleeper.kill()

    assert wait_ended([known], 5.0)  # it was not waited for
    assert identify(sleeper.pid) is None


def test_ps_tells_the_same_as_proc(sleeper: subprocess.Popen[bytes]) -> None:
    result = process_identity._from_ps(sleeper.pid)

    assert result is not None
    assert result == process_identity._from_ps(sleeper.pid)
    assert process_identity._from_ps(2**22 + 1) is None
