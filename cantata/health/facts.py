"""What was found out, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cantata.models.definitions import Limits
from cantata.state.fleet.load import QueueLoad
from cantata.state.fleet.registry import Worker
from cantata.state.limits.limiter import LimitUsage


@dataclass(frozen=True, slots=True)
class Missing:
    """A part that could not be found out, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Node:
    """A server that keeps runs."""

    place: str
    """As it may be shown."""
    info: Mapping[str, Any]
    """What it says of itself: the reply to INFO."""


@dataclass(frozen=True, slots=True)
class Store:
    """The Redis that keeps the runs: one server, or the nodes of a cluster that take writes."""

    nodes: Sequence[Node]
    answer_ms: float
    """How long it took to answer."""
    refusal: str = ""
    """Why it takes no writes, in a sentence; empty if it does."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Who works, and on what."""

    workers: Sequence[Worker]
    sweep_age_s: float | None
    """Since a sweep for lost work last ended; None if none ever did."""
    runs_open: int
    totals: Mapping[str, int]
    """What happened since the ledger began, such as `closed:failed`."""
    queues: Mapping[str, QueueLoad] | Missing
    """Missing if the broker could not be asked what waits there."""
    handed_back: Sequence[str] = ()
    """Steps that workers handed back in the last minute, and why."""
    last_ended: Mapping[str, int] = field(default_factory=dict)
    """How the last runs that ended did: status → how many."""
    dead_letters: int = 0
    """Messages in our queues that were no steps."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The limits that the configuration here names, and how they stand."""

    limits: Limits
    standing: LimitUsage


@dataclass(frozen=True, slots=True)
class Door:
    """A service that answers over HTTP."""

    name: str
    url: str
    answer_ms: float | None = None
    """How long it took; None if there was no answer."""
    fault: str = ""
    """What is wrong with it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was found out."""

    version: str
    """Of the command that asks."""
    store: Store | Missing
    fleet: Fleet | Missing
    shared: Shared | Missing | None = None
    """None if the configuration here names no limits."""
    doors: Sequence[Door] = ()
    broker: str = ""
    """Where messages go, if that is not the Redis of the runs; as it may be shown."""
    stack: str = ""
    """The folder of a stack that runs here; empty if there is none."""
    dead: Sequence[str] = ()
    """Its processes that do not run."""
    code_fault: str = ""
    """Why it does not serve changed code."""
