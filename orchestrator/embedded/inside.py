"""What a process in the stack says and asks: "I am ready", and "is my stack still there?"."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from orchestrator.embedded.identity import identify

READY_FD = "CANTATA_READY_FD"
LISTEN_FD = "CANTATA_LISTEN_FD"
STACK_PID = "CANTATA_STACK_PID"


def announce_ready() -> None:
    """Tell the supervisor that this worker takes work. Only the first call counts; outside a stack it does nothing."""
    number = os.environ.pop(READY_FD, None)  # taken out, so that a child of this process does not announce itself
    if number is None:
        return
    with suppress(OSError):  # the supervisor may be gone; stack_is_gone tells
        os.write(int(number), b"ready\n")
        os.close(int(number))


def inherited_socket() -> socket.socket | None:
    """Return the socket that the supervisor listens on for this process; None outside a stack."""
    number = os.environ.pop(LISTEN_FD, None)  # taken out, so that a child of this process does not listen there too
    if number is None:
        return None
    listening = socket.socket(fileno=int(number))
    listening.set_inheritable(False)
    listening.setblocking(False)  # Tornado accepts until there is nothing left to accept
    return listening


def stack_is_gone() -> bool:
    """Whether the supervisor of this process died without ending it: then end yourself. False outside a stack."""
    told = os.environ.get(STACK_PID)
    if told is None or os.getppid() == int(told):
        return False
    return identify(int(told)) is None  # a grandchild's parent is not the supervisor, so look for that
