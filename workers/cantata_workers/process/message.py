"""The execution of one message: begin its steps, execute them, commit their outcomes, and send on what became ready.

MessageExecution   the loop over the steps of a message
StepsAhead         the steps that a commit may begin for this message at once
ReadySteps         sends what became ready, and what Celery carries
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import cast

import structlog

from cantata.engine.dispatch.celery_app import App, Carried, send
from cantata.engine.limits.step_costs import CHEAP_MS
from cantata.errors import CantataError, StepError, UnavailableError
from cantata.features.webhooks.webhooks import create_deliveries_of
from cantata.flows import canvas, webhooks
from cantata.flows.canvas import Followers, MessageHead
from cantata.flows.graph import Graph, Spec
from cantata.ledger.records import Ahead, AttemptRecord, Begun, Committed, Ready
from cantata.ledger.redis import clock, outages
from cantata.ledger.redis.connection import RedisFailure
from cantata.ledger.runs import run_ends
from cantata.ledger.runs.results import is_over
from cantata.operation import fault_points, metrics, traces
from cantata_workers.process import outcomes
from cantata_workers.process.process import LeasedStep, Process
from cantata_workers.process.task_events import Attempt
from cantata_workers.process.threads import ToolThreadBusyError
from cantata_workers.steps import workflow_steps
from cantata_workers.steps.execute import execute
from cantata_workers.tools.celery_tasks import result_watcher

log = structlog.get_logger(__name__)

MAX_TOGETHER_S = 1.0  # for pure steps that were begun by one call: the others have leases that were not renewed
MAX_UNRECORDED_S, MAX_UNRECORDED_BYTES = 0.05, 500_000  # of pure steps that have ended: then they are committed
MAX_AHEAD_S = 0.1  # for how long one message may begin further steps, counted from the end of its first one, which may be a model call


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivered message: its task, queue and priority. What follows from it is sent with the same priority."""

    kind: str
    queue: str
    priority: int
    is_redelivered: bool = False


@dataclass(frozen=True, slots=True)
class Executed:
    """An executed step that is still to be recorded."""

    begun: Begun
    record: AttemptRecord
    attempt: Attempt


