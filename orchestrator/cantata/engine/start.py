"""Starts of runs: a request is checked once, accepted, and planned by its first step; ready steps are sent."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, ClassVar, Generic, NamedTuple, TypedDict, TypeVar
from uuid import uuid4

import structlog

from cantata import __version__
from cantata.config import chain_requests
from cantata.config.loading import chain_named
from cantata.engine.dispatch.celery_app import App, send
from cantata.engine.limits.step_costs import CHEAP_MS
from cantata.errors import ConfigError, Fault, UnavailableError
from cantata.flows import canvas, provider_batches
from cantata.flows.canvas import Dispatch
from cantata.flows.chains import checks, expand, steps_of_nodes
from cantata.flows.definitions import Definitions
from cantata.flows.graph import START, Outcome, Spec
from cantata.flows.schedules import Schedule
from cantata.flows.turns import turn_plan
from cantata.flows.webhooks import plan_delivery
from cantata.flows.wire import ChainRequest, ProviderBatchRequest, TurnRequest, WebhookRequest
from cantata.ledger import conversations
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Accepted, Ready, RunSession
from cantata.operation import fault_points, traces
from cantata.values import ErrorInfo, JsonValue, fault_of_labels, stored

log = structlog.get_logger(__name__)

COORDINATOR = "coordinator"  # the queue of decisions
MAX_WORKFLOW_S = 30 * 86400.0  # of a run of a workflow in Python without a time limit of its own; it may sleep for days


class Timeout(NamedTuple):
    """The longest time of a run, and the setting that gives it; None seconds: the default."""

    seconds: float | None
    source: str


def id_of_key(key: str) -> str:
    """Return the id of the run that a key gives, or its beginning."""
    return sha256(key.encode()).hexdigest()[:16]


def new_id() -> str:
    """Return a random run id that sorts by time."""
    return f"{int(time.time() * 1000):011x}{uuid4().hex[:8]}"


Request = TypeVar("Request", ChainRequest, TurnRequest)


@dataclass(frozen=True)
class _Checked(Generic[Request]):
    """A request in which the check found no fault."""

    request: Request

    @cached_property
    def text(self) -> str:
        """The request as JSON, as it is stored with the run."""
        return self.request.model_dump_json(exclude_defaults=True)

    @property
    def webhooks(self) -> Sequence[str]:
        """The webhooks that the request names."""
        return self.request.webhooks


@dataclass(frozen=True)
class CheckedChain(_Checked[ChainRequest]):
    """A chain request in which the check found no fault."""

    kind: ClassVar[str] = "chain"

    @property
    def timeout(self) -> Timeout:
        """The time limit of the run."""
        return Timeout(self.request.timeout or None, "timeout of the request")

    @property
    def target(self) -> str:
        """The workflow that it runs, or its id, for webhooks."""
        nodes = self.request.nodes
        return self.request.entry_node if len(nodes) == 1 and nodes[0].kind == "workflow" else self.request.chain_id or ""

    def with_id(self) -> CheckedChain:
        """Return the same with an id, a random one if it has none."""
        return self if self.request.chain_id else replace(self, request=with_id(self.request))


@dataclass(frozen=True)
class CheckedTurn(_Checked[TurnRequest]):
    """A turn in which the check found no fault."""

    timeout: Timeout
    target: str
    """The receiver, for webhooks."""
    kind: ClassVar[str] = "turn"


def with_id(request: ChainRequest) -> ChainRequest:
    """Return a chain request with an id, a random one if it has none."""
    return request if request.chain_id else request.model_copy(update={"chain_id": uuid4().hex[:8]})


def checked_turn(turn: TurnRequest, definitions: Definitions) -> CheckedTurn:
    """Check a turn. Raises ConfigError with every fault."""
    faults = turn_plan.check_turn(turn, definitions)
    if turn.session is not None and (fault := conversations.fault_of(turn.session)):
        faults.append(Fault(fault, "session"))
    if faults:
        raise ConfigError(faults, source="turn")
    workflow, timeout = turn.workflow, Timeout(turn.timeout_s, "timeout_s of the turn")
    if not turn.timeout_s:
        chain, python = (definitions.chains.get(workflow), definitions.workflows.get(workflow)) if workflow else (None, None)
        own_s = chain.timeout_s if chain else (python.timeout_s or MAX_WORKFLOW_S) if python else None
        timeout = Timeout(own_s, f"timeout_s of workflow {workflow!r}")
    target = turn.workflow or turn.team or turn.agent or definitions.defaults.team or definitions.defaults.agent or ""
    return CheckedTurn(turn, timeout, target)


def checked_chain(request: ChainRequest, definitions: Definitions, *, is_draft: bool = False) -> CheckedChain:
    """Check a chain request; the input of a draft may be given later. Raises ConfigError with every fault."""
    faults, code = checks.check(request, definitions, is_draft=is_draft)
    if faults:
        raise ConfigError(faults, source="chain request", code=code, asked=request.model_dump())
    return CheckedChain(request)


def workflow_request(name: str, given: Mapping[str, Any], definitions: Definitions, timeout_s: float | None = None) -> dict[str, Any]:
    """Return the chain request of a workflow in Python: its one node gets the input, which is JSON."""
    known = definitions.workflows.get(name)
    node = {"node_id": name, "kind": "workflow", "name": name, "input": dict(given)}
    return {"nodes": [node], "entry_node": name, "timeout": timeout_s or (known and known.timeout_s) or MAX_WORKFLOW_S}


def checked_schedule(name: str, schedule: Schedule, definitions: Definitions) -> CheckedTurn | CheckedChain:
    """Check the request of the runs of a schedule, with its placeholders. Raises ConfigError with every fault."""
    if schedule.turn:
        return checked_turn(schedule.turn, definitions)
    if schedule.workflow is not None:
        request = chain_requests.request_from(workflow_request(schedule.workflow, schedule.input, definitions))
    elif isinstance(schedule.chain, ChainRequest):
        request = schedule.chain
    else:
        request = chain_named(str(schedule.chain), definitions)
    if schedule.input and schedule.workflow is None:
        request = request.model_copy(update={"initial_input": schedule.input})
    request = request if request.chain_id else request.model_copy(update={"chain_id": name})
    return checked_chain(request, definitions)


def accept_run(
    ledger: Ledger, run_id: str, *, kind: str, request: str, definitions: Definitions, definitions_text: str, timeout: Timeout,
    labels: Mapping[str, str] | None, queue: str = COORDINATOR, session: RunSession | None = None, webhooks: Sequence[JsonValue] = (),
) -> Accepted:  # fmt: skip
    """Accept a run with the settings of its definitions; its first step is still to be sent. Raises ConfigError if it is too large."""
    check_size(kind, request, definitions)
    with traces.trace_submission(kind, __version__) as submission:
        accepted = ledger.runs.accept(
            run_id, kind=kind, request=request, definitions=definitions_text, labels=labels, queue=queue, session=session,
            webhooks=webhooks, max_deliveries=definitions.limits.quota_of((labels or {}).get("tenant", "")).open_deliveries,
            **run_settings(definitions, timeout),
        )  # fmt: skip
        submission.run_id = run_id if accepted.new else ""
    if accepted.result == "new":
        fault_points.at("accepted")
    return accepted


def accept_rows(
    ledger: Ledger, app: App, rows: Mapping[str, str], *, kind: str, batch: str, definitions: Definitions, definitions_text: str,
    timeout: Timeout, labels: Mapping[str, str], queue: str = COORDINATOR,
) -> None:  # fmt: skip
    """Accept runs by their ids, with their requests, as rows of a batch, and send the first steps of those that are new."""
    for request in rows.values():
        check_size(kind, request, definitions)
    accepted = ledger.runs.accept_rows(
        rows, kind=kind, batch=batch, definitions=definitions_text, labels=labels, queue=queue, **run_settings(definitions, timeout)
    )
    fault_points.at("accepted")
    new = [(run_id, each.priority) for run_id, each in zip(rows, accepted, strict=True) if each.result == "new"]
    if new:
        announce_runs(app, new, queue)


def check_size(kind: str, request: str, definitions: Definitions) -> None:
    """Raise ConfigError if the request (JSON text) of a run is too large."""
    if len(request.encode()) > definitions.limits.input_bytes:
        size, limit = len(request.encode()) / 1e6, definitions.limits.input_bytes / 1e6
        raise ConfigError(f"the request is {size:.1f} MB; the limit is {limit:.1f} MB (limits.input_bytes)", source=kind)


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise ConfigError for labels of a run that are too many, or one that is too long."""
    if fault := fault_of_labels(labels):
        raise ConfigError(fault, source="labels")


