"""Handles of accepted runs: read, wait for, cancel and signal them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import Literal

from cantata import __version__, bounds
from cantata.client import queries, run_export
from cantata.client.view import RunView
from cantata.engine.engine import Engine
from cantata.errors import CantataError, ConfigError, StoredDataError, UnavailableError, UnknownRunError
from cantata.features.audit.audit import owner_of, recorded
from cantata.features.inbox.answers import check_answer
from cantata.flows.events import RunEvent, RunWarning
from cantata.flows.graph import START
from cantata.flows.wire import RUN_OVER, ChainEvent, ChainRequest, ChainResponse, RunResult, RunStatus
from cantata.ledger.encoding import to_json
from cantata.ledger.quotas import SMALL_SIGNAL_BYTES
from cantata.ledger.records import RunRecord, StepRecord
from cantata.ledger.redis.connection import RedisRefusal
from cantata.ledger.runs import event_log, log_store, run_ends
from cantata.ledger.runs.results import bodies_of, chain_event, chain_response, turn_result
from cantata.ledger.runs.step_names import KnownNames, step_names
from cantata.ledger.step_store import EARLY_SIGNALS
from cantata.operation import traces
from cantata.operation.logs.lines import LogLine
from cantata.text.suggestions import hint, nearest
from cantata.values import JsonValue, stored

SignalAction = Literal["run.signal", "inbox.answer"]
"""An action of the audit log that is a signal."""

MAX_COMPARED = 1000  # ids of steps that a misspelt one is compared with
MAX_LISTED = 10  # of the waiting steps that a message names
POLL_INTERVAL_S = 5.0  # how often a waiting client checks that the run is still known


class Run:
    """An accepted run: it goes on whether or not anyone watches."""

    def __init__(self, engine: Engine, run_id: str) -> None:
        self._engine = engine
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"Run({self.run_id!r})"

    def status(self) -> RunStatus:
        """Return its status: accepted, running, waiting, cancelling, succeeded, failed, cancelled, timed_out or exhausted.

        Raises UnknownRunError if it has expired.
        """
        return self._engine.ledger.runs.status(self.run_id)

    def record(self, names: Sequence[str] | None = None) -> RunRecord:
        """Return the run's record; with `names`, with the outputs only of the steps with these names and of the terminal steps."""
        return self._engine.ledger.reader.read(self.run_id, names)

    def steps(self, step_ids: Sequence[str]) -> Mapping[str, StepRecord]:
        """Return the records of some of its steps, by id; unknown ids are left out."""
        return self._engine.ledger.reader.records(self.run_id, step_ids)

    def log(self, from_offset: int | None = None, *, timeout_s: float | None = None) -> Iterator[RunEvent]:
        """Yield its events as they come, until it is over.

        Args:
            from_offset: The `seq` of the last event that is known; None for all events.
            timeout_s: Seconds after which to end although the run goes on; 0 yields what there is now. None for no limit.
        """
        check_timeout(timeout_s)
        return event_log.follow(self._engine.ledger.redis, self.run_id, after=from_offset or 0, timeout_s=timeout_s)

    def view(self, before: RunView | None = None, *, wait_s: float = 0.0, max_usages: int = 200) -> RunView:
        """Return the fold of its events: `before` with those since, also with those that come within `wait_s`."""
        ledger, view = self._engine.ledger, before or RunView(self.run_id)
        events = list(self.log(view.seq, timeout_s=wait_s))
        if before is None or any(event.step == START for event in events):  # it plans the run
            view = view.with_plan(ledger.reader.planned(self.run_id))
        view = view.apply(*events)
        if view.status not in RUN_OVER:
            view = view.with_status(self.status())
        if unnamed := view.without_name():
            view = view.with_names(step_names(ledger, self.run_id, unnamed))
        ended = view.without_usage(max_usages)
        return (
            view.with_usage(dict(zip(ended, ledger.reader.infos(self.run_id, ended), strict=True))) if ended else view
        )

    def logs(self, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield its log lines from workers and tools on all machines, in order; with `follow` also those to come, until it is over."""
        kept = log_store.Logs(self._engine.ledger.redis, self.run_id)
        yield from kept.follow() if follow else kept.read()

    def export(self) -> Iterator[str]:
        """Yield the run, as it is now, as pieces of one JSON document: `file.writelines(run.export())`.

        It has the request, the definitions, and each step with its attempts and its model and tool calls, as far as they are kept.
        """
        yield from run_export.export(self._engine.ledger, self.record(()), self.log(timeout_s=0.0))

    def wait(self, timeout_s: float | None = None) -> RunRecord:
        """Wait until it is over. Raises TimeoutError past `timeout_s`, and the run goes on; UnknownRunError if it is gone."""
        check_timeout(timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not event_log.wait_closed(
            self._engine.ledger.redis, self.run_id, timeout_s=_remaining_s(POLL_INTERVAL_S, deadline)
        ):
            self.status()  # raises for a run that Redis lost, which would never be over
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run {self.run_id} is not over after {timeout_s} s; it goes on")
        return self.record()

    def cancel(self) -> RunStatus:
        """End the run and return its status after that. Work in progress on it stops within a second or two.

        The status is `cancelling` while workflows in Python clean up: their code gets `asyncio.CancelledError`.
        """
        runs = self._engine.ledger.runs
        with recorded(
            self._engine.ledger, "run.cancel", tenant=owner_of(self._engine.ledger, self.run_id), run_id=self.run_id
        ) as entry:
            before = self._status_if_readable()
            status = runs.cancel(self.run_id, by=entry.actor.signature())
            entry.detail = f"the run is {status}"
            entry.was_done = before not in (*RUN_OVER, "cancelling")
        self._end_trace()
        return status

    def _status_if_readable(self) -> RunStatus | None:
        try:
            return self.status()
        except (UnknownRunError, StoredDataError, RedisRefusal, ValueError):  # to cancel it is how it is removed
            return None

    def signal(
        self,
        step_id: str,
        value: JsonValue,
        *,
        by: str = "",
        groups: Collection[str] | None = None,
        action: SignalAction = "run.signal",
    ) -> str:
        """Send a waiting step its value.

        Args:
            step_id: The step's id, or the end of it, as its file has it: 'ask' for 'flow/ask'.
            value: The step's output.
            by: The author, who is recorded; whoever runs this program if empty.
            groups: The author's names, groups and scopes, one of which a wait with `who` must list; None may answer all.
            action: The name of the action in the audit log.

        Returns:
            'taken'; 'kept' until the step waits; 'over' if it has a value; 'closed' if the run is over; 'unclear' if several steps
            match; 'full' if the run keeps as many early signals as it may; 'not_allowed' if the wait lists none of `groups`.

        Raises:
            UnknownRunError: The step waits for no signal, or the run has no such step while others wait, which the message names.
            ConfigError: The value is not JSON, is beyond a bound, or does not fit the step's `answer_schema` (`bad_answer`, with each field
                that is wrong), or
                the run's tenant keeps as many early signals, or bytes, as it may (`quota_exceeded`). A value of up to 4 kB for a step that
                waits is taken nevertheless.
            UnavailableError: Redis cannot be reached, or is nearly full; a step that waits takes such a value nevertheless.
        """
        bounds.check(value, f"the value for step {step_id!r}")
        size = len(to_json(value).encode())
        bounds.check_size(size, f"the value for step {step_id!r}", self._engine.limits.output_bytes)
        limits, quotas = self._engine.limits, self._engine.ledger.quotas
        tenant = quotas.tenant_of(self.run_id) if limits.quotas else ""
        with ExitStack() as stack:
            refusal: CantataError | None = quotas.early_signal_refusal(tenant, limits.quota_of(tenant))
            try:
                stack.enter_context(quotas.store(tenant, limits.quota_of(tenant), size))
            except (ConfigError, UnavailableError) as error:
                if size > SMALL_SIGNAL_BYTES:
                    raise
                refusal = error
            owner = tenant if limits.quotas else owner_of(self._engine.ledger, self.run_id)
            entry = stack.enter_context(
                recorded(self._engine.ledger, action, tenant=owner, run_id=self.run_id, target=step_id, by=by)
            )
            answer, ready = self._engine.ledger.steps.signal(
                self.run_id,
                step_id,
                value,
                max_kept=0 if refusal else EARLY_SIGNALS,
                by=by,
                author=entry.actor.signature(),
                groups=groups,
                check=partial(self._check_answer, value, groups),
            )
            entry.detail, entry.was_done = f"the signal is {answer}", answer in ("taken", "kept")
            entry.refusal = "the step is for others to answer" if answer == "not_allowed" else ""
        if refusal and answer == "full":
            raise refusal
        if answer == "unknown":
            self.status()  # raises for a run that Redis does not know
            raise unknown_wait(self, step_id)
        self._engine.publisher.send_ready((self.run_id, step) for step in ready)
        self._end_trace()
        return answer

    def _check_answer(
        self,
        value: JsonValue,
        groups: Collection[str] | None,
        step_id: str,
        params: Mapping[str, JsonValue] | None,
        info: Mapping[str, JsonValue],
    ) -> str | None:
        """Check the value for a step as `check_answer`, for an unplanned one by the chain request. None if that has no such wait."""
        if params is None:
            kind, request, _, _ = self._engine.ledger.runs.request_of(self.run_id)
            nodes = stored(ChainRequest, request).nodes if kind == "chain" else ()
            node = next((node for node in nodes if node.node_id == step_id and node.kind == "wait"), None)
            if node is None:
                return None
            params = node.params()
        return check_answer(value, groups, step_id, params, info)

    def query(self, name: str, /, *, step_id: str | None = None, **arguments: JsonValue) -> JsonValue:
        """Return the answer of a query (`@wf.query`) of the run's workflow in Python, by a replay in this process, which imports its code.

        Args:
            name: The name of the query.
            step_id: The workflow's step, or the end of it, if the run has several.
            arguments: The arguments of the query.

        Raises:
            ConfigError: The run has no such workflow or query, or the arguments do not fit.
            CodeMismatchError: The code does not follow the run's history.
            StepError: The code cannot be imported, or the query failed.
        """
        return self.ask(name, arguments, step_id=step_id)

    def ask(self, name: str, arguments: Mapping[str, JsonValue], *, step_id: str | None = None) -> JsonValue:
        """Return the same, for arguments of any name."""
        return queries.ask(self._engine.ledger, self.record(()), step_id, name, arguments)

    def waiting_steps(self) -> list[str]:
        """Return the ids of its steps that wait for a signal; of a large run only of its first steps."""
        known = self.steps(self._engine.ledger.reader.step_ids(self.run_id, MAX_COMPARED))
        return sorted(step_id for step_id, step in known.items() if step.awaits_signal)

    def nearest_step(self, name: str) -> str | None:
        """Return the step id, or the end of one, that is most like `name`; None if none is."""
        ids = self._engine.ledger.reader.step_ids(self.run_id, MAX_COMPARED)
        return nearest(name, [*ids, *{step_id.rpartition("/")[2] for step_id in ids}])

    def names(self) -> KnownNames:
        """Return the names of its steps for people, each read when it is asked for."""
        return KnownNames(self._engine.ledger, self.run_id)

    def _end_trace(self) -> None:
        """Give the run's trace its root if this call ended the run: then no worker does it."""
        run_ends.record(self._engine.ledger, self.run_id, traces.client_spans(__version__))


