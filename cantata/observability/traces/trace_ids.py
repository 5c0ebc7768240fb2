"""Ids of a run's trace, computed from the run's id: nothing is stored or sent, and every machine gets the same."""

from __future__ import annotations

from hashlib import sha256


def trace_id(run_id: str) -> int:
    """Return the id of the trace of a run: 128 bits."""
    return _bits(f"run\n{run_id}", 16)


def run_span(run_id: str) -> int:
    """Return the id of the root span of a run: 64 bits."""
    return _bits(f"root\n{run_id}", 8)


def step_span(run_id: str, step_id: str, attempt: int) -> int:
    """Return the id of the span of one attempt of a step: 64 bits."""
    return _bits(f"step\n{run_id}\n{step_id}\n{attempt}", 8)


def _bits(text: str, size: int) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:size]) or 1  # 0 is not a valid id
