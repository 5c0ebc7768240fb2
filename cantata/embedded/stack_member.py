"""What a process in the stack says and asks: "I am ready", and "is my stack still there?"."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from functools import cache

from cantata.embedded.process_identity import identify

READY = "ready"
SERVING = "serving"
READY_FD = "CANTATA_READY_FD"
GENERATION = "CANTATA_GENERATION"
FINISH = signal.SIGUSR2
"""Tells a worker that another one replaces it: it takes no step more, and ends when those under way are done."""
LISTEN_FD = "CANTATA_LISTEN_FD"
STACK_PID = "CANTATA_STACK_PID"
VIRTUAL_TIME = "CANTATA_VIRTUAL_TIME"


_told: set[str] = set()


def announce_ready() -> None:
    """Tell the supervisor that this worker takes work. Only the first call counts; outside a stack it does nothing."""
    if READY not in _told:
        _told.add(READY)
        report(f"{READY}\n")


def announce_serving() -> None:
    """Tell the supervisor that this worker has loaded all that it needs."""
    report(f"{SERVING}\n")


def report(line: str) -> None:
    """Tell the supervisor something; outside a stack it does nothing."""
    number = _supervisor()
    if number is not None:
        with suppress(OSError):  # the supervisor may be gone; stack_is_gone tells
            os.write(number, line.encode("utf-8", "surrogateescape"))


@cache
def _supervisor() -> int | None:
    number = os.environ.pop(READY_FD, None)  # taken out, so that a child of this process does not announce itself
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return int(number)


def generation() -> int:
    """Return how many processes did this one's work before it, each with older code."""
    return int(os.environ.get(GENERATION, "0"))


def is_in_stack() -> bool:
    """Return whether this process is part of a stack."""
    return STACK_PID in os.environ


def has_virtual_time() -> bool:
    """Return whether this process is part of a stack whose time may be skipped."""
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
    """Whether the supervisor of this process died without ending it: then end yourself. False outside a stack."""
    told = os.environ.get(STACK_PID)
    if told is None or os.getppid() == int(told):
        return False
    return identify(int(told)) is None  # a grandchild's parent is not the supervisor, so look for that
