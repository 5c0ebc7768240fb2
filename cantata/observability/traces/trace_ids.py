"""The ids of a run's trace, worked out from the run's own id: so nothing is stored or carried, and any machine knows them."""

from __future__ import annotations

from hashlib import sha256


def trace_id(run_id: str) -> int:
    """The trace of a run: 128 bits."""
    return _bits(f"run\n{run_id}", 16)


def run_span(run_id: str) -> int:
    """The root of a run's trace: 64 bits."""
    return _bits(f"root\n{run_id}", 8)


def step_span(run_id: str, step_id: str, attempt: int) -> int:
    """One attempt of a step."""
    return _bits(f"step\n{run_id}\n{step_id}\n{attempt}", 8)


def _bits(text: str, size: int) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:size]) or 1  # 0 is no id
