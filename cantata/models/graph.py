"""A run's graph: steps, edges, the fragments it grows by, and how a step ended."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, SkipValidation

from cantata.models.step_kinds import StepRole, kind_named
from cantata.models.values import ErrorInfo, Usage, Value

StepState = Literal["waiting", "ready", "sent", "running", "waiting_signal", "done", "failed", "skipped"]
ShownState = StepState | Literal["timed_out"]
STEP_OVER: frozenset[StepState] = frozenset({"done", "failed", "skipped"})

START = "@start"
"""The step every run begins with; doing it grows the rest of the graph."""

RAW = "="
"""Put before a step id in `reads`: that very step's output, not what has taken its place."""


class Spec(Value):
    """What a step is to do; steps that do the same share it."""

    kind: str = Field(description="which handler does it; also the name of its Celery task")
    queue: str = Field(default="coordinator", description="whose workers may do it")
    work: str = Field(default="", description="what its cost is measured by, and what people see: a tool's or an agent's name")
    reads: dict[str, str] = Field(
        default_factory=dict, description="name → step id whose output the handler gets under that name; `=id` reads past growth"
    )
    params: dict[str, JsonValue] = Field(default_factory=dict, description="what else the handler needs; small")
    on_error: Literal["abort", "skip", "jump"] = Field(
        default="abort", description="which edges a failure takes: none (the scope fails), `done` with null, `failed`"
    )
    retries: int = Field(default=0, description="tries after the first, for failures that may pass")
    timeout_s: float | None = Field(default=None, description="seconds one attempt may take")
    decides: bool = Field(default=False, description="only a decision: done in place by any worker, without a message")
    cheap: bool | None = Field(default=None, description="known to be cheap or costly; measured if None")
    at_most_once: bool = Field(default=False, description="if its worker dies, a person says what came of it; it is not done again")
    expands: bool = Field(default=False, description="may grow a fragment, so nothing behind it is fixed")
    quorum: int | None = Field(default=None, description="ready as soon as this many of its in-edges come from steps that are done")
    deadline_s: float | None = Field(default=None, description="ready this many seconds after it was added, whoever is late")
    scope: str | None = Field(default=None, description="the grower whose exit fails if this step aborts; None: the run")
    window: str | None = Field(default=None, description="the map whose window it counts in")
    has_given: bool = Field(default=False, description="set by the ledger: the step has a value of its own")

    @property
    def role(self) -> StepRole:
        """Return the role of the step's kind."""
        return kind_named(self.kind).role

    @property
    def work_name(self) -> str:
        """Return the name in `work`: the agent's, the tool's, the team's."""
        return self.work.partition(":")[2]


class Step(Spec):
    """One piece of work of a run. It finishes once."""

    id: str = Field(description="unique in the run")
    given: JsonValue = Field(default=None, description="a value of its own, such as a map item or a default")


class Edge(Value):
    """`source` before `target`; taken if the source's outcome takes its label."""

    source: str
    target: str
    label: str = "done"
    wakes: bool = Field(
        default=True,
        description="whether taking it is a reason to run the target, or only orders; without one that wakes, the grower does",
    )


class ItemSteps(Value):
    """Steps that differ in their given value only: `like` is the id of their common spec, item i is `prefix/i`."""

    like: str
    prefix: str
    given: tuple[JsonValue, ...]
    window: int = Field(description="how many may be on the way at once")


class Graph(Value):
    """Steps and edges to add to a run: a whole plan, or the fragment a step grows."""

    steps: tuple[Step, ...] = ()
    edges: tuple[Edge, ...] = ()
    items: ItemSteps | None = None
    exit: str | None = Field(default=None, description="takes the grower's place: its out-edges, scope, window and name")
    names: dict[str, str] = Field(default_factory=dict, description="name → step id that now answers to it")
    scoped: bool = Field(default=True, description="an aborting step fails the exit; else it fails what the grower would fail")
    terminals: tuple[str, ...] = Field(default=(), description="the plan's last steps: their outputs are the run's")


class Outcome(Value):
    """How one attempt of a step ended."""

    status: Literal["done", "failed", "retry", "wait"] = Field(
        default="done", description="retry: another try, counted as a failure; wait: another try, since this one could not begin"
    )
    output: SkipValidation[JsonValue] = Field(default=None, description="checked once, where it becomes the text that is recorded")
    error: ErrorInfo | None = None
    takes: tuple[str, ...] = Field(default=("done",), description="labels of the edges it takes, besides what `on_error` says")
    usage: Usage | None = None
    retry_in_s: float = 0.0
    fragment: Graph | None = None
    warnings: tuple[str, ...] = ()
    detail: dict[str, JsonValue] = Field(default_factory=dict, description="recorded with the outcome: model, finish reason, ...")
