"""Communication of a process with its stack: reports to the supervisor, the inherited socket, whether the stack still runs."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from functools import cache

from cantata.operation.embedded.process_identity import identify

READY = "ready"
SERVING = "serving"
READY_FD = "CANTATA_READY_FD"
GENERATION = "CANTATA_GENERATION"
FINISH = signal.SIGUSR2
"""Signal to a worker that another one replaces: it takes no further steps, and exits when its steps under way are done."""
LISTEN_FD = "CANTATA_LISTEN_FD"
STACK_PID = "CANTATA_STACK_PID"
VIRTUAL_TIME = "CANTATA_VIRTUAL_TIME"
NOTIFY_SOCKET = "NOTIFY_SOCKET"
"""Set by systemd for the processes of a unit of `Type=notify`."""
QUIET = "CANTATA_QUIET"
"""Set where another process of the same command warns of what all of them see."""


@cache
def announce_ready() -> None:
    """Report to the supervisor that this worker takes steps. Only the first call counts; outside a stack it does nothing."""
    report(f"{READY}\n")


def announce_serving() -> None:
    """Report to the supervisor that this worker has loaded all its modules."""
    report(f"{SERVING}\n")


def report(line: str) -> None:
    """Write a line to the supervisor; outside a stack it does nothing."""
    number = _supervisor()
    if number is not None:
        with suppress(OSError):  # the supervisor may have exited; is_stack_gone finds that
            os.write(number, line.encode("utf-8", "surrogateescape"))


@cache
def _supervisor() -> int | None:
    number = os.environ.pop(READY_FD, None)  # taken out, so that a child of this process does not announce itself
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return int(number)


def has_systemd() -> bool:
    """Return whether systemd waits for this process to tell that it is ready: it is of a unit of `Type=notify`."""
    return bool(os.environ.get(NOTIFY_SOCKET))


def notify_systemd(state: str) -> None:
    """Send lines such as `READY=1` to systemd, if it waits for them."""
    address = os.environ.get(NOTIFY_SOCKET, "")
    if address:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications,
            suppress(OSError),
        ):  # systemd itself may restart
            notifications.sendto(
                state.encode(errors="replace"), address.replace("@", "\0", 1) if address.startswith("@") else address
            )


def generation() -> int:
    """Return how many processes this one replaced in turn, each with older code."""
    return int(os.environ.get(GENERATION, "0"))


def is_in_stack() -> bool:
    """Return whether this process is part of a stack."""
    return STACK_PID in os.environ


def is_quiet() -> bool:
    """Return whether another process of the same command warns of what all of them see."""
    return QUIET in os.environ


def has_virtual_time() -> bool:
    """Return whether this process is part of a stack with virtual time."""
    return is_in_stack() and VIRTUAL_TIME in os.environ


def inherited_socket() -> socket.socket | None:
    """Return the socket that the supervisor listens on for this process; None outside a stack."""
    number = os.environ.pop(LISTEN_FD, None)  # taken out, so that a child of this process does not listen there too
    if number is None:
        return None
    listening = socket.socket(fileno=int(number))
    listening.set_inheritable(False)
    listening.setblocking(False)  # Tornado accepts until there is nothing left to accept
    return listening


def is_stack_gone() -> bool:
    """Return whether the supervisor died without stopping this process, which should then exit. False outside a stack."""
    pid = os.environ.get(STACK_PID)
    if pid is None or os.getppid() == int(pid):
        return False
    return identify(int(pid)) is None  # a grandchild's parent is not the supervisor, so look for that
