"""Requests of runs: checked against the definitions, with their kind and time limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cantata.config import chain_requests
from cantata.config.loading import chain_named
from cantata.engine.start import MAX_WORKFLOW_S, Timeout
from cantata.errors import ConfigError, Fault
from cantata.flows.chains import checks
from cantata.flows.definitions import Definitions
from cantata.flows.schedules import Schedule
from cantata.flows.turns import turn_plan
from cantata.flows.wire import ChainRequest, TurnRequest
from cantata.ledger import conversations


class RunRequest(NamedTuple):
    """A request without faults."""

    kind: str
    text: str
    """The request as JSON."""
    timeout: Timeout
    target: str
    """Its team, agent, chain or workflow, for webhooks."""
    webhooks: Sequence[str] = ()


def turn_request(turn: TurnRequest, definitions: Definitions) -> RunRequest:
    """Return the request of a turn. Raises ConfigError with every fault."""
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
    return RunRequest("turn", turn.model_dump_json(exclude_defaults=True), timeout, target, turn.webhooks)


def chain_request(request: ChainRequest) -> RunRequest:
    """Return the request of a chain in which `checks.check` found no fault."""
    target = request.entry_node if len(request.nodes) == 1 and request.nodes[0].kind == "workflow" else request.chain_id or ""
    timeout = Timeout(request.timeout or None, "timeout of the request")
    return RunRequest("chain", request.model_dump_json(exclude_defaults=True), timeout, target, request.webhooks)


def check_chain(request: ChainRequest, definitions: Definitions) -> None:
    """Raise ConfigError with every fault of a chain request."""
    faults, code = checks.check(request, definitions)
    if faults:
        raise ConfigError(faults, source="chain request", code=code, asked=request.model_dump())


def workflow_request(name: str, given: Mapping[str, Any], definitions: Definitions, timeout_s: float | None = None) -> dict[str, Any]:
    """Return the chain request of a workflow in Python: its one node gets the input, which is JSON."""
    known = definitions.workflows.get(name)
    node = {"node_id": name, "kind": "workflow", "name": name, "input": dict(given)}
    return {"nodes": [node], "entry_node": name, "timeout": timeout_s or (known and known.timeout_s) or MAX_WORKFLOW_S}


def scheduled_request(name: str, schedule: Schedule, definitions: Definitions) -> RunRequest:
    """Return the request of the runs of a schedule, with its placeholders. Raises ConfigError with every fault."""
    if schedule.turn:
        return turn_request(schedule.turn, definitions)
    if schedule.workflow is not None:
        request = chain_requests.request_from(workflow_request(schedule.workflow, schedule.input, definitions))
    elif isinstance(schedule.chain, ChainRequest):
        request = schedule.chain
    else:
        request = chain_named(str(schedule.chain), definitions)
    if schedule.input and schedule.workflow is None:
        request = request.model_copy(update={"initial_input": schedule.input})
    request = request if request.chain_id else request.model_copy(update={"chain_id": name})
    check_chain(request, definitions)
    return chain_request(request)
