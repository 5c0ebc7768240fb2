"""Submission: how a request is submitted, beside what it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Submission:
    """Labels, webhooks, time limit, key and session of a run."""

    labels: Mapping[str, str] = field(default_factory=dict)
    webhooks: Sequence[str] = ()
    """Names of the configuration, or URLs."""
    timeout_s: float | None = None
    """The time limit of the run, in seconds; None: that of the request, else of the configuration."""
    idempotency_key: str | None = None
    session: str | None = None
    """The conversation of a turn."""


AS_CONFIGURED = Submission()
"""Without labels, key or session, and with what the request or the configuration says."""
