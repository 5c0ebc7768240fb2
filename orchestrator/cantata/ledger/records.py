"""Records of runs and steps, and results of the ledger's calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cantata.flows.graph import Outcome, Spec, answering
from cantata.flows.wire import RunStatus
from cantata.values import ErrorInfo, JsonValue, Usage


@dataclass(frozen=True, slots=True)
class Ready:
    """A step to send to a worker, and the priority of its run: 0 is the highest, 9 the lowest."""

    step_id: str
    spec: Spec
    priority: int = 0
    has_waited: bool = False
    """True if it was in its queue before, and is now put at the head of it."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of accepting a run, and its priority: the more runs of its tenant are open, the lower it is.

    `queued`: it is new, and waits behind others of its session. `full`: too many wait there already, so it was not accepted.
    """

    result: Literal["new", "queued", "known", "full"]
    priority: int

    @property
    def new(self) -> bool:
        """True if this call accepted the run."""
        return self.result in ("new", "queued")


@dataclass(frozen=True, slots=True)
class RunSession:
    """The session that a turn belongs to, and how its conversation is kept."""

    name: str
    """As `conversations.scoped` gives it."""
    keep_s: float
    max_entries: int
    max_waiting: int


@dataclass(frozen=True, slots=True)
class Begun:
    """A step that this worker has leased, with what its handler gets."""

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
    """turn, chain, batch or webhook."""
    session: str = ""
    """The session a turn belongs to, as `conversations.scoped` names it."""
    priority: int = 0
    """The priority of the run: 0 is the highest, 9 the lowest."""
    asked_at: float = 0.0
    """The time of the request for the lease, by this process's monotonic clock."""
    waited_s: float | None = None
    """The time since it was sent; None if it was begun without a message of its own."""
    unreadable: str = ""
    """Why nobody can execute it: its record, or one of its inputs, cannot be read. Its spec then has the fields that can."""

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
class AttemptRecord:
    """The record of an attempt, as it is committed to the ledger."""

    outcome: Outcome
    output: str
    info: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Ahead:
    """The steps that a worker may begin in the call that commits: cheap work on its queue, or the next step of its batch."""

    queue: str
    cheap: str = "\n"
    next_step: str = ""
    rounds: bool = False
    """Whether it may begin the next round of a model, which is not cheap."""
    tool: str = ""
    """The work of a quick function of another queue that it may call for its model."""
    advance: tuple[Begun, AttemptRecord] | None = None
    """A workflow's advance behind the committed step, executed already: it is recorded too if this call begins it."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit: whether it counted, the steps to send, and the step already begun for this worker."""

    result: Literal["ok", "again", "stale", "closed", "gone"]
    sends: tuple[Ready, ...]
    begun: Begun | None
    run_status: RunStatus | Literal[""]
    next_runs: tuple[tuple[str, Ready], ...] = ()
    """First steps of the next runs of sessions whose current run ended."""
    has_advanced: bool = False
    """The advance that was executed already is recorded too, and what is to be sent or has begun follows from it."""
    results_before: tuple[str, ...] = ()
    """The results of the steps that were recorded by the same call before it."""
    has_posts: bool = False
    """The outbox has an event of the run to post to webhooks."""


@dataclass(frozen=True, slots=True)
class Woken:
    """The result of starting the next attempt of a step that waits."""

    result: Literal["woken", "over", "other", "unreadable"]
    sends: tuple[Ready, ...] = ()
    error: Exception | None = None
    """The reason why it cannot be read."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """A step that no worker began in time: its message is lost, or waits in a long queue."""

    run_id: str
    step_id: str
    queue: str
    priority: int
    sent_at: float
    """The time it was first sent, in seconds by Redis's clock."""
    is_first_look: bool


@dataclass(frozen=True, slots=True)
class ItemFault:
    """An item of a sweep that could not be handled."""

    duty: str
    item: str
    """Its name in the list of its duty: `run|step` of a step to send, a schedule."""
    error: Exception | str
    shard: int
    tries: int = 0
    """The number of its failures, if it is recorded; at the third it is parked."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep of one shard."""

    sends: tuple[tuple[str, Ready], ...] = ()
    """Steps to send now."""
    overdue: tuple[Overdue, ...] = ()
    lost: int = 0
    """The number of lost leases."""
    fired: int = 0
    """The number of timers that fired."""
    fault: str = ""
    """The error if this shard could not be swept; the others were."""
    ended: tuple[str, ...] = ()
    """Runs that the sweep ended: they timed out, or a step crashed too many workers."""
    waiting: tuple[str, ...] = ()
    """Tickets (`run|step`) of calls that wait for a rate limit and are to be checked."""
    left: tuple[str, ...] = ()
    """Tickets of calls that no longer wait: their run is over, or they were stopped."""
    tasks: tuple[str, ...] = ()
    """Dispatched steps (`run|attempt|step`) whose results are to be looked for."""
    revoked: tuple[str, ...] = ()
    """Tasks (`run|attempt|step`) whose results nobody needs any more."""
    schedules: tuple[DueSchedule, ...] = ()
    """Schedules with times that have come, or that wait for a run that is over."""
    faults: tuple[ItemFault, ...] = ()
    """Items that could not be handled or read; all others were."""


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule that a sweep found due. Texts are JSON."""

    shard: int
    scope: str
    """Its name in keys: with its tenant."""
    now_ms: int
    """The time, plus what a test has skipped."""
    spec: str
    request: str
    labels: str
    quota: str
    next_at: str
    """Its next time (ms); empty if there is none."""
    mark: str
    skipped_ms: int
    grace_ms: int
    """The part of it for which the schedule is not late: a fleet that ran meanwhile would have been in time."""
    pending: tuple[str, ...]
    """The first of its times that wait for a run."""
    open_run: str
    """Its newest run that is not over; empty if there is none."""


@dataclass(frozen=True, slots=True)
class StepSummary:
    """The state of a step, as recorded."""

    step_id: str
    state: str
    attempt: int
    failures: int
    crashes: int
    owner: str
    """The process that has its lease, and the number of the call; "-" if none has."""

    @property
    def worker(self) -> str:
        """The process that does it, while it runs."""
        return self.owner.partition("~")[0]


@dataclass(frozen=True, slots=True)
class StepRecord(StepSummary):
    """A step, as recorded."""

    spec: Spec
    output: JsonValue
    info: Mapping[str, JsonValue]

    @property
    def awaits_signal(self) -> bool:
        """Return whether it waits for a signal; a sleep of a workflow in Python does not."""
        return self.state == "waiting_signal" and not self.spec.params.get("sleeps")

    @property
    def error(self) -> ErrorInfo | None:
        """Its error, if it failed."""
        error = self.info.get("error")
        return ErrorInfo.model_validate(error) if error else None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run, as recorded."""

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
    webhook_runs: tuple[str, ...] = ()
    """The runs that post its events to webhooks, the first ones."""
    code: tuple[str, ...] = ()
    """The modules of user code that its steps ran with, as `module@digest`."""
    retried_as: str = ""
    """The newest run that retries it."""
    unreadable: str = ""
    """In a list: why its record cannot be read, and how to remove it; its other fields are then unknown."""

    def answering(self, name: str) -> StepRecord | None:
        """Return the step that answers to a name."""
        return self.steps.get(answering(self.names, name))


def owner_of(owner: str) -> str:
    """Return the process in the owner of a lease."""
    return owner.rpartition("~")[0]
