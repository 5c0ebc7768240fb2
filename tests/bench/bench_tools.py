"""The work of the measured steps: none, or a pause."""

from __future__ import annotations

import time

NAP_S = 0.01  # twice what counts as cheap


def noop(**_: object) -> int:
    """Do nothing."""
    return 1


def nap(**_: object) -> int:
    """Do nothing for a moment."""
    time.sleep(NAP_S)
    return 1


def count(n: int) -> int:
    """Count on by one."""
    return n + 1
