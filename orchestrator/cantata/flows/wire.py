"""Requests and results: chain requests, turns, chain events, responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from cantata.errors import RunError
from cantata.flows.waits import WaitOptions
from cantata.text.suggestions import hint, nearest
from cantata.values import BoundedJson, BoundedObject, Duration, ErrorInfo, NumberOfSeconds, Unreadable, Usage, Value

NodeKind = Literal["tool", "skill", "agent", "chain", "workflow", "proc", "branch", "map", "wait"]
NODE_KINDS: tuple[str, ...] = get_args(NodeKind)
MAX_QUOTED_KIND = 60  # characters of a kind in a message
MAX_SESSION_CHARS = 200  # of the name of a session

RunStatus = Literal[
    "accepted", "running", "waiting", "cancelling", "succeeded", "failed", "cancelled", "timed_out", "exhausted"
]
RunState = RunStatus | Literal["succeeded_with_failures"]
END_PHRASES = {
    "failed": "failed",
    "cancelled": "was cancelled",
    "timed_out": "timed out",
    "exhausted": "exhausted its budget",
}
"""Status of a run that did not succeed → the verb phrase for messages."""
WebhookEvent = Literal["end", "wait", "failure"]
"""An event that a webhook may be for: the run ended; a step of it waits for a person; it ended without success, and nobody cancelled it."""
RUN_OVER: frozenset[RunStatus] = frozenset({"succeeded", "failed", "cancelled", "timed_out", "exhausted"})


def fault_of_kind(kind: str) -> str | None:
    """Return why a node cannot be of this kind; None if it can."""
    if kind in NODE_KINDS:
        return None
    found = kind[:MAX_QUOTED_KIND]
    return f"expected {', '.join(map(repr, NODE_KINDS[:-1]))} or {NODE_KINDS[-1]!r}, found {found!r}{hint(nearest(found, NODE_KINDS))}"


def fault_of_session(name: str) -> str | None:
    """Return what is wrong with a session's name, or None."""
    if not name.strip():
        return "the session's name is empty"
    if len(name) > MAX_SESSION_CHARS:
        return f"the session's name has {len(name)} characters; at most {MAX_SESSION_CHARS} are allowed"
    if not name.isprintable():
        return "the session's name has characters that cannot be printed, such as line ends"
    return None


_Version = Annotated[
    Literal["1.0"],
    BeforeValidator(
        lambda given: str(given) if isinstance(given, float) else given, json_schema_input_type=Literal["1.0"] | float
    ),
]


class _WithoutNulls(Value):
    """Base class of what callers write: null for an optional field means that it is absent."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict) or None not in given.values():
            return given
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {key: value for key, value in given.items() if value is not None or key not in optional}


class ChainNode(_WithoutNulls, WaitOptions):
    """One node of a chain request."""

    node_id: str = Field(description="unique node identifier")
    kind: str = Field(
        description="what the node does", json_schema_extra={"enum": list(NODE_KINDS)}
    )  # validated with the other fields of a node, so that no fault hides the others
    name: str = Field(default="", description="skill, tool, agent, chain, workflow or command to call")
    input: BoundedObject = Field(default_factory=dict, description="static input")
    input_map: dict[str, str] = Field(
        default_factory=dict, description="JMESPath expressions over earlier outputs; they win over `input`"
    )
    condition: str = Field(default="", description="branch: expression that decides")
    true_node: str | list[str] | None = Field(
        default=None, description="branch: next node, or nodes, if the condition holds"
    )
    false_node: str | list[str] | None = Field(default=None, description="branch: next node, or nodes, if it does not")
    items_path: str = Field(default="", description="map: expression that gives the list")
    map_node: str | None = Field(default=None, description="map: node to run for each item")
    next_node: str | list[str] | None = Field(default=None, description="default next node; of a list, all")
    on_error: str = Field(default="abort", description="abort, skip, or a node id to jump to")
    deps: list[str] = Field(default_factory=list, description="nodes that must be over before this one starts")
    retry: int = Field(default=0, ge=0, le=100, description="retries after the first attempt")
    timeout: Duration | None = Field(default=None, description="time limit of one attempt of this node, in seconds")
    max_concurrency: int | None = Field(default=None, ge=1, le=10_000, description="map: items under way at once")
    max_iterations: int = Field(default=25, ge=1, le=10_000, description="branch that points back: rounds of its loop")
    default: BoundedJson = Field(default=None, description="wait: output after its timeout without a signal")


_WEBHOOKS = (
    "names under `webhooks` of the configuration, or URLs; `wait,failure=NAME` says for which of the events end, wait and failure. The "
    "configuration's own webhooks for each run come beside them"
)


class ChainRequest(_WithoutNulls):
    """A request to run a graph of nodes."""

    type: Literal["chain/req"] = Field(default="chain/req", description="what the message is")
    id: str = Field(
        default="", description="the id of the message, returned as `req_id` on every event and the response"
    )
    a2e: _Version = Field(
        default="1.0", exclude=True, description="the version of the protocol, as every A2E message has it"
    )
    version: _Version = Field(
        default="1.0", exclude=True, description="the same, as the examples of chain requests have it"
    )
    ts: BoundedJson = Field(default=None, exclude=True, description="when the message was sent; without effect")
    session_id: str = Field(default="", description="session identifier, returned unchanged")
    chain_id: str = Field(default="", description="chain identifier; generated if empty")
    nodes: list[ChainNode] = Field(description="all nodes")
    entry_node: str = Field(default="", description="starting node id")
    inputs: BoundedObject = Field(
        default_factory=dict,
        description="declared inputs of `initial_input`: name → type, or a JSON Schema with `type: object` and `properties`",
    )
    initial_input: BoundedObject = Field(default_factory=dict, description="input to the chain")
    correlation_id: str = Field(default="", description="returned on every event and the response")
    streaming: bool = Field(
        default=True, description="whether events are sent to the caller; they are recorded in any case"
    )
    timeout: NumberOfSeconds = Field(
        default=0.0,
        ge=0,
        le=30 * 86400,
        description="time limit of the whole chain, in seconds; 0: the configured default",
    )
    webhooks: list[str] = Field(default_factory=list, max_length=10, description=_WEBHOOKS)


class TurnRequest(Value):
    """A user's message to a team, an agent or a workflow."""

    text: str = Field(description="the user's message")
    team: str | None = Field(default=None, description="the team to answer; the default one if neither is named")
    agent: str | None = Field(default=None, description="the agent to answer")
    workflow: str | None = Field(
        default=None, description="the chain or workflow in Python to answer, by its name in the configuration"
    )
    session: str | None = Field(
        default=None, description="the conversation it belongs to; its turns run one after the other"
    )
    send_history: bool = Field(
        default=False, description="whether the agent's input begins with the conversation so far, as text"
    )
    timeout_s: NumberOfSeconds | None = Field(
        default=None, gt=0, le=30 * 86400, description="time limit of the run, in seconds"
    )
    webhooks: list[str] = Field(default_factory=list, max_length=10, description=_WEBHOOKS)


