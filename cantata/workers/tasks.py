"""The Celery tasks: begin, do, commit, send; then at once the next cheap step, until none is left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import structlog
from celery import Task

from cantata import fault_points
from cantata.coordinator.sweeper import send_ready
from cantata.dispatch.celery_app import App, Carried, send
from cantata.errors import StepError, UnavailableError
from cantata.models.graph import Graph, Spec
from cantata.observability import metrics, traces
from cantata.planning import canvas
from cantata.planning.canvas import Dispatch, Followers
from cantata.runs.results import is_over
from cantata.state.redis import clock, outages
from cantata.state.runs import trace_roots
from cantata.state.runs.records import Ahead, Begun, Committed, Ready
from cantata.workers.handlers import HANDLERS
from cantata.workers.instrumentation import do
from cantata.workers.runtime import outcomes, task_events
from cantata.workers.runtime.outcomes import Record
from cantata.workers.runtime.process import Held, Process
from cantata.workers.runtime.task_events import Attempt

log = structlog.get_logger(__name__)

MOST_AHEAD = 64  # steps one message may run ahead, so that a worker comes back to its queue
AHEAD_S = 0.1  # and for how long, counted from the end of its first step, which may be a model call


class Service(Protocol):
    """The worker that tasks belong to."""

    def process(self) -> Process:
        """What this operating system process holds."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message came from, and as which task; what follows from it goes on with the same priority."""

    kind: str
    queue: str
    priority: int
    is_redelivered: bool = False