class RunSettings(TypedDict):
    """The settings of a run that its definitions give."""

    timeout_s: float
    timeout_by: str
    max_attempts: int
    max_steps: int
    retention_s: float


def run_settings(definitions: Definitions, timeout: Timeout) -> RunSettings:
    """Return the settings of a run with these definitions."""
    defaults = definitions.defaults
    return RunSettings(
        timeout_s=timeout.seconds or defaults.timeout_s, timeout_by=timeout.source if timeout.seconds else "defaults.timeout_s",
        max_attempts=defaults.max_attempts, max_steps=definitions.limits.max_steps, retention_s=defaults.retention_s,
    )  # fmt: skip


def plan_run(kind: str, request: JsonValue, definitions: Definitions) -> Outcome:
    """Return the outcome of a run's first step: the run's input, and the planned graph as its expansion."""
    try:
        if kind == "chain":
            chain = stored(ChainRequest, request)
            return Outcome(output=expand.input_of(chain), fragment=expand.plan(chain, definitions))
        if kind == "webhook":
            delivery = stored(WebhookRequest, request)
            return Outcome(output=delivery.text, fragment=plan_delivery(delivery))
        if kind == "batch":
            rows = stored(ProviderBatchRequest, request)
            return Outcome(output=rows.text, fragment=provider_batches.plan(rows, definitions))
        turn = stored(TurnRequest, request)
        return Outcome(output=turn.text, fragment=turn_plan.plan_turn(turn, definitions))
    except ConfigError as error:
        return Outcome(status="failed", error=ErrorInfo(code=error.code, message=str(error)))


