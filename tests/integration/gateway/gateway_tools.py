"""What the agents and chains of these tests call."""

from __future__ import annotations


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b
