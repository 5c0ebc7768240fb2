"""What the run pages are given, as JSON. Times are seconds since 1970, of Redis's clock."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from cantata.models.events import types_where
from cantata.models.graph import ShownState
from cantata.models.values import ErrorInfo, Usage, Value
from cantata.observability.logs.lines import LogLine
from cantata.state.runs.summaries import RunSummary

CLOSED = "closed"
ATTEMPT_ENDS = [*sorted(types_where(lambda event: event.ends_attempt)), CLOSED]
"""Types of the events that end an attempt, and how one ends that was under way when its run was closed."""


class RunDetail(RunSummary):
    """A run, with what it was asked and what it answered."""

    request: JsonValue = Field(description="what was asked, cut if it is large")
    session: str | None = Field(default=None, description="the conversation of a turn")
    forked_from: str | None = Field(default=None, description="the run it was made of")
    answer: JsonValue = Field(default=None, description="its output so far, cut if it is large")
    code_mixed: str = Field(default="", description="modules of user code of which its steps ran with more than one version")
    cut: bool = Field(default=False, description="whether request or answer was cut")


class StepView(Value):
    """A step as the graph shows it."""

    id: str = Field(description="unique in the run")
    name: str = Field(description="what people see: a node, an agent, a tool, or what is decided")
    kind: str = Field(description="which handler does it")
    work: str = Field(description="the agent or tool, such as `agents:writer`")
    queue: str = Field(description="whose workers may do it")
    state: ShownState = Field(description="how it stands; `timed_out`: it waited for a value until its own time was over")
    attempt: int = Field(description="how often it was begun")
    failures: int = Field(description="attempts that failed")
    crashes: int = Field(description="attempts whose worker died")
    worker: str | None = Field(default=None, description="who did it last")
    ready_at: float | None = Field(default=None, description="when it was first ready")
    first_at: float | None = Field(default=None, description="when its first attempt began")
    started_at: float | None = Field(default=None, description="when its last attempt began")
    ended_at: float | None = Field(default=None, description="when it was over")
    error: ErrorInfo | None = Field(default=None, description="why it failed, or why its last attempt did")
    usage: Usage | None = Field(default=None, description="what it consumed, if anything")
    model: str | None = Field(default=None, description="the model that answered")
    map: str | None = Field(default=None, description="the map whose item it is, or belongs to")
    scope: str | None = Field(default=None, description="the step that grew it")


class EdgeView(Value):
    """An edge between two steps; of a map's items, the map stands for them while it is folded."""

    source: str
    target: str
    label: str = Field(description="done, true, false, failed, left")
    wakes: bool = Field(description="whether taking it is a reason to run the target, or only orders")
    taken: bool | None = Field(description="null while its source is not over")


class MapView(Value):
    """A map, and how its items stand."""

    id: str = Field(description="the step that grew the items")
    name: str
    prefix: str = Field(description="item i is `prefix/i`")
    count: int
    waiting: int = Field(description="not begun")
    running: int
    done: int
    failed: int
    skipped: int


class GraphView(Value):
    """A run's graph as it stands."""

    run: RunDetail
    offset: int = Field(description="the last event it accounts for")
    more: bool = Field(description="whether steps were left out")
    steps: list[StepView]
    edges: list[EdgeView]
    maps: list[MapView]


class AttemptView(Value):
    """One attempt of a step."""

    attempt: int
    started_at: float
    ended_at: float | None = None
    worker: str | None = None
    end: str | None = Field(default=None, description="how it ended; null while it runs", json_schema_extra={"enum": [*ATTEMPT_ENDS, None]})
    error: ErrorInfo | None = None


class CallView(Value):
    """A call of a tool that a model asked for."""

    id: str
    name: str
    arguments: str


class MessageView(Value):
    """One message of a conversation with a model."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: list[CallView] = Field(default_factory=list)
    call_id: str | None = Field(default=None, description="of a tool's message: the call it answers")
    name: str | None = Field(default=None, description="of a tool's message: the tool")
    cut: bool = Field(default=False, description="whether the text goes on")
    omitted: int = Field(default=0, description="messages before it that were not recorded")


class StepDetail(Value):
    """All that is shown of one step."""

    step: StepView = Field(description="without `ready_at`, which only the graph tells")
    params: dict[str, JsonValue] = Field(default_factory=dict, description="what it was told beside: a node's static input, arguments")
    inputs: dict[str, JsonValue] = Field(default_factory=dict, description="what it reads, by name")
    given: JsonValue = Field(default=None, description="a value of its own, such as a map item")
    output: JsonValue = None
    info: dict[str, JsonValue] = Field(default_factory=dict, description="what was recorded with its end")
    attempts: list[AttemptView] = Field(default_factory=list, description="oldest first")
    transcript: list[MessageView] = Field(default_factory=list, description="of a step that asks a model: what was said")
    usage: Usage | None = None
    model: str | None = None
    logs: list[LogLine] = Field(default_factory=list, description="the last lines that were logged in it")
    cut: bool = Field(default=False, description="whether a value was cut")