def choose_start_queue(request: ChainRequest, definitions: Definitions, costs_ms: Mapping[str, float]) -> str:
    """Return the queue whose worker plans a chain: that of its first call if the call is known to be cheap, else the coordinators'.

    Planning is a decision, which any worker may execute. For cheap work this saves one of the two messages of a short run.
    """
    entry = next((node for node in request.nodes if node.node_id == request.entry_node), None)
    if entry is None or entry.kind not in ("tool", "skill", "workflow"):
        return COORDINATOR
    spec = steps_of_nodes.call(entry, {}, definitions)
    cheap = spec.cheap if spec.cheap is not None else costs_ms.get(spec.work, CHEAP_MS) < CHEAP_MS
    return spec.queue if cheap else COORDINATOR


def announce_runs(app: App, runs: Sequence[tuple[str, int]], queue: str = COORDINATOR) -> None:
    """Send the first steps of new runs, given with their priorities; if the broker is unavailable, the sweep sends them later."""
    try:
        send(app, [Dispatch(app, run_id, priority).signature("run.start", queue, [START]) for run_id, priority in runs])
    except UnavailableError as error:
        log.warning("dispatch_failed", run=runs[0][0], error=str(error), note="the sweep sends it when the broker is back")


def send_ready(app: App, ready: Iterable[tuple[str, Ready]], *, sent_at: float | None = None) -> None:
    """Send steps of any runs, without a canvas behind them; those that were in their queue before go first. `sent_at` is that of `send`."""
    by_run: dict[bool, dict[tuple[str, int], list[tuple[str, Spec]]]] = {True: defaultdict(list), False: defaultdict(list)}
    for run_id, step in ready:
        by_run[step.has_waited][run_id, step.priority].append((step.step_id, step.spec))
    for first, runs in by_run.items():
        if runs:
            canvases = [each for run, steps in runs.items() for each in canvas.build(Dispatch(app, *run), steps)]
            send(app, canvases, first=first, sent_at=sent_at)


def definitions_from(text: str) -> Definitions:
    """Parse definitions from the ledger's JSON text."""
    return stored(Definitions, text)