class MessageExecution:
    """Executes the steps of one message, and the cheap steps that become ready behind them.

    begin ──▶ execute ──▶ commit ──▶ dispatch what became ready
      ▲                     └──▶ a cheap step, begun by the same call (`StepsAhead`): execute it next
      └── the next step of the message
    """

    def __init__(
        self, app: App, process: Process, run_id: str, steps: Sequence[str], delivery: Delivery, carried: Carried
    ) -> None:
        self._process = process
        self._run_id = run_id
        self._pending = deque(steps)
        self._together: list[Begun] = []
        """Pure steps that were begun with the one that is executed next."""
        self._delivery = delivery
        self._steps_ahead = StepsAhead(process, run_id, delivery.queue)
        self._ready = ReadySteps(app, process, run_id, delivery, carried)
        self.done: list[Attempt] = []
        self.lost: list[Attempt] = []
        """Attempts of processes that received this message before and died."""

    def run(self) -> str | None:
        """Execute the steps; return 'joined' if Celery is to send the join of this message's chord."""
        with (
            self._process.executing(self._delivery.queue, self._give_back),
            nullcontext() if self._delivery.queue == webhooks.QUEUE else self._process.threads.busy(),
        ):
            self._execute(self._begin_next())
        return self._ready.hand_over_to_celery({attempt.step_id for attempt in self.done})

    def resume(self, begun: Begun, record: AttemptRecord) -> None:
        """Commit the outcome of a dispatched step, and execute the cheap steps that become ready behind it."""
        now, took_s = time.time(), float(cast(float, record.info["ms"])) / 1000
        self.done.append(Attempt(begun.spec.kind, begun.step_id, now - took_s, now, work=begun.spec.work))
        self._execute(self._finish(begun, record, LeasedStep(begun)))
        self._ready.hand_over_to_celery({attempt.step_id for attempt in self.done})

    def _execute(self, begun: Begun | None) -> None:
        while begun is not None:
            if self._together:
                begun = self._execute_together([begun, *self._together]) or self._begin_next()
                continue
            with self._process.leased(begun) as leased:
                record, attempt = self._attempt(begun)
                self.done.append(attempt)
                begun_ahead = self._finish(begun, record, leased)
            begun = begun_ahead or self._begin_next()

    def _attempt(self, begun: Begun) -> tuple[AttemptRecord | None, Attempt]:
        """Execute a step; return its record, None if there is nothing to commit, and the attempt as Flower displays it."""
        started_at = time.time()
        metrics.record_step_started(begun.spec.queue, begun.waited_s)
        thread = self._process.tool_thread
        if thread is None or begun.spec.kind != "tool.call":
            record = execute(self._process, begun)
        else:
            try:
                record = thread.call(execute, self._process, begun)
            except ToolThreadBusyError:
                log.warning(
                    "step_released",
                    run=self._run_id,
                    step=begun.step_id,
                    reason="another tool occupies the thread for tools",
                )
                self._process.ledger.steps.release(begun)
                record = None
        return record, Attempt(begun.spec.kind, begun.step_id, started_at, time.time(), work=begun.spec.work)

    def _execute_together(self, steps: Iterable[Begun]) -> Begun | None:
        """Execute pure steps that one call began, and commit them by one call, or by several; return the step that the last one began.

        If they turn out to be slow, the rest is released, so that other processes share it.
        """
        self._together, begun_ahead, give_up = [], None, time.monotonic() + MAX_TOGETHER_S
        with ExitStack() as leases:
            left = deque((begun, leases.enter_context(self._process.leased(begun))) for begun in steps)
            while left:
                if time.monotonic() > give_up:
                    for begun, _ in left:
                        self._process.ledger.steps.release(begun)
                    break
                executed: list[Executed] = []
                commit_at, size = time.monotonic() + MAX_UNRECORDED_S, 0
                while left and time.monotonic() < commit_at and size < MAX_UNRECORDED_BYTES:
                    begun, leased = left.popleft()
                    record, attempt = self._attempt(begun)
                    if record is None:
                        self.done.append(attempt)
                        self._finish(begun, None, leased)
                    else:
                        executed.append(Executed(begun, record, attempt))
                        size += len(record.output)
                if executed:
                    last = executed.pop()
                    self.done += [*(each.attempt for each in executed), last.attempt]
                    begun_ahead = self._finish(last.begun, last.record, leased, executed, may_begin=not left)
        return begun_ahead

    # --- begin ------------------------------------------------------------------------------------------------------

    def _begin_next(self) -> Begun | None:
        """Begin the next step of the message that the ledger grants; None if none is left."""
        if self._process.holds.has(self._delivery.queue):
            self._give_back()
        while pending := self._pending:
            step_id = pending.popleft()
            answer = self._process.ledger.steps.begin_together(self._run_id, [step_id, *pending], self._process.owner)
            if not isinstance(answer, str):
                fault_points.at("begun")
                together = {each.step_id for each in answer}
                begun, *self._together = answer
                if self._pending is pending:
                    self._pending = deque(each for each in pending if each not in together)
                return begun
            log.debug("not_begun", run=self._run_id, step=step_id, reason=answer)
            if self._delivery.is_redelivered:
                self._add_lost_attempt(step_id)
        return None

    def _give_back(self) -> None:
        """Send back the steps of the message that have not begun. One that begins meanwhile has two messages, which does no harm."""
        pending, self._pending = self._pending, deque()
        if pending:
            self._ready.send_back(pending)

    def _add_lost_attempt(self, step_id: str) -> None:
        """Add the attempt of a process that was killed, as past a time-out: Celery delivers its message again."""
        record = self._process.ledger.reader.records(self._run_id, [step_id]).get(step_id)
        if record is None:
            return
        if record.state == "running":
            status, reason = "retry", "its process died or lost the broker; the step is retried if its lease expires"
        elif record.error is not None:
            status, reason = "failed" if record.state == "failed" else "retry", record.error.message
        else:
            return
        now = time.time()
        self.lost.append(Attempt(record.spec.kind, step_id, now, now, status, reason, record.spec.work))

    # --- commit -----------------------------------------------------------------------------------------------------

    def _finish(
        self,
        begun: Begun,
        record: AttemptRecord | None,
        leased: LeasedStep,
        before: Sequence[Executed] = (),
        *,
        may_begin: bool = True,
    ) -> Begun | None:
        """Commit an attempt, and pure ones `before` it, and dispatch what became ready; return the step that the commit began, if any.

        Without a record there is nothing to commit: the lease was lost, or the step timed out and that was recorded.
        """
        if record is None:
            self._count_attempt()
            self.done[-1] = self.done[-1].ended(leased.outcome)
            return None
        is_dispatched = record.outcome.status == "dispatched"
        if is_dispatched and not self._pending and result_watcher.current().dispatch_later(begun, record):
            self.done[-1] = self.done[-1].ended(record.outcome)
            return None
        committed_at = clock.now()
        committed, begun, record = self._commit(begun, record, before, may_begin=may_begin)
        for number, (each, result) in enumerate(
            zip(before, committed.results_before, strict=True), start=-1 - len(before)
        ):
            self._end_attempt(result, each.record, number)
        self._end_attempt(committed.result, record)
        if committed.result == "ok" and _is_in_round(begun, record):
            self._process.recent_outcomes.add(self._run_id, begun.step_id, record.output, record.info)
        self._steps_ahead.ended(begun, record)
        fault_points.at("committed")
        if record.outcome.fragment:
            fault_points.at("graph-expanded")
        if is_over(committed.run_status):
            fault_points.at("run-closed")
        results = zip(
            (*(each.begun for each in before), begun), (*committed.results_before, committed.result), strict=True
        )
        for ended in [
            ended for ended, result in results if result == "stale" and not is_dispatched
        ]:  # its task has ended already
            log.warning(
                "outcome_refused",
                run=self._run_id,
                step=ended.step_id,
                attempt=ended.attempt,
                reason="the lease was lost",
            )
        self._ready.send(committed, begun, record.outcome.fragment, committed_at)
        fault_points.at("successors-sent")
        if is_over(committed.run_status):
            run_ends.record(self._process.ledger, self._run_id, traces.active())
        begun_ahead, pending = committed.begun, self._pending
        if begun_ahead is not None and pending and begun_ahead.step_id == pending[0]:
            pending.popleft()
        return begun_ahead

    def _commit(
        self, begun: Begun, record: AttemptRecord, before: Sequence[Executed] = (), *, may_begin: bool = True
    ) -> tuple[Committed, Begun, AttemptRecord]:
        """Commit an outcome; return the ledger's answer, and the last step that it recorded with its record.

        An unavailable Redis is waited for: giving up would lose the outcome and repeat the step. An outcome that cannot be recorded at
        all is replaced by a failure that says so.
        """
        ahead, advance = self._steps_ahead.of(begun, record, self._pending) if may_begin else None, None
        if ahead and not before and (advance := self._steps_ahead.execute_advance(begun, record)):
            ahead = replace(ahead, advance=(advance.begun, advance.record))
        while True:
            try:
                committed = self._process.ledger.steps.commit(
                    begun,
                    record.outcome,
                    output=record.output,
                    info=record.info,
                    ahead=ahead,
                    next_owner=self._process.owner,
                    before=[(each.begun, each.record) for each in before],
                )
                if not advance or not committed.has_advanced:
                    return committed, begun, record
                self._end_attempt(committed.result, record)
                self.done.append(advance.attempt)
                return committed, advance.begun, advance.record
            except UnavailableError as error:
                if self._process.is_draining:
                    raise
                outages.warn(log, "outcome_delayed", error, run=self._run_id, step=begun.step_id)
            except Exception as error:
                if before:  # any of them may be what cannot be recorded
                    ended = [self._commit(each.begun, each.record, may_begin=False)[0] for each in before]
                    committed, begun, record = self._commit(begun, record, may_begin=may_begin)
                    sends = [step for each in (*ended, committed) for step in each.sends]
                    return (
                        replace(committed, sends=tuple(sends), results_before=tuple(each.result for each in ended)),
                        begun,
                        record,
                    )
                if ahead and ahead.advance:  # it may be what cannot be recorded
                    ahead, advance = replace(ahead, advance=None), None
                    continue
                if record.outcome.status == "failed":
                    raise
                log.exception("outcome_not_recorded", run=self._run_id, step=begun.step_id)
                reason = f"its outcome could not be recorded: {type(error).__name__}: {error}"
                record, ahead = outcomes.failure_record(begun, StepError(reason, code="internal")), None

    def _end_attempt(self, result: str, record: AttemptRecord, number: int = -1) -> None:
        """Note the outcome of an attempt, by default the last one."""
        if result in ("ok", "again"):
            self.done[number] = self.done[number].ended(record.outcome)
        self._count_attempt(number)

    def _count_attempt(self, number: int = -1) -> None:
        """Count an attempt in the metrics, by default the last one."""
        attempt = self.done[number]
        if attempt.status == "dispatched":
            return
        metrics.record_step_ended(attempt.kind, attempt.work, attempt.status, attempt.until - attempt.since)


