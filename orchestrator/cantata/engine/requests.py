"""Checked requests: each is checked once against the definitions, and then has the text, the time limit and the target of its run.

Commands that only check need neither Celery nor Redis, so nothing of them is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar
from uuid import uuid4

from cantata import bounds
from cantata.config import chain_requests
from cantata.config.loading import chain_named
from cantata.errors import ConfigError, Fault
from cantata.flows.chains import checks
from cantata.flows.definitions import Definitions
from cantata.flows.schedules import Schedule
from cantata.flows.submission import MAX_WORKFLOW_S, Timeout
from cantata.flows.turns import turn_plan
from cantata.flows.wire import ChainRequest, TurnRequest, fault_of_session

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
    session: ClassVar[None] = None

    @property
    def timeout(self) -> Timeout:
        """The time limit of the run."""
        return Timeout(self.request.timeout or None, "timeout of the request")

    @property
    def target(self) -> str:
        """The workflow that it runs, or its id, for webhooks."""
        nodes = self.request.nodes
        return (
            self.request.entry_node if len(nodes) == 1 and nodes[0].kind == "workflow" else self.request.chain_id or ""
        )

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

    @property
    def session(self) -> str | None:
        """The conversation that it belongs to."""
        return self.request.session


def with_id(request: ChainRequest) -> ChainRequest:
    """Return a chain request with an id, a random one if it has none."""
    return request if request.chain_id else request.model_copy(update={"chain_id": uuid4().hex[:8]})


def checked_turn(turn: TurnRequest, definitions: Definitions) -> CheckedTurn:
    """Check a turn. Raises ConfigError with every fault."""
    faults = turn_plan.check_turn(turn, definitions)
    if turn.session is not None and (fault := fault_of_session(turn.session)):
        faults.append(Fault(fault, "session"))
    if faults:
        raise ConfigError(faults, source="turn")
    timeout = Timeout(turn.timeout_s, "timeout_s of the turn")
    if turn.workflow and not turn.timeout_s:
        timeout = workflow_timeout(turn.workflow, definitions)
    _, target = turn_plan.target_of(turn, definitions) or ("", "")
    return CheckedTurn(turn, timeout, target)


def workflow_timeout(name: str, definitions: Definitions) -> Timeout:
    """Return the time limit of a run of a chain, or of a workflow in Python."""
    chain, python = definitions.chains.get(name), definitions.workflows.get(name)
    seconds = chain.timeout_s if chain else (python.timeout_s or MAX_WORKFLOW_S) if python else None
    return Timeout(seconds, f"timeout_s of workflow {name!r}")


def checked_chain(request: ChainRequest, definitions: Definitions, *, is_draft: bool = False) -> CheckedChain:
    """Check a chain request; the input of a draft may be given later. Raises ConfigError with every fault."""
    bounds.check(request.initial_input, "initial_input", max_bytes=definitions.limits.input_bytes)
    faults, code = checks.check(request, definitions, is_draft=is_draft)
    if faults:
        raise ConfigError(faults, source="chain request", code=code, asked=request.model_dump())
    return CheckedChain(request)


def workflow_request(
    name: str, given: Mapping[str, Any], definitions: Definitions, timeout_s: float | None = None
) -> dict[str, Any]:
    """Return the chain request of a workflow in Python: its one node gets the input, which is JSON."""
    known = definitions.workflows.get(name)  # a chain may have the same name
    node = {"node_id": name, "kind": "workflow", "name": name, "input": dict(given)}
    timeout = timeout_s or (known and known.timeout_s) or MAX_WORKFLOW_S
    return {"chain_id": name, "nodes": [node], "entry_node": name, "timeout": timeout}


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