class WebhookRequest(Value):
    """The request of a run that posts to a webhook. Scripts of the ledger write it, or `webhooks.post_test`; nobody submits it."""

    id: str = Field(description="the id of the message, the same at every attempt: that of the run")
    text: str = Field(description="what is posted, in a line")
    to: str = Field(description="a name under `webhooks` of the run's definitions, or a URL")
    event: WebhookEvent | Literal["alert", "test"] = Field(description="what happened")
    alert: str | None = Field(default=None, description="the alert under `alerts` that it is for")
    run_id: str = Field(default="", description="the run that it is about")
    step: str | None = Field(default=None, description="wait: the step that waits")
    status: str = Field(default="", description="the status of the run then")
    at_ms: int = Field(description="when it happened, Redis's clock, milliseconds since 1970")
    data: dict[str, JsonValue] = Field(
        default_factory=dict, description="more of the message: what an alert found, counts of a batch, ..."
    )


class ProviderBatchRequest(Value):
    """The request of a run that has a batch of the model's provider answer rows of a batch; nobody submits it."""

    text: str = Field(description="what is asked, in a line")
    agent: str = Field(description="the agent that answers")
    rows: dict[str, str] = Field(default_factory=dict, description="number of the row → its text")
    is_again: bool = Field(
        default=False, description="whether they may have been sent before, by a run that Redis has lost"
    )
    cancels: str | None = Field(
        default=None, description="the cancelled run whose batch this one cancels at the provider"
    )
    batch: str | None = Field(default=None, description="the provider's id of that batch, if the run recorded it")


class RowOutcome(Value):
    """The outcome of a row that a provider's batch answered."""

    output: JsonValue = Field(None, description="the answer")
    error: ErrorInfo | None = Field(None, description="why there is none")
    usage: Usage = Field(default_factory=Usage, description="its consumption")


class HistoryEntry(Value):
    """One entry of a conversation."""

    role: Literal["user", "assistant", "system_error"] = Field(
        description="the user, an agent, or Cantata for a turn that failed"
    )
    content: str = Field(description="the message; truncated past 32 kB")
    agent: str | None = Field(default=None, description="the agent that answered")
    ts: float = Field(description="Redis's clock, seconds since 1970")
    run_id: str = Field(default="", description="the turn")


class SessionInfo(Value):
    """A session, without the messages of its conversation."""

    session: str = Field(description="its name")
    entries: int = Field(description="number of entries that are kept")
    waiting: int = Field(description="turns under way or waiting")
    last_used_at: float = Field(description="time of the last accepted turn, Redis's clock, seconds since 1970")
    unreadable: Unreadable = ""


class FaultInfo(Value):
    """A fault of a request."""

    message: str = Field(description="for people: what is wrong, and what was expected")
    where: str = Field(default="", description="the field, such as `nodes[2].name`")
    line: int | None = Field(default=None, description="the line of the document, if it has several")


