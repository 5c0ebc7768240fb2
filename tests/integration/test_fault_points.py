"""Points strike the process they are meant for, once, and do nothing when off."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cantata.operation import fault_points

HERE = str(Path(__file__).parents[2])


def run(fault: str, code: str) -> subprocess.CompletedProcess[str]:
    """A process that runs this code with a fault armed."""
    command = [sys.executable, "-c", f"from cantata.operation import fault_points as f\n{code}"]
    return subprocess.run(
        command, env={**os.environ, "CANTATA_FAULT": fault}, capture_output=True, text=True, cwd=HERE, check=False
    )


def test_off_a_point_does_nothing() -> None:
    assert [fault_points.at(label) for label in fault_points.LABELS] == [False] * len(fault_points.LABELS)


def test_a_process_kills_itself_when_it_comes_to_a_point_for_the_nth_time() -> None:
    done = run("begun:2", "f.at('committed'); f.at('begun'); print('once', flush=True); f.at('begun'); print('twice')")

    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "once\n")


def test_a_fault_in_a_file_strikes_one_process_once(tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    fault.write_text("begun:1:kill")

    first, second = (run(f"@{fault}", "f.at('begun'); print('lived')") for _ in range(2))

    assert (first.returncode, second.stdout) == (-signal.SIGKILL, "lived\n")
    assert not fault.exists()


def test_processes_may_be_counted_together(tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    fault.write_text("begun:3:kill:all")

    ends = [run(f"@{fault}", "f.at('begun'); f.at('committed')").returncode for _ in range(4)]

    assert ends == [0, 0, -signal.SIGKILL, 0]


def test_a_frozen_process_wakes_and_goes_on() -> None:
    since = time.monotonic()
    done = run("begun:1:freeze", "f.FREEZE_S = 0.3; f.at('begun'); print('woke')")

    assert (done.returncode, done.stdout) == (0, "woke\n")
    assert time.monotonic() - since > 0.3


def test_a_dropped_process_has_no_connection_left(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(tmp_path / 's')!r}); print(f.at('begun'), s.recv(1))"
        done = run("begun:1:drop", code)

    assert done.stdout == "True b''\n"


@pytest.mark.parametrize("fault", ["begun", "begun:x", "nowhere:1", "begun:1:tickle"])
def test_a_fault_that_is_none_is_told(fault: str) -> None:
    done = run(fault, "f.at('begun')")

    assert done.returncode == 1
    assert "label:n[:kind]" in done.stderr
