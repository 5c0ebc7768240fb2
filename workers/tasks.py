"""The Celery tasks: begin, do, commit, send; then at once the next cheap step, until none is left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import structlog
from celery import Task

from orchestrator import faultpoints, metrics, tracing
from orchestrator.celeryapp import App, Carried, send
from orchestrator.coordinator import send_ready
from orchestrator.errors import StepError, UnavailableError
from orchestrator.models.graph import Graph, Spec
from orchestrator.planning import canvas
from orchestrator.results import is_over
from orchestrator.state import clock, outages, traces
from orchestrator.state.records import Ahead, Begun, Committed, Ready
from workers import outcomes, shown
from workers.kinds import HANDLERS
from workers.outcomes import Record
from workers.runtime import Process
from workers.watching import do

log = structlog.get_logger(__name__)

MOST_AHEAD = 64  # steps one message may run ahead, so that a worker comes back to its queue
AHEAD_S = 0.1  # and for how long, counted from the end of its first step, which may be a model call
DROPPED = "dropped"  # an attempt whose lease was lost, or whose run has ended: what came of it counts for nothing


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


class Loop:
    """What one message does: its steps, and the cheap ones that follow from them."""

    def __init__(self, app: App, process: Process, run_id: str, steps: Sequence[str], place: Place, carried: Carried) -> None:
        self._app = app
        self._process = process
        self._run_id = run_id
        self._todo = deque(steps)
        self._place = place
        self._carried = carried
        self._held_back: dict[str, Ready] = {}
        self._until: float | None = None
        self._definitions = ""
        self.done: list[tuple[str, str, float, float]] = []

    def run(self) -> str | None:
        """Do the steps; 'joined' if Celery is to send the join of this message's chord."""
        begun = self._next()
        while begun is not None:
            self._definitions = begun.definitions
            with self._process.leased(begun):
                since = time.time()
                metrics.step_began(begun.spec.queue, begun.waited_s)
                record = do(self._process, begun)
                self.done.append((begun.spec.kind, begun.step_id, since, time.time()))
                committed = self._commit(begun, record)
            begun = committed or self._next()
        return self._let_celery_send()

    def _next(self) -> Begun | None:
        if self._todo and self._process.is_finishing():
            self._pass_on()
        while self._todo:
            step_id = self._todo.popleft()
            answer = self._process.ledger.begin(self._run_id, step_id, self._process.owner)
            if isinstance(answer, Begun):
                faultpoints.at("begun")
                return answer
            log.debug("not_begun", run=self._run_id, step=step_id, reason=answer)
        return None

    def _pass_on(self) -> None:
        """Leave steps that did not begin to the process that replaces this one."""
        message = canvas.Message(self._place.kind, self._place.queue, tuple(self._todo))
        self._todo.clear()
        try:
            send(self._app, self._run_id, [canvas.Row((message,))], self._place.priority)
        except UnavailableError as error:
            log.warning("not_sent", run=self._run_id, steps=len(message.steps), error=str(error), note="the sweep sends them later")

    def _commit(self, begun: Begun, record: Record | None) -> Begun | None:
        if record is None:
            self._count(DROPPED)
            return None
        since = clock.now()
        committed = self._recorded(begun, record)
        self._count(record.outcome.status if committed.word in ("ok", "again") else DROPPED)
        faultpoints.at("committed")
        if record.outcome.fragment:
            faultpoints.at("graph-grown")
        if is_over(committed.run_status):
            faultpoints.at("run-closed")
        if committed.word == "stale":
            log.warning("outcome_refused", run=self._run_id, step=begun.step_id, attempt=begun.attempt, reason="the lease was lost")
        self._send(committed.sends, record.outcome.fragment, since)
        self._give_turn(committed.following)
        faultpoints.at("successors-sent")
        if is_over(committed.run_status):
            traces.end(tracing.active(), self._process.ledger, self._run_id)
        begun_next = committed.begun
        if begun_next is not None and self._todo and begun_next.step_id == self._todo[0]:
            self._todo.popleft()
        return begun_next

    def _recorded(self, begun: Begun, record: Record) -> Committed:
        """Record an outcome. It waits for a Redis that is away: given up, it would be lost, and its step done again.

        One that cannot be recorded at all becomes a failure that says so.
        """
        ahead = self._ahead()
        while True:
            try:
                return self._process.ledger.commit(begun, record.outcome, output=record.output, info=record.info, ahead=ahead)
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

    def _count(self, status: str) -> None:
        """Count the attempt that was done last."""
        kind, _, since, until = self.done[-1]
        metrics.step_ended(kind, status, until - since)

    def _ahead(self) -> Ahead | None:
        now = time.monotonic()
        self._until = self._until or now + AHEAD_S
        if len(self.done) >= MOST_AHEAD or now > self._until or self._process.is_finishing():
            return None
        return Ahead(self._place.queue, self._process.costs.cheap_names(self._definitions), self._todo[0] if self._todo else "")

    def _send(self, ready: Sequence[Ready], grown: Graph | None, since: float) -> None:
        own = []
        for step in ready:
            if step.step_id in self._carried.steps:
                self._held_back[step.step_id] = step
            else:
                own.append((step.step_id, step.spec))
        self._out(own, grown, since)

    def _give_turn(self, following: Sequence[tuple[str, Ready]]) -> None:
        """Have the next turn of the session begin."""
        try:
            send_ready(self._app, following)
        except UnavailableError as error:
            log.warning("not_sent", run=self._run_id, steps=len(following), error=str(error), note="the sweep sends them later")

    def _out(self, steps: Sequence[tuple[str, Spec]], grown: Graph | None = None, since: float | None = None) -> None:
        if not steps:
            return
        try:
            canvases = canvas.build(steps, grown, self._process.pace(self._definitions))
            send(self._app, self._run_id, canvases, self._place.priority, sent_at=since)
        except UnavailableError as error:
            log.warning("not_sent", run=self._run_id, steps=len(steps), error=str(error), note="the sweep sends them later")

    def _let_celery_send(self) -> str | None:
        left = self._carried.keep_only(self._held_back, {step_id for _, step_id, _, _ in self.done})
        self._out([(step_id, self._held_back[step_id].spec) for step_id in left])
        return "joined" if self._carried.join and self._carried.join <= self._held_back.keys() else None


class StepTask(Task):  # type: ignore[type-arg]  # its run() is below
    """The Celery task of one step kind."""

    ignore_result = True

    def __init__(self, kind: str, service: Service) -> None:
        self.name = kind
        self.service = service

    def run(self, run_id: str, steps: list[str]) -> str | None:
        """Do the steps of one message, and what may run ahead behind them."""
        app, delivered = cast(App, self.app), self.request.delivery_info or {}
        place = Place(self.name, app.step_queue(str(delivered.get("routing_key") or "")), int(delivered.get("priority") or 0))
        loop = Loop(app, self.service.process(), run_id, steps, place, Carried(self.request))
        answer = loop.run()
        shown.steps_run_ahead(self, run_id, steps, loop.done)
        return answer


def register(app: App, service: Service) -> None:
    """Make each step kind a Celery task of this app, so that Flower shows it by its name."""
    for kind in HANDLERS:
        app.register_task(StepTask(kind, service))
