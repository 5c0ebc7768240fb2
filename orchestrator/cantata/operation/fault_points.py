"""Named points at which tests make a process die, freeze or lose its connections.

Disabled, a point is a call that does nothing. Enabled by the environment, `CANTATA_FAULT=label:n[:kind]` injects a fault when this process
reaches the point for the n-th time. `CANTATA_FAULT=@FILE` reads the same from the one line of a file, for whichever process reaches the
point first: that process removes the file, and writing it again arms it again. With a further `:all` in the file, processes are counted
together, in `FILE.count`, which whoever writes the file removes.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

VARIABLE = "CANTATA_FAULT"
FREEZE_S = 10.0  # two leases: steps of a frozen process are executed elsewhere before it wakes
KINDS = ("kill", "freeze", "drop")
LABELS = (
    "accepted",  # the run is in the ledger, its first message is not sent
    "accept-replied",
    "fork-replied",
    "begin-replied",
    "begun",
    "tool-started",
    "tool-finished",
    "task-published",  # by its step, which is not recorded as dispatched
    "model-sent",
    "model-answered",
    "budget-reserved",
    "budget-settled",
    "rotation-replied",  # the next agent is known, and not yet recorded
    "memory-replied",
    "advance-executed",  # of a workflow, behind a step; neither is recorded
    "commit-replied",
    "outbox-replied",  # runs that post to webhooks are accepted, their first messages are not sent
    "committed",
    "graph-expanded",
    "run-closed",
    "canvas-sent",
    "chord-joined",  # the join of a chord is about to be sent by Celery
    "successors-sent",
    "lease-renewed",
    "step-released",
    "swept",  # expired leases are free, nothing is sent yet
    "timer-fired",
    "schedule-fired",  # its runs are accepted, their first messages are not sent
    "event-appended",
)
"""The points. At those that end in `-replied`, a dropped connection means that the call was executed and its reply is lost."""


def _never(_: str) -> bool:
    return False


def _armed(setting: str) -> Callable[[str], bool]:
    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def at(label: str) -> bool:
        with lock:
            text = _read(setting)
            counts[f"{text} {label}"] += 1
            wanted, times, kind, is_shared = _parse(text) if text else ("", 0, "", False)
            is_now = (
                label == wanted
                and times == (_count(setting) if is_shared else counts[f"{text} {label}"])
                and _claim(setting)
            )
        return is_now and _inject(kind)

    return at


def _read(setting: str) -> str:
    if not setting.startswith("@"):
        return setting
    try:
        file = Path(setting[1:])
        return f"{file.read_text().strip()} {file.stat().st_mtime_ns}"
    except FileNotFoundError:
        return ""


def _parse(text: str) -> tuple[str, int, str, bool]:
    spec = text.partition(" ")[0]
    label, _, rest = spec.removesuffix(":all").partition(":")
    times, _, kind = rest.partition(":")
    kind = kind or "kill"
    if label not in LABELS or kind not in KINDS or not times.isdigit():
        sys.exit(
            f"{VARIABLE}: {text!r} is not label:n[:kind] with a label of {', '.join(LABELS)} and a kind of {', '.join(KINDS)}"
        )
    return label, int(times), kind, spec.endswith(":all")


def _count(setting: str) -> int:
    """Count that a process reached the wanted point; return how often any has."""
    with open(f"{setting[1:]}.count", "ab") as counted:
        fcntl.flock(counted, fcntl.LOCK_EX)
        counted.write(b".")
        counted.flush()
        return counted.tell()


def _claim(setting: str) -> bool:
    if not setting.startswith("@"):
        return True
    file = Path(setting[1:])
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    struck_file(file).write_text(str(os.getpid()))
    return True


def struck_file(file: Path) -> Path:
    """Return the file in which the process that took the setting out of another writes its number."""
    return file.with_suffix(".struck")


def _inject(kind: str) -> bool:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "freeze":
        wake = f"import os, signal, time; time.sleep({FREEZE_S}); os.kill({os.getpid()}, signal.SIGCONT)"
        subprocess.Popen([sys.executable, "-c", wake], start_new_session=True)
        signal.raise_signal(signal.SIGSTOP)  # to this thread, which goes no step further; the others stop with it
    else:
        _drop_connections()
    return kind == "drop"


def _drop_connections() -> None:
    """Shut down every connection of this process, as a cut network would."""
    for name in os.listdir("/dev/fd"):
        try:
            number = int(name)
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as copy:
                if copy.getpeername():  # the ends of a socket pair inside this process have no name
                    copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # not open, not connected, or closed meanwhile


at: Callable[[str], bool] = _armed(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else _never
"""Mark that this process reached a point; return whether its connections were dropped there."""
