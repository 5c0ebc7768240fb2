"""Submission: how a request is submitted, beside what it runs; the time limit of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_WORKFLOW_S = 30 * 86400.0  # of a run of a workflow in Python without a time limit of its own; it may sleep for days


@dataclass(frozen=True, slots=True)
class Submission:
    """Labels and key of a run; and, for those who change a request before it is checked, its webhooks, time limit and session."""

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


class Timeout(NamedTuple):
    """The longest time of a run, and the setting that gives it; None seconds: the default."""

    seconds: float | None
    source: str