class TurnRun(Run):
    """A run of a user turn."""

    kind = "turn"

    def events(self, from_offset: int | None = None, *, timeout_s: float | None = None) -> Iterator[RunEvent]:
        """Yield its events as they come, until it is over; the arguments are those of `log`."""
        return self.log(from_offset, timeout_s=timeout_s)

    def events_of(self, log: Sequence[RunEvent]) -> list[RunEvent]:
        """Return the events that `events` yields of events of the run: all."""
        return list(log)

    def result(self, timeout_s: float | None = None) -> RunResult:
        """Wait until it is over and return its result, whether it succeeded or not: `result().raise_for_status().output` is the answer.

        Args:
            timeout_s: Seconds to wait; None for no limit.

        Raises:
            TimeoutError: It is not over in this time. The run goes on.
            UnknownRunError: It has expired, or Redis lost it.
        """
        record = self.wait(timeout_s)
        warnings = [event.message for event in self.log() if isinstance(event, RunWarning)]
        return turn_result(record).model_copy(update={"warnings": warnings})

    def so_far(self) -> RunResult:
        """Return its result so far, without waiting."""
        return turn_result(self.record(()))


class WebhookRun(TurnRun):
    """A run that posts an event of another run, or an alert, to a webhook."""

    kind = "webhook"


