"""What the ledger says: of runs and steps, and in answer to what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cantata.models.graph import Spec
from cantata.models.values import ErrorInfo, JsonValue, Usage
from cantata.models.wire import RunStatus


@dataclass(frozen=True, slots=True)
class Ready:
    """A step that may be sent to a worker, and the priority of its run: 0 goes first, 9 last."""

    step_id: str
    spec: Spec
    priority: int = 0
    has_waited: bool = False
    """Whether it waited its turn before, and now goes before all that waits with its priority."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a run, and the priority it got: the more runs of its tenant are under way, the later it has its turn.

    `queued`: it is new, and waits behind others of its session. `full`: too many wait there already, so it was not taken in.
    """

    word: Literal["new", "queued", "known", "full"]
    priority: int

    @property
    def new(self) -> bool:
        """Whether it was taken in by this call."""
        return self.word in ("new", "queued")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The conversation that a turn belongs to, and how it is kept."""

    name: str
    """As `sessions.scoped` gives it."""
    keep_s: float
    max_entries: int
    max_waiting: int


@dataclass(frozen=True, slots=True)
class Begun:
    """A step this worker holds the lease of, with what its handler needs."""

    run_id: str
    step_id: str
    attempt: int
    owner: str
    spec: Spec
    given: JsonValue
    failures: int
    inputs: Mapping[str, JsonValue]
    definitions: str
    tenant: str = ""
    run_kind: str = ""
    """turn or chain."""
    session: str = ""
    """The conversation a turn belongs to, as `sessions.scoped` names it."""
    asked_at: float = 0.0
    """When it was asked for, by this process's monotonic clock."""
    waited_s: float | None = None
    """How long it had been sent; None if it was begun without a message of its own."""

    @property
    def lease(self) -> str:
        """The name of the lease."""
        return f"{self.run_id}|{self.attempt}|{self.owner}|{self.step_id}"

    @property
    def worker(self) -> str:
        """The process that does it."""
        return self.owner.partition("~")[0]


Refusal = Literal["gone", "closed", "over", "early", "leased", "refused"]


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a worker may begin in the call that commits: work it knows to be cheap, on its queue; else the next of its batch."""

    queue: str
    cheap: str = "\n"
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer to a commit: whether it counted, what to send, and the step already begun for this worker."""

    word: Literal["ok", "again", "stale", "closed", "gone"]
    sends: tuple[Ready, ...]
    begun: Begun | None
    run_status: RunStatus | Literal[""]
    following: tuple[tuple[str, Ready], ...] = ()
    """First steps of runs whose turn came, since the run before them in their session is over."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """A step that nobody began in time: its message is lost, or waits in a long queue."""

    run_id: str
    step_id: str
    queue: str
    priority: int
    sent_at: float
    """When it was first sent, in seconds by Redis's clock."""
    is_first_look: bool


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep of one shard found."""

    sends: tuple[tuple[str, Ready], ...] = ()
    """Steps to send now."""
    overdue: tuple[Overdue, ...] = ()
    lost: int = 0
    """How many leases were lost."""
    fired: int = 0
    """How many timers fired."""
    fault: str = ""
    """Why this shard could not be swept, if so; the others were."""
    ended: tuple[str, ...] = ()
    """Runs that this ended: their time is over, or a step took down too many workers."""
    waiting: tuple[str, ...] = ()
    """Tickets (`run|step`) of calls that wait for limits and are to be looked for."""
    left: tuple[str, ...] = ()
    """Those of calls that wait no more: their run is over, or they were stopped."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as the ledger has it."""

    step_id: str
    state: str
    attempt: int
    failures: int
    crashes: int
    owner: str
    spec: Spec
    output: JsonValue
    info: Mapping[str, JsonValue]

    @property
    def worker(self) -> str:
        """The process that does it, while it runs."""
        return self.owner.partition("~")[0]

    @property
    def error(self) -> ErrorInfo | None:
        """Why it failed, if it did."""
        error = self.info.get("error")
        return ErrorInfo.model_validate(error) if error else None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run as the ledger has it."""

    run_id: str
    status: RunStatus
    kind: str
    request: str
    definitions: str
    created_at_ms: int
    closed_at_ms: int | None
    now_ms: int
    error: ErrorInfo | None
    usage: Usage
    count: int
    left: int
    failures: int
    terminals: tuple[str, ...]
    labels: Mapping[str, str]
    names: Mapping[str, str]
    steps: Mapping[str, StepRecord]
    code: tuple[str, ...] = ()
    """The user's modules that its steps ran with, as `module@digest`."""

    def answering(self, name: str) -> StepRecord | None:
        """The step that answers to a name."""
        while name in self.names:
            name = self.names[name]
        return self.steps.get(name)


def owner_of(owner: str) -> str:
    """The process in the name that a lease has of its owner."""
    return owner.rpartition("~")[0]