class StepsAhead:
    """The steps that this process may begin, or execute, in the call that commits another: cheap ones, and the advance of a workflow."""

    def __init__(self, process: Process, run_id: str, queue: str) -> None:
        self._process = process
        self._run_id = run_id
        self._queue = queue
        self._until: float | None = None
        self._last: tuple[Begun, AttemptRecord] | None = None

    def ended(self, begun: Begun, record: AttemptRecord) -> None:
        """Note the step that was committed last, which an advance may follow."""
        self._last = begun, record

    def of(self, begun: Begun, record: AttemptRecord, pending: Sequence[str]) -> Ahead | None:
        """Return what a commit may begin for this message at once; None if the message has executed enough."""
        now = time.monotonic()
        self._until = self._until or now + MAX_AHEAD_S
        if now > self._until or self._process.holds.has(self._queue):
            return None
        cheap = self._process.costs.cheap_names(begun.definitions)
        next_step, rounds = (
            pending[0] if pending else "",
            self._process.threads.is_one_free and _is_in_round(begun, record),
        )
        return Ahead(
            self._queue, cheap, next_step, rounds=rounds, tool=self._quick_function(begun, record) if rounds else ""
        )

    def _quick_function(self, begun: Begun, record: AttemptRecord) -> str:
        """Return the work of the one function that a model's reply calls, if this process may call it and it is quick; else ''.

        A function with a time-out is called where it can be killed, one that runs at most once where no other step can end its process.
        """
        thread, fragment = self._process.tool_thread, record.outcome.fragment
        calls = [step for step in fragment.steps if step.kind != "agent.turn"] if fragment else []
        if thread is None or thread.is_stuck or len(calls) != 1 or self._process.holds.has("tools"):
            return ""
        (call,) = calls
        is_ours = (
            call.kind == "tool.call" and call.queue == "tools" and call.timeout_s is None and not call.at_most_once
        )
        return call.work if is_ours and self._process.costs.is_cheap(begun.definitions, call) else ""

    def execute_advance(self, begun: Begun, record: AttemptRecord) -> Executed | None:
        """Execute the advance of a workflow behind a step before the step is committed, so that one call records both.

        An advance has no effects besides its outcome. While it is executed, the lease of the step is renewed as before.
        """
        advance = workflow_steps.following_advance(*self._last, begun, record) if self._last else None
        if advance is None or not self._may_advance(advance):
            return None
        since = time.time()
        try:
            with self._process.leased(advance, behind=(begun, record)):
                executed = execute(self._process, advance)
        except (
            Exception
        ):  # the edge: whatever it is, the step in front is recorded, and then the advance is executed again
            log.exception("advance_failed", run=self._run_id, step=advance.step_id)
            return None
        except BaseException:  # this process is to end, or the code wants it to
            self._process.record(begun, record)
            raise
        fault_points.at("advance-executed")
        if executed is None or executed.outcome.status not in ("done", "failed"):
            return None
        metrics.record_step_started(advance.spec.queue, None)
        return Executed(
            advance, executed, Attempt(advance.spec.kind, advance.step_id, since, time.time(), work=advance.spec.work)
        )

    def _may_advance(self, advance: Begun) -> bool:
        """Return whether the call that records the step in front would begin the advance, and its code is known to be quick."""
        cost_ms = self._process.costs.of(advance.definitions, advance.spec.work)
        return advance.spec.queue == self._queue and cost_ms is not None and cost_ms < CHEAP_MS