class ProviderBatchRun(TurnRun):
    """A run that has a batch of the model's provider answer rows of a batch."""

    kind = "batch"


class ChainRun(Run):
    """A run of a chain request."""

    kind = "chain"

    def events(self, from_offset: int | None = None, *, timeout_s: float | None = None) -> Iterator[ChainEvent]:
        """Yield the events of its nodes as they come, until it is over; the arguments are those of `log`."""
        for event in self.log(from_offset, timeout_s=timeout_s):
            yield from self.events_of([event])

    def events_of(self, log: Sequence[RunEvent]) -> list[ChainEvent]:
        """Return the events that `events` yields of events of the run: those of its nodes."""
        bodies = bodies_of(self.request)
        ids = [event.step for event in log if event.step and event.ends_step]
        ended = self.steps(ids) if ids else {}
        found = (chain_event(event, self.request, bodies, ended.get(event.step or "")) for event in log)
        return [event for event in found if event is not None]

    def result(self, timeout_s: float | None = None) -> ChainResponse:
        """Wait until it is over and return its response, whether it succeeded or not: `final_output`, or `outputs` by node.

        Args:
            timeout_s: Seconds to wait; None for no limit.

        Raises:
            TimeoutError: It is not over in this time. The run goes on.
            UnknownRunError: It has expired, or Redis lost it.
        """
        return chain_response(self.wait(timeout_s))

    def so_far(self) -> ChainResponse:
        """Return its response so far, without waiting."""
        return chain_response(self.record([node.node_id for node in self.request.nodes]))

    @cached_property
    def request(self) -> ChainRequest:
        """The chain request."""
        return stored(ChainRequest, self._engine.ledger.runs.request_of(self.run_id)[1])


def unknown_wait(run: Run, name: str) -> UnknownRunError:
    """Return the error for a signal to a step that waits for none, with those that wait."""
    ids = run.waiting_steps()
    near = nearest(name, [*ids, *(step_id.rpartition("/")[2] for step_id in ids)])
    more = f" and {len(ids) - MAX_LISTED} more" if len(ids) > MAX_LISTED else ""
    listed = f"waiting: {', '.join(map(repr, ids[:MAX_LISTED]))}{more}{hint(near)}"
    about = listed if ids else f"none waits now: `submit runs show {run.run_id}` shows its steps"
    return UnknownRunError(f"no step {name!r} of run {run.run_id!r} waits for a signal; {about}")


def check_timeout(timeout_s: object) -> None:
    """Raise ConfigError unless a time to wait is None, or a number of seconds from 0 up to ten years."""
    if timeout_s is not None:
        bounds.duration_of(timeout_s, "timeout_s", may_be_zero=True)


def _remaining_s(max_s: float, deadline: float | None) -> float:
    """Return the seconds to a deadline on the monotonic clock, at most `max_s`."""
    return max_s if deadline is None else max(0.0, min(max_s, deadline - time.monotonic()))