class AnswerOutcome(Value):
    """The outcome of one of several answers."""

    id: str = Field(description="the `id` that was answered")
    outcome: str = Field(description="taken; or why not: over, closed, not_allowed, bad_answer, unknown_run, ...")
    message: str = Field(description="for people: what happened, and what to do")
    faults: list[FaultInfo] = Field(default_factory=list, description="of a `bad_answer`: each field that is wrong")


class ChainError(Value):
    """The error of a chain."""

    code: str = Field(
        description="bad_entry, bad_request, chain_cycle, chain_node_error, timeout, cancelled, chain_error"
    )
    message: str = Field(description="for people: which node, what is wrong, what to do")
    node_id: str | None = Field(default=None, description="the node that failed")
    index: int | None = Field(default=None, description="the position of the map item that failed")
    faults: list[FaultInfo] = Field(default_factory=list, description="all faults of a chain that was rejected")


class ChainEvent(Value):
    """An event of a node of a chain."""

    type: Literal["chain/event"] = "chain/event"
    seq: int = Field(description="strictly increasing within a run; an offset to attach at")
    run_id: str = Field(description="the run")
    req_id: str = Field(default="", description="the `id` of the request")
    chain_id: str = Field(description="as in the request")
    correlation_id: str = Field(default="", description="as in the request")
    node_id: str = Field(description="the node; of a map item, the node that is run for it")
    phase: Literal["start", "done", "skip", "error"] = Field(description="what happened")
    output: JsonValue = Field(default=None, description="done: the node's output")
    error: str | None = Field(default=None, description="error: the message")
    iteration: int | None = Field(default=None, description="round of the loop that contains the node, from 1")
    index: int | None = Field(default=None, description="position of the map item")


class RunOutcome(Value):
    """The status of a run, which may have ended."""

    run_id: str = Field(description="the run; empty if a chain or turn was rejected")
    status: RunStatus = Field(description="the status of the run")
    state: RunState = Field(
        default="accepted", description="the status for people: `succeeded_with_failures` if steps failed"
    )
    error: ErrorInfo | ChainError | None = Field(default=None, description="the error of a run that failed")

    def raise_for_status(self) -> Self:
        """Return this result, if the run succeeded. Raises RunError with the reason if it did not."""
        if self.status == "succeeded":
            return self
        error = self.error
        if error is None:
            raise RunError(
                f"run {self.run_id} has no answer yet: it is {self.status}",
                run_id=self.run_id,
                status=self.status,
                code="not_over",
            )
        message = f"run {self.run_id} {END_PHRASES[self.status]}: {error.message}" if self.run_id else error.message
        raise RunError(message, run_id=self.run_id, status=self.status, code=error.code)


class ChainResponse(RunOutcome):
    """The result of a chain."""

    type: Literal["chain/resp"] = "chain/resp"
    req_id: str = Field(default="", description="the `id` of the request")
    chain_id: str = Field(description="as in the request, or generated")
    session_id: str = Field(default="", description="as in the request")
    correlation_id: str = Field(default="", description="as in the request")
    success: bool = Field(description="no node failed")
    outputs: dict[str, JsonValue] = Field(description="node id → output; present whether the chain succeeded or not")
    final_output: JsonValue = Field(
        description="output of the one terminal that ran, or an object of several; null unless the run succeeded"
    )
    duration_ms: int = Field(description="from acceptance to the end, or to now")
    nodes_run: int = Field(
        description="nodes executed, branches and maps among them; not the skipped ones, nor map items"
    )
    items_run: int = Field(default=0, description="map items executed")
    failed: list[str] = Field(default_factory=list, description="nodes that failed; of an item of a map, `node[index]`")
    usage: Usage = Field(default_factory=Usage, description="its consumption")
    error: ChainError | None = Field(default=None, description="the error, if it failed")


class RunResult(RunOutcome):
    """The result of a run, or its state so far."""

    output: JsonValue = Field(
        default=None, description="the answer, never an error text; of an exhausted router, the last answer"
    )
    error: ErrorInfo | None = Field(default=None, description="the error, if it failed")
    usage: Usage = Field(default_factory=Usage, description="its consumption")
    agents: list[str] = Field(default_factory=list, description="agents that answered, in the order they were asked")
    warnings: list[str] = Field(default_factory=list, description="problems that did not fail it")
    steps: dict[str, JsonValue] = Field(
        default_factory=dict, description="with `store_steps`: step_0, step_1, ... → {type, output}"
    )
    history: list[JsonValue] = Field(
        default_factory=list, description="with `full_history`: {step, input, output, type} of each"
    )
    agentic: dict[str, JsonValue] | None = Field(default=None, description="of an agentic step: its rounds and totals")
    steps_run: int = Field(default=0, description="steps done or failed, without those that only decide")
    duration_ms: int = Field(default=0, description="from acceptance to the end, or to now")
