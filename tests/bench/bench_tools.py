"""The work of every measured step: none."""

from __future__ import annotations


def noop(**_: object) -> int:
    """Do nothing."""
    return 1
