"""Events of a run: one class for each type, with its effect on steps, attempts and runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, ValidationError

from cantata.flows.graph import StepState
from cantata.flows.waits import question_of
from cantata.flows.wire import RunStatus
from cantata.values import ErrorInfo, Value

LATEST_TIME = 253_000_000_000.0  # that Python shows, in the year 9987


class RunEvent(Value):
    """An event of a run. Events of types that this version does not know are of this class."""

    model_config = ConfigDict(extra="ignore")  # events of failures contain the whole record of the attempt

    seq: int = Field(description="offset in the run's stream: rises by one, no gap and no repeat")
    run_id: str = Field(description="the run")
    at_ms: int = Field(description="Redis's clock, milliseconds since 1970")
    type: str = Field(description="what happened")
    step: str | None = Field(None, description="the step that it is about; the run, if null")
    attempt: int | None = Field(None, description="the attempt of the step, from 1")
    worker: str | None = Field(
        None, description="the worker of the attempt; an end names it if nothing says when it started"
    )

    step_state: ClassVar[StepState | None] = None
    """The state that the event puts its step in; None if the step stays as it is."""
    ends_step: ClassVar[bool] = False
    ends_attempt: ClassVar[bool] = False
    voids_attempt: ClassVar[str] = ""
    """The reason why everything that the attempt streamed before is void; empty if it is not void."""
    ends_run: ClassVar[bool] = False
    is_warning: ClassVar[bool] = False
    """True if the explanation is a warning about the run."""
    explained_by: ClassVar[str] = ""
    """The field with the reason for people; empty if the event has none."""
    line: ClassVar[str] = ""
    """The event in a line for people: a template of its fields, `reason`, `signal` and `author`; empty if it is not worth one."""

    @property
    def explanation(self) -> str:
        """Return the reason for people; empty if the event has none."""
        return str(getattr(self, self.explained_by)) if self.explained_by else ""

    @property
    def failure(self) -> ErrorInfo | None:
        """Return the reason as an error; None if the event has none."""
        return ErrorInfo(code=self.type, message=self.explanation, step=self.step) if self.explanation else None


class AttemptFailed(RunEvent):
    """An attempt that ended with an error."""

    error: ErrorInfo | None = Field(None, description="why the attempt failed")
    ends_attempt = True
    line = "failed {step}: {reason}"

    @property
    def explanation(self) -> str:
        """Return the error's message."""
        return self.error.message if self.error else ""

    @property
    def failure(self) -> ErrorInfo | None:
        """Return the error."""
        return self.error


class Notice(RunEvent):
    """An event with a message for people."""

    message: str = Field("", description="for people: what happened, and what to do")
    explained_by = "message"


class Action(RunEvent):
    """An event that somebody may have caused, who is named then."""

    by: str = Field("", description="who did it, if that is known: the name of a token, or `user@host`")
    via: str = Field("", description="the way: http, cli, python or flower")
    verified: bool | None = Field(
        None,
        description="whether a token or password proves the name; false: it is a claim; null: an older version did not say",
    )

    @property
    def author(self) -> str:
        """Return who did it, for people; empty if that is not known. A name that nothing proves is marked as a claim."""
        return f"{self.by} (claimed)" if self.by and self.verified is False else self.by


class RunAccepted(Action):
    """The run was accepted: it is durable from here on. One that forks or retries another names who did it."""

    type: Literal["accepted"] = "accepted"
    line = "accepted {run_id}{author}"
    forked_from: str | None = Field(None, description="the run it was forked from")


class StepStarted(RunEvent):
    """A worker began an attempt."""

    type: Literal["started"] = "started"
    line = "started {step} (attempt {attempt})"
    step_state = "running"


class TaskDispatched(RunEvent):
    """The step called a task of another Celery application, and waits for its outcome without a worker."""

    type: Literal["dispatched"] = "dispatched"
    line = "dispatched {step} as task {task_id}"
    task: str = Field("", description="the name of the task")
    task_id: str = Field("", description="its id, by which Flower and the result backend know it")


class StepDone(RunEvent):
    """The step succeeded; its output is recorded."""

    type: Literal["done"] = "done"
    step_state = "done"
    ends_step = True
    ends_attempt = True
    timed_out: bool = Field(False, description="a wait that timed out without a signal: its output is its default")


class StepExpanded(RunEvent):
    """The step added steps to the graph, and one of them takes its place."""

    type: Literal["expanded"] = "expanded"
    step_state = "done"
    ends_attempt = True
    steps: int = Field(0, description="how many steps it added")


