"""Functions that the containers of `./run compose-test` call."""

from __future__ import annotations

import socket
import time


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def nap(seconds: float) -> str:
    """Take a while; says in which container."""
    time.sleep(seconds)
    return socket.gethostname()
