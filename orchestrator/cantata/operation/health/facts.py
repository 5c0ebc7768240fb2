"""Facts about a deployment, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from cantata.engine.fleet.load import FleetLoad, QueueLoad
from cantata.engine.limits.limiter import LimitUsage
from cantata.flows.definitions import Limits
from cantata.ledger.parked import ParkedItem


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A part that could not be read, and the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class RedisNode:
    """A Redis server that stores runs."""

    address: str
    """Without a password."""
    info: Mapping[str, Any]
    """Its reply to INFO."""


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """The Redis that stores the runs: one server, or the masters of a cluster."""

    nodes: Sequence[RedisNode]
    answer_ms: float
    """Duration of one round trip."""
    write_error: str = ""
    """The reason why it refuses writes; empty if it does not."""


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """Workers, queues and runs."""

    load: FleetLoad
    queue_names: Set[str] = frozenset()
    """Queues that have workers or ready steps."""
    queues: Mapping[str, QueueLoad] | Unavailable = Unavailable("the broker was not read")
    """Unavailable if the broker could not be read; with nothing waiting, in a process without a broker."""
    has_broker: bool = True
    refused_steps: Sequence[str] = ()
    """Steps that workers refused in the last minute, and the reason of each."""
    parked: Sequence[ParkedItem] = ()
    """Items that the sweep could not handle."""
    last_ended: Mapping[str, int] = field(default_factory=dict)
    """Outcomes of the last runs that closed: status → count."""


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """The shared limits that the local configuration sets, and their use."""

    limits: Limits
    usage: LimitUsage


@dataclass(frozen=True, slots=True)
class ServiceProbe:
    """Answer of an HTTP service to a health request."""

    name: str
    url: str
    answer_ms: float | None = None
    """None if there was no answer."""
    fault: str = ""
    """The problem that the answer reports, or the reason why there was none."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts that checks are made from."""

    version: str
    """Version of the command that checks."""
    redis: RedisFacts | Unavailable
    fleet: FleetFacts | Unavailable
    limits: LimitFacts | Unavailable | None = None
    """None if the local configuration sets no limits."""
    services: Sequence[ServiceProbe] = ()
    broker: str = ""
    """Address of the broker without its password, if it is not the Redis of the runs."""
    stack_home: str = ""
    """Folder of a local stack; empty if none runs."""
    dead_processes: Sequence[str] = ()
    """Processes of the stack that are not running."""
    code_fault: str = ""
    """The reason why the stack does not serve changed code."""