class StepFailed(AttemptFailed):
    """The step failed for good."""

    type: Literal["failed"] = "failed"
    step_state = "failed"
    ends_step = True
    voids_attempt = "the attempt failed"


class StepMissedDeadline(AttemptFailed):
    """The step was not done when its join went on without it."""

    type: Literal["missed_deadline"] = "missed_deadline"
    step_state = "failed"
    ends_step = True
    voids_attempt = "it did not answer in time"
    line = "missed deadline {step}: {reason}"


class StepSkipped(RunEvent):
    """The step will not run: no path leads to it any more, or its scope was stopped."""

    type: Literal["skipped"] = "skipped"
    step_state = "skipped"
    ends_step = True
    ends_attempt = True
    line = "skipped {step}"


class StepRetried(AttemptFailed):
    """The attempt failed, and a retry follows."""

    type: Literal["retry"] = "retry"
    step_state = "waiting"
    voids_attempt = "the attempt failed; another attempt follows"
    line = "failed {step}, to be tried again: {reason}"


class RateLimited(RunEvent):
    """The attempt could not begin, since a limit is reached; it is repeated later."""

    type: Literal["rate_limited"] = "rate_limited"
    step_state = "waiting"
    ends_attempt = True
    line = "rate limited {step}: {reason}"
    reason: str = Field("", description="the limit that is reached")
    seconds: float = Field(0.0, description="the minimum wait, in seconds")
    explained_by = "reason"


class LeaseLost(RunEvent):
    """The worker of the attempt is gone; another attempt follows."""

    type: Literal["lost"] = "lost"
    step_state = "ready"
    ends_attempt = True
    voids_attempt = "its worker is gone; another attempt follows"
    line = "lost {step}: {reason}"

    @property
    def explanation(self) -> str:
        """Name the worker."""
        return f"its worker {self.worker} is gone"


class StepReleased(RunEvent):
    """A worker that stops handed the step back; another attempt follows."""

    type: Literal["released"] = "released"
    step_state = "ready"
    ends_attempt = True
    voids_attempt = "its worker was stopped; another attempt follows"
    line = "released {step}"


class StepRefused(Notice):
    """A worker that cannot execute the step handed it back; one event for each process and reason, whose later attempts have none."""

    type: Literal["refused"] = "refused"
    step_state = "ready"
    ends_attempt = True
    line = "refused {step} by {worker}: {reason}"


class OutcomeUncertain(RunEvent):
    """The worker of a step that runs at most once is gone; a signal must report the outcome."""

    type: Literal["uncertain"] = "uncertain"
    step_state = "waiting_signal"
    ends_attempt = True
    line = "uncertain {step}: its worker {worker} is gone; say how it ended: {signal}"

    @property
    def explanation(self) -> str:
        """Return the question to a person."""
        return "its worker was lost, so its outcome is unknown; the signal's value becomes its result"


class SignalAwaited(RunEvent):
    """The step waits for a signal."""

    type: Literal["waiting"] = "waiting"
    step_state = "waiting_signal"
    line = "waiting {step} for a signal{asks}: {signal}"
    asks: JsonValue = Field(None, description="the context of the question: the input of the wait")
    question: str = Field("", description="the question that the signal answers, if the wait has one beside its input")

    @property
    def explanation(self) -> str:
        """Return the question as text: its own, that in its context, or all of the context as JSON."""
        known = question_of(self.question, self.asks)
        return known or ("" if self.asks is None else json.dumps(self.asks, ensure_ascii=False))


class WaitReminded(RunEvent):
    """Nobody has answered the step so far; its reminder is due."""

    type: Literal["reminded"] = "reminded"
    line = "reminded of {step}: it still waits for a signal"


class WaitEscalated(RunEvent):
    """Nobody has answered the step in time; others may answer it too."""

    type: Literal["escalated"] = "escalated"
    line = "escalated {step}: {reason}"
    to: list[str] = Field(default_factory=list, description="who may answer from now on, beside those who might before")

    @property
    def explanation(self) -> str:
        """Return who may answer too."""
        return f"{', '.join(self.to)} may answer too" if self.to else "nobody has answered it in time"


class SleepBegan(RunEvent):
    """A workflow in Python sleeps."""

    type: Literal["sleeping"] = "sleeping"
    step_state = "running"
    line = "sleeping {step}: {reason}"
    sleeps_until_ms: int = Field(0, description="the time at which it ends, milliseconds since 1970")

    @property
    def explanation(self) -> str:
        """Return the time at which it ends."""
        ends_at = datetime.fromtimestamp(min(self.sleeps_until_ms / 1000, LATEST_TIME), UTC).astimezone()
        return f"sleeps until {ends_at:%Y-%m-%d %H:%M:%S}"


