"""Starting runs: their ids, how they are accepted, the plan of a run, the queue of its first step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TypedDict
from uuid import uuid4

import structlog

from cantata import __version__
from cantata.engine.limits.step_costs import CHEAP_MS
from cantata.engine.publisher import COORDINATOR, Publisher
from cantata.errors import ConfigError
from cantata.flows import provider_batches
from cantata.flows.chains import expand, steps_of_nodes
from cantata.flows.definitions import Definitions
from cantata.flows.graph import Outcome
from cantata.flows.submission import Timeout
from cantata.flows.turns import turn_plan
from cantata.flows.webhooks import plan_delivery
from cantata.flows.wire import ChainRequest, ProviderBatchRequest, TurnRequest, WebhookRequest
from cantata.ledger.ledger import Ledger
from cantata.ledger.records import Accepted, RunSession
from cantata.operation import fault_points, traces
from cantata.values import ErrorInfo, JsonValue, fault_of_labels, stored

log = structlog.get_logger(__name__)


def id_of_key(key: str) -> str:
    """Return the id of the run that a key gives, or its beginning."""
    return sha256(key.encode()).hexdigest()[:16]


def new_id() -> str:
    """Return a random run id that sorts by time."""
    return f"{int(time.time() * 1000):011x}{uuid4().hex[:8]}"


def accept_run(
    ledger: Ledger,
    run_id: str,
    *,
    kind: str,
    request: str,
    definitions: Definitions,
    definitions_text: str,
    timeout: Timeout,
    labels: Mapping[str, str] | None,
    target: str = "",
    queue: str = COORDINATOR,
    session: RunSession | None = None,
    webhooks: Sequence[JsonValue] = (),
) -> Accepted:
    """Accept a run with the settings of its definitions; its first step is still to be sent. Raises ConfigError if it is too large."""
    check_size(kind, request, definitions)
    with traces.trace_submission(kind, __version__) as submission:
        accepted = ledger.runs.accept(
            run_id,
            kind=kind,
            request=request,
            definitions=definitions_text,
            labels=labels,
            queue=queue,
            session=session,
            webhooks=webhooks,
            max_deliveries=definitions.limits.quota_of((labels or {}).get("tenant", "")).open_deliveries,
            **run_settings(definitions, timeout, target),
        )
        submission.run_id = run_id if accepted.new else ""
    if accepted.result == "new":
        fault_points.at("accepted")
    return accepted


def accept_rows(
    ledger: Ledger,
    publisher: Publisher,
    rows: Mapping[str, str],
    *,
    kind: str,
    batch: str,
    definitions: Definitions,
    definitions_text: str,
    timeout: Timeout,
    labels: Mapping[str, str],
    target: str,
    queue: str = COORDINATOR,
) -> None:
    """Accept runs by their ids, with their requests, as rows of a batch, and send the first steps of those that are new."""
    for request in rows.values():
        check_size(kind, request, definitions)
    accepted = ledger.runs.accept_rows(
        rows,
        kind=kind,
        batch=batch,
        definitions=definitions_text,
        labels=labels,
        queue=queue,
        **run_settings(definitions, timeout, target),
    )
    fault_points.at("accepted")
    new = [(run_id, each.priority) for run_id, each in zip(rows, accepted, strict=True) if each.result == "new"]
    if new:
        publisher.announce_runs(new, queue)


def check_size(kind: str, request: str, definitions: Definitions) -> None:
    """Raise ConfigError if the request (JSON text) of a run is too large."""
    if len(request.encode()) > definitions.limits.input_bytes:
        size, limit = len(request.encode()) / 1e6, definitions.limits.input_bytes / 1e6
        raise ConfigError(
            f"the request is {size:.1f} MB; the limit is {limit:.1f} MB (limits.input_bytes)", source=kind
        )


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise ConfigError for labels of a run that are too many, or one that is too long."""
    if fault := fault_of_labels(labels):
        raise ConfigError(fault, source="labels")


class RunSettings(TypedDict):
    """The settings of a run that its definitions give."""

    name: str
    timeout_s: float
    timeout_by: str
    max_attempts: int
    max_steps: int
    retention_s: float


def run_settings(definitions: Definitions, timeout: Timeout, target: str) -> RunSettings:
    """Return the settings of a run with these definitions; its name is that of its target, if they have it."""
    defaults = definitions.defaults
    known = (definitions.agents, definitions.teams, definitions.chains, definitions.workflows)
    return RunSettings(
        name=target if any(target in each for each in known) else "",
        timeout_s=timeout.seconds or defaults.timeout_s,
        timeout_by=timeout.source if timeout.seconds else "defaults.timeout_s",
        max_attempts=defaults.max_attempts,
        max_steps=definitions.limits.max_steps,
        retention_s=defaults.retention_s,
    )


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


def definitions_from(text: str) -> Definitions:
    """Parse definitions from the ledger's JSON text."""
    return stored(Definitions, text)
