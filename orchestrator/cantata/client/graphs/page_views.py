"""JSON views of the run pages. Times are seconds since 1970, by Redis's clock."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from cantata.flows.events import types_where
from cantata.flows.graph import ShownState
from cantata.ledger.runs.summaries import RunSummary
from cantata.operation.logs.lines import LogLine
from cantata.values import ErrorInfo, Usage, Value

CLOSED = "closed"
ATTEMPT_ENDS = [*sorted(types_where(lambda event: event.ends_attempt)), CLOSED]
"""Types of the events that end an attempt, and the end of one that was running when its run was closed."""


class RunDetail(RunSummary):
    """A run, with its request and its answer."""

    request: JsonValue = Field(description="the request, truncated if it is large")
    session: str | None = Field(default=None, description="the session of a turn")
    forked_from: str | None = Field(default=None, description="the source run of a fork")
    answer: JsonValue = Field(default=None, description="its output so far, truncated if it is large")
    code_mixed: str = Field(default="", description="user modules of which its steps ran with several versions")
    cut: bool = Field(default=False, description="whether request or answer was truncated")
    trace_id: str = Field(
        default="", description="the id of its trace, where traces are exported: 32 hexadecimal digits"
    )
    span_id: str = Field(default="", description="the id of the root span: 16 hexadecimal digits")


class StepView(Value):
    """A step in the graph."""

    id: str = Field(description="unique in the run")
    name: str = Field(description="the display name: a node, an agent, a tool, or a decision")
    kind: str = Field(description="its step kind, which has a handler")
    work: str = Field(description="the agent or tool, such as `agents:writer`")
    internal: bool = Field(
        default=False, description="whether it only organizes other steps; the pages hide it at first"
    )
    queue: str = Field(description="its queue")
    state: ShownState = Field(description="its state; `timed_out`: no signal came before its deadline")
    attempt: int = Field(description="number of attempts that were started")
    failures: int = Field(description="number of attempts that failed")
    crashes: int = Field(description="number of attempts whose worker died")
    worker: str | None = Field(default=None, description="the worker of the last attempt")
    ready_at: float | None = Field(default=None, description="when it was first ready")
    first_at: float | None = Field(default=None, description="when its first attempt started")
    started_at: float | None = Field(default=None, description="when its last attempt started")
    ended_at: float | None = Field(default=None, description="when it ended")
    awaits: Literal["answer", "time"] | None = Field(
        default=None, description="what it waits, or waited, for: the answer of a person or program, or a time"
    )
    asked_at: float | None = Field(default=None, description="when it began to wait for that")
    limited: bool = Field(default=False, description="whether a shared limit has held it back")
    error: ErrorInfo | None = Field(default=None, description="the error of the step, or of its last attempt")
    usage: Usage | None = Field(default=None, description="its usage, if it called a model")
    model: str | None = Field(default=None, description="the model that answered")
    map: str | None = Field(default=None, description="the map whose item it is, or whose item's expansion it is in")
    scope: str | None = Field(default=None, description="the step whose expansion added it")


class EdgeView(Value):
    """An edge between two steps. A folded map takes the place of its items."""

    source: str
    target: str
    label: str = Field(description="done, true, false, failed, left")
    wakes: bool = Field(description="whether it makes the target run, or only orders the steps")
    taken: bool | None = Field(description="null until its source has ended")


class MapView(Value):
    """A map, with counts of its items by state."""

    id: str = Field(description="the step of the map")
    name: str
    prefix: str = Field(description="item i is `prefix/i`")
    count: int
    waiting: int = Field(description="not started")
    running: int
    done: int
    failed: int
    skipped: int


class GraphView(Value):
    """The current graph of a run."""

    run: RunDetail
    offset: int = Field(description="the offset of the last event that it includes")
    more: bool = Field(description="whether steps were left out")
    steps: list[StepView]
    edges: list[EdgeView]
    maps: list[MapView]
    paused: dict[str, str] = Field(
        default_factory=dict, description="paused queues that steps of it wait in: queue → since when, by whom"
    )


class AttemptView(Value):
    """One attempt of a step."""

    attempt: int
    started_at: float
    ended_at: float | None = None
    worker: str | None = None
    span_id: str | None = Field(default=None, description="the id of its span; null if its worker died")
    end: str | None = Field(
        default=None,
        description="the type of its end; null while it runs",
        json_schema_extra={"enum": [*ATTEMPT_ENDS, None]},
    )
    error: ErrorInfo | None = None


class CallView(Value):
    """A tool call of a model."""

    id: str
    name: str
    arguments: str
    waits: bool = Field(default=False, description="whether it waits for the answer of a person or program")


class MessageView(Value):
    """One message of a conversation with a model."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    reasoning: str = Field(
        default="", description="what the model thought before it wrote this, as far as people can read it"
    )
    calls: list[CallView] = Field(default_factory=list)
    call_id: str | None = Field(default=None, description="of a tool message: the call it answers")
    name: str | None = Field(default=None, description="of a tool message: the tool")
    cut: bool = Field(default=False, description="whether the text was truncated")
    omitted: int = Field(default=0, description="number of earlier messages that were not recorded")


class StepDetail(Value):
    """Details of one step."""

    step: StepView = Field(description="without `ready_at`, which only the graph has")
    params: dict[str, JsonValue] = Field(
        default_factory=dict, description="its parameters: the static input of a node, arguments"
    )
    inputs: dict[str, JsonValue] = Field(default_factory=dict, description="the outputs it reads, by name")
    given: JsonValue = Field(default=None, description="a value of its own, such as a map item")
    output: JsonValue = None
    info: dict[str, JsonValue] = Field(default_factory=dict, description="the info recorded at its end")
    attempts: list[AttemptView] = Field(default_factory=list, description="oldest first")
    transcript: list[MessageView] = Field(default_factory=list, description="messages of a step that calls a model")
    usage: Usage | None = None
    model: str | None = None
    logs: list[LogLine] = Field(default_factory=list, description="its last log lines")
    cut: bool = Field(default=False, description="whether a value was truncated")


class StepComparison(Value):
    """A step of two runs; null in a run that has no such step."""

    id: str = Field(description="the same in both runs")
    left: StepView | None
    right: StepView | None
    same_output: bool | None = Field(description="null if one has no output, or the outputs were not read")


class RunComparison(Value):
    """Two runs side by side."""

    left: RunDetail
    right: RunDetail
    steps: list[StepComparison] = Field(
        description="the steps in the order of their start in the left run; items of maps are counted only"
    )