class SignalReceived(Action):
    """The step has its signal."""

    type: Literal["signal"] = "signal"
    line = "signal {step}{author}"


class ReplyDelta(RunEvent):
    """A piece of a model's reply, as it streams."""

    type: Literal["delta"] = "delta"
    text: str = Field("", description="the piece")


class ModelFallback(Notice):
    """A model failed, and the next one of the agent is asked."""

    type: Literal["fallback"] = "fallback"
    voids_attempt = "the model failed; another model is asked"
    model: str = Field("", description="the model that failed")


class ChainBroken(RunEvent):
    """A chainbreaker ended the sequence of an agent's instructions."""

    type: Literal["break"] = "break"
    breaker: str = Field("", description="the chainbreaker")
    reason: str = Field("", description="its reason")
    original: JsonValue = Field(None, description="the output that it may have replaced, truncated if it is large")
    explained_by = "reason"


class RunWarning(Notice):
    """Something went wrong without failing the run."""

    type: Literal["warning"] = "warning"
    is_warning = True


class QueueUnserved(Notice):
    """No worker serves the queue of a step, or the queue is paused."""

    type: Literal["unserved"] = "unserved"
    is_warning = True
    queue: str = Field("", description="the queue")


class ItemParked(Notice):
    """The sweep could not handle something of the run three times, and leaves it alone until an operator decides."""

    type: Literal["parked"] = "parked"
    is_warning = True
    duty: str = Field("", description="what does not happen meanwhile: leases, timers, lost, sends, tasks or permits")
    line = "parked {step}: {reason}"


class ItemUnparked(Action):
    """An operator decided about something of the run that was parked."""

    type: Literal["unparked"] = "unparked"
    duty: str = Field("", description="as in the event `parked`")
    action: str = Field("", description="retry: the sweep handles it again; drop: it never does")
    line = "unparked {step}: {action}{author}"


class RunCancelling(Action):
    """The run is cancelled, and its workflows in Python clean up."""

    type: Literal["cancelling"] = "cancelling"
    until_ms: int = Field(0, description="when it ends at the latest, Redis's clock, ms since 1970")
    line = "cancelling{author}: workflows clean up"


class WebhookCreated(RunEvent):
    """An event of this run is posted to webhooks; a run of its own posts it to each."""

    type: Literal["webhook"] = "webhook"
    to: str = Field("", description="the webhooks, alerts and URLs; of many the first three")
    on: str = Field("", description="end, wait or failure")
    line = "webhook on {on}: {to}"


class RunClosed(Action):
    """The run is over. One that was cancelled names who did it, unless an event `cancelling` before it does."""

    type: Literal["closed"] = "closed"
    status: RunStatus = Field("failed", description="how it ended")
    failures: int = Field(0, description="steps of its plan, and items of its maps, that failed")
    ends_run = True


KNOWN_EVENTS = (
    RunAccepted, StepStarted, TaskDispatched, StepDone, StepExpanded, StepFailed, StepMissedDeadline, StepSkipped, StepRetried,
    RateLimited, LeaseLost, StepReleased, StepRefused, OutcomeUncertain, SignalAwaited, WaitReminded, WaitEscalated, SleepBegan,
    SignalReceived, ReplyDelta, ModelFallback, ChainBroken, RunWarning, QueueUnserved, ItemParked, ItemUnparked, RunCancelling,
    WebhookCreated, RunClosed,
)  # fmt: skip
EVENT_CLASSES: dict[str, type[RunEvent]] = {str(each.model_fields["type"].default): each for each in KNOWN_EVENTS}
"""Type → class."""


def types_where(has_property: Callable[[type[RunEvent]], object]) -> frozenset[str]:
    """Return the types of the events whose class has a property."""
    return frozenset(name for name, each in EVENT_CLASSES.items() if has_property(each))


def event_of(detail: Mapping[str, JsonValue] | None = None, /, **own: Any) -> RunEvent:
    """Return the event with its own fields and those of its detail, of the class of its type.

    Fields of a form that this version does not know are left out.
    """
    fields = {**(detail or {}), **own}
    event_class = EVENT_CLASSES.get(fields["type"], RunEvent)
    try:
        return event_class.model_validate(fields)
    except ValidationError as error:  # a newer version wrote it: one event must not end the reading of a stream
        unknown = {fault["loc"][0] for fault in error.errors()}
        if not unknown.isdisjoint(RunEvent.model_fields):
            raise
        return event_class.model_validate({name: value for name, value in fields.items() if name not in unknown})