class ReadySteps:
    """Sends the steps that commits make ready, save those that this message carries: Celery sends them when its task ends."""

    def __init__(self, app: App, process: Process, run_id: str, delivery: Delivery, carried: Carried) -> None:
        self._app = app
        self._process = process
        self._run_id = run_id
        self._delivery = delivery
        self._carried = carried
        self._head = MessageHead(app, run_id, delivery.priority)
        self._left_to_celery: dict[str, Ready] = {}
        self._followers: Followers | None = None
        self._definitions = ""

    def send(self, committed: Committed, begun: Begun, fragment: Graph | None, committed_at: float) -> None:
        """Send what a commit made ready: steps of the run, the next turn of its session, and messages to webhooks."""
        self._definitions = begun.definitions
        if fragment is not None:
            self._followers = Followers(fragment)
        own: list[tuple[str, Spec]] = []
        for step in committed.sends:
            if step.step_id in self._carried.steps:
                self._left_to_celery[step.step_id] = step
            else:
                own.append((step.step_id, step.spec))
        self._send(own, committed_at)
        with self._leaving_to_sweep(len(committed.next_runs)):
            self._app.send_ready(committed.next_runs)
        if committed.has_posts:
            self._create_deliveries(begun.tenant)

    def send_back(self, steps: Iterable[str]) -> None:
        """Send steps that did not begin back to the head of their queue, for another process, or for later."""
        message = self._head.signature(self._delivery.kind, self._delivery.queue, list(steps)).set(
            **self._carried.options
        )
        with self._leaving_to_sweep(len(canvas.steps_of(message))):
            send(self._app, [message], first=True)

    def hand_over_to_celery(self, done: Set[str]) -> str | None:
        """Let Celery send the carried steps that are ready; send those that it cannot. Return 'joined' if the chord's join is ready."""
        unsent = self._carried.keep_only(self._left_to_celery, done)
        self._send([(step_id, self._left_to_celery[step_id].spec) for step_id in unsent])
        return "joined" if self._carried.join and self._carried.join <= self._left_to_celery.keys() else None

    def _send(self, steps: Sequence[tuple[str, Spec]], sent_at: float | None = None) -> None:
        if not steps:
            return
        canvases = canvas.build(self._head, steps, self._followers, self._process.batch_policy(self._definitions))
        with self._leaving_to_sweep(len(steps)):
            send(self._app, canvases, sent_at=sent_at)

    def _create_deliveries(self, tenant: str) -> None:
        """Create runs that post an event of this run. Whatever fails, a sweep goes on."""
        try:
            with self._leaving_to_sweep(0):
                create_deliveries_of(self._app, self._process.ledger, self._run_id, tenant)
        except (CantataError, RedisFailure) as error:
            log.warning(
                "deliveries_not_created", run=self._run_id, error=str(error), note="the sweep creates them later"
            )

    @contextmanager
    def _leaving_to_sweep(self, steps: int) -> Iterator[None]:
        """Log a dispatch that fails in the block."""
        try:
            yield
        except UnavailableError as error:
            log.warning(
                "dispatch_failed", run=self._run_id, steps=steps, error=str(error), note="the sweep sends them later"
            )


def _is_in_round(begun: Begun, record: AttemptRecord) -> bool:
    """Return whether a step is a model's reply that is not its answer yet, or a tool's that a model called."""
    is_reply = begun.spec.kind == "agent.turn" and record.outcome.fragment is not None
    return is_reply or begun.spec.is_asked_by_model