class Loop:
    """What one message does: its steps, and the cheap ones that follow from them."""

    def __init__(self, app: App, process: Process, run_id: str, steps: Sequence[str], place: Place, carried: Carried) -> None:
        self._app = app
        self._process = process
        self._run_id = run_id
        self._todo = deque(steps)
        self._place = place
        self._dispatch = Dispatch(app, run_id, place.priority)
        self._carried = carried
        self._held_back: dict[str, Ready] = {}
        self._until: float | None = None
        self._definitions = ""
        self._followers: Followers | None = None
        self.done: list[Attempt] = []
        self.lost: list[Attempt] = []
        """The attempts that a process died of which had this message before."""

    def run(self) -> str | None:
        """Do the steps; 'joined' if Celery is to send the join of this message's chord."""
        begun = self._next()
        while begun is not None:
            self._definitions = begun.definitions
            with self._process.leased(begun) as held:
                since = time.time()
                metrics.step_began(begun.spec.queue, begun.waited_s)
                record = do(self._process, begun)
                self.done.append(Attempt(begun.spec.kind, begun.step_id, since, time.time()))
                committed = self._commit(begun, record, held)
            begun = committed or self._next()
        return self._let_celery_send()

    def _next(self) -> Begun | None:
        if self._todo and self._process.is_finishing():
            self._pass_on()
        while self._todo:
            step_id = self._todo.popleft()
            answer = self._process.ledger.begin(self._run_id, step_id, self._process.owner)
            if isinstance(answer, Begun):
                fault_points.at("begun")
                return answer
            log.debug("not_begun", run=self._run_id, step=step_id, reason=answer)
            if self._place.is_redelivered:
                self._find_lost(step_id)
        return None

    def _find_lost(self, step_id: str) -> None:
        """Find out how a step ended whose process was killed, as it is past a time-out: Celery delivers its message again."""
        record = self._process.ledger.records(self._run_id, [step_id]).get(step_id)
        if record is None:
            return
        attempt, error = Attempt(record.spec.kind, step_id, time.time(), time.time()), record.error
        if record.state == "running":
            self.lost.append(
                replace(
                    attempt,
                    status="retry",
                    reason="its process died, or goes on without the broker: it is tried again if its lease runs out",
                )
            )
        elif error is not None:
            self.lost.append(replace(attempt, status="failed" if record.state == "failed" else "retry", reason=error.message))

    def _pass_on(self) -> None:
        """Leave steps that did not begin to the process that replaces this one."""
        message = self._dispatch.signature(self._place.kind, self._place.queue, list(self._todo)).set(**self._carried.options)
        self._todo.clear()
        try:
            send(self._app, [message])
        except UnavailableError as error:
            log.warning(
                "not_sent", run=self._run_id, steps=len(canvas.steps_of(message)), error=str(error), note="the sweep sends them later"
            )

    def _commit(self, begun: Begun, record: Record | None, held: Held) -> Begun | None:
        if record is None:
            self._count()
            self.done[-1] = self.done[-1].ended(held.outcome)
            return None
        since = clock.now()
        committed, record = self._recorded(begun, record)
        if committed.word in ("ok", "again"):
            self.done[-1] = self.done[-1].ended(record.outcome)
        self._count()
        fault_points.at("committed")
        if record.outcome.fragment:
            fault_points.at("graph-expanded")
        if is_over(committed.run_status):
            fault_points.at("run-closed")
        if committed.word == "stale":
            log.warning("outcome_refused", run=self._run_id, step=begun.step_id, attempt=begun.attempt, reason="the lease was lost")
        self._send(committed.sends, record.outcome.fragment, since)
        self._give_turn(committed.following)
        fault_points.at("successors-sent")
        if is_over(committed.run_status):
            trace_roots.end(traces.active(), self._process.ledger, self._run_id)
        begun_next = committed.begun
        if begun_next is not None and self._todo and begun_next.step_id == self._todo[0]:
            self._todo.popleft()
        return begun_next

    def _recorded(self, begun: Begun, record: Record) -> tuple[Committed, Record]:
        """Record an outcome. It waits for a Redis that is away: given up, it would be lost, and its step done again.

        One that cannot be recorded at all becomes a failure that says so.
        """
        ahead = self._ahead()
        while True:
            try:
                committed = self._process.ledger.commit(begun, record.outcome, output=record.output, info=record.info, ahead=ahead)
                return committed, record
            except UnavailableError as error:
                if self._process.is_draining:
                    raise
                outages.tell(log, "outcome_waits", error, run=self._run_id, step=begun.step_id)
            except Exception as error:
                if record.outcome.status == "failed":
                    raise
                log.exception("outcome_not_recorded", run=self._run_id, step=begun.step_id)
                reason = f"its outcome could not be recorded: {type(error).__name__}: {error}"
                record, ahead = outcomes.failed(begun, StepError(reason, code="internal")), None

    def _count(self) -> None:
        """Count the attempt that was done last."""
        attempt = self.done[-1]
        metrics.step_ended(attempt.kind, attempt.status, attempt.until - attempt.since)

    def _ahead(self) -> Ahead | None:
        now = time.monotonic()
        self._until = self._until or now + AHEAD_S
        if len(self.done) >= MOST_AHEAD or now > self._until or self._process.is_finishing():
            return None
        return Ahead(self._place.queue, self._process.costs.cheap_names(self._definitions), self._todo[0] if self._todo else "")

    def _send(self, ready: Sequence[Ready], grown: Graph | None, since: float) -> None:
        if grown is not None:
            self._followers = Followers(grown)
        own = []
        for step in ready:
            if step.step_id in self._carried.steps:
                self._held_back[step.step_id] = step
            else:
                own.append((step.step_id, step.spec))
        self._out(own, since)

    def _give_turn(self, following: Sequence[tuple[str, Ready]]) -> None:
        """Have the next turn of the session begin."""
        try:
            send_ready(self._app, following)
        except UnavailableError as error:
            log.warning("not_sent", run=self._run_id, steps=len(following), error=str(error), note="the sweep sends them later")

    def _out(self, steps: Sequence[tuple[str, Spec]], since: float | None = None) -> None:
        if not steps:
            return
        try:
            send(self._app, canvas.build(self._dispatch, steps, self._followers, self._process.pace(self._definitions)), sent_at=since)
        except UnavailableError as error:
            log.warning("not_sent", run=self._run_id, steps=len(steps), error=str(error), note="the sweep sends them later")

    def _let_celery_send(self) -> str | None:
        left = self._carried.keep_only(self._held_back, {attempt.step_id for attempt in self.done})
        self._out([(step_id, self._held_back[step_id].spec) for step_id in left])
        return "joined" if self._carried.join and self._carried.join <= self._held_back.keys() else None


class StepTask(Task):  # type: ignore[type-arg]  # its run() is below
    """The Celery task of one step kind."""

    ignore_result = True
    throws = (StepError,)  # Celery logs them as nothing unusual: the step's own line has been written

    def __init__(self, kind: str, service: Service) -> None:
        self.name = kind
        self.service = service

    def run(self, run_id: str, steps: list[str]) -> str | None:
        """Do the steps of one message, and what may run ahead behind them. Raises what Celery is to tell of an attempt that failed."""
        app, delivered, carried = cast(App, self.app), self.request.delivery_info or {}, Carried(self.request)
        queue, is_redelivered = app.step_queue(str(delivered.get("routing_key") or "")), bool(delivered.get("redelivered"))
        place = Place(self.name, queue, int(delivered.get("priority") or 0), is_redelivered)
        loop = Loop(app, self.service.process(), run_id, steps, place, carried)
        answer = loop.run()
        own = task_events.own_attempt(steps, [*loop.lost, *loop.done])
        task_events.steps_run_ahead(self, run_id, [attempt for attempt in loop.done if attempt is not own])
        if own is not None and (error := own.exception) is not None:
            carried.send(app, answer)
            raise error
        return answer


def register(app: App, service: Service) -> None:
    """Make each step kind a Celery task of this app, so that Flower shows it by its name."""
    for kind in HANDLERS:
        app.register_task(StepTask(kind, service))
