"""The graph of a run: steps, edges, the fragments by which it expands, and the outcomes of attempts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, JsonValue, SkipValidation

from cantata.flows.step_kinds import StepRole, kind_named
from cantata.values import ErrorInfo, Usage, Value

StepState = Literal["waiting", "ready", "sent", "running", "dispatched", "waiting_signal", "done", "failed", "skipped"]
ShownState = StepState | Literal["timed_out"]
STEP_OVER: frozenset[StepState] = frozenset({"done", "failed", "skipped"})

START = "@start"
"""The first step of every run; its expansion is the plan of the run."""

RAW = "="
"""Prefix of a step id in `reads`: the output of that very step, not of the step that took its place."""


_COMMAND_NUMBER = re.compile(r"(?:^|(?<!\.wait)/)\d+\.$")


def is_named(step_id: str, name: str) -> bool:
    """Return whether a name means a step: its id, the end of its id behind a `/`, or that without a command's number (`pay`, `3.pay`)."""
    front = step_id.removesuffix(name)
    return step_id.endswith(name) and (front == "" or front.endswith("/") or _COMMAND_NUMBER.search(front) is not None)


class Spec(Value):
    """The specification of a step: its handler, queue, inputs and policies. Steps may share it."""

    kind: str = Field(description="the kind of its handler; also the name of its Celery task")
    queue: str = Field("coordinator", description="the queue whose workers may execute it")
    work: str = Field(
        "", description="the key of its cost statistics, which people see too: a tool's or an agent's name"
    )
    reads: dict[str, str] = Field(
        default_factory=dict,
        description="name → id of the step whose output the handler gets; `=id` for the output of that very step",
    )
    params: dict[str, JsonValue] = Field(default_factory=dict, description="further parameters of the handler; small")
    on_error: Literal["abort", "skip", "jump"] = Field(
        "abort", description="the edges that a failure takes: none (the scope fails), `done` with null, `failed`"
    )
    retries: int = Field(0, description="retries after the first attempt, for failures that may pass")
    timeout_s: float | None = Field(None, description="time limit of one attempt, in seconds")
    heartbeat_s: float | None = Field(
        None, description="of a call of a user's task: longest time between its heartbeats"
    )
    decides: bool = Field(False, description="a decision: any worker executes it in place, without a message")
    cheap: bool | None = Field(None, description="known to be cheap or costly; measured if None")
    at_most_once: bool = Field(
        False, description="it is not repeated: if its worker dies, a person reports the outcome"
    )
    pure: bool = Field(False, description="it has no effects: it may be recorded together with others of its message")
    expands: bool = Field(
        False, description="it may add steps, or ends after its message; then no step behind it is certain to follow"
    )
    quorum: int | None = Field(
        None, description="ready as soon as this many of its in-edges come from steps that are done"
    )
    deadline_s: float | None = Field(
        None, description="ready this many seconds after it was added, whichever steps are late"
    )
    scope: str | None = Field(
        None, description="the parent step whose exit fails if this step aborts; None: the run fails"
    )
    window: str | None = Field(None, description="the map in whose window it counts")
    has_given: bool = Field(False, description="set by the ledger: the step has a value of its own")
    waiting: str | None = Field(
        None, description="set by the ledger: the detail of a wait's event, as the JSON text that scripts pass on"
    )

    @property
    def role(self) -> StepRole:
        """Return the role of the step's kind."""
        return kind_named(self.kind).role

    @property
    def is_asked_by_model(self) -> bool:
        """Return whether a model asked for this call, so that its arguments are checked, and its failure is told to the model."""
        return self.params.get("asked_by") == "model"

    @property
    def work_name(self) -> str:
        """Return the name in `work`: the agent's, the tool's, the team's."""
        return self.work.partition(":")[2]


class Step(Spec):
    """One unit of work of a run. It is recorded once."""

    id: str = Field(description="unique in the run")
    given: JsonValue = Field(None, description="a value of its own, such as a map item or a default")


class Edge(Value):
    """`source` before `target`; taken if the source's outcome takes its label."""

    source: str
    target: str
    label: str = "done"
    wakes: bool = Field(
        True,
        description="whether it starts its target, or only orders; a target without an edge that wakes is started by the parent step",
    )
    alone: bool = Field(False, description="whether its target then no longer waits for its other in-edges")


class ItemSteps(Value):
    """Steps that only differ in their given values: `like` is the id of their common spec, item i is `prefix/i`."""

    like: str
    prefix: str
    given: tuple[JsonValue, ...]
    window: int = Field(description="how many may be under way at once")


class Graph(Value):
    """Steps and edges to add to a run: a whole plan, or the fragment to which a step expands."""

    steps: tuple[Step, ...] = ()
    edges: tuple[Edge, ...] = ()
    items: ItemSteps | None = None
    exit: str | None = Field(None, description="takes the parent's place: its out-edges, scope, window and name")
    names: dict[str, str] = Field(default_factory=dict, description="name → the step that it means from now on")
    scoped: bool = Field(
        True, description="an aborting step fails the exit; if false, it fails whatever the parent would fail"
    )
    terminals: tuple[str, ...] = Field((), description="the plan's last steps: their outputs are the run's")
    stops: tuple[str, ...] = Field(
        (), description="open steps that are stopped, with all that they grew; new ones are not begun"
    )


class Outcome(Value):
    """The outcome of one attempt of a step."""

    status: Literal["done", "failed", "retry", "wait", "dispatched"] = Field(
        "done",
        description="retry: repeat it, counted as a failure; wait: repeat it, since the attempt could not begin; dispatched: a task of "
        "another Celery application has its outcome later",
    )
    output: SkipValidation[JsonValue] = Field(None, description="validated once, when it is serialised")
    error: ErrorInfo | None = None
    takes: tuple[str, ...] = Field(("done",), description="labels of the edges that it takes, beside `on_error`")
    usage: Usage | None = None
    retry_in_s: float = 0.0
    fragment: Graph | None = None
    warnings: tuple[str, ...] = ()
    detail: dict[str, JsonValue] = Field(
        default_factory=dict, description="recorded with the outcome: model, finish reason, ..."
    )


def adopt(fragment: Graph, parent: str, spec: Spec) -> Graph:
    """Return the fragment with the scope, window and error handling of its steps set.

    The exit replaces the parent: it fails as the parent would, in the parent's scope and window. The other steps form a scope of the
    parent's own, so that one of them that aborts fails the exit. Without an exit, or unscoped, they are in the scope that the parent is in.
    """
    scope = parent if fragment.exit is not None and fragment.scoped else spec.scope
    inherited: dict[str, JsonValue] = {"failure": spec.params["failure"]} if "failure" in spec.params else {}

    def adopted(step: Step) -> Step:
        params = {**inherited, **step.params} if inherited else step.params
        if step.id == fragment.exit:
            own = {"on_error": spec.on_error, "scope": spec.scope, "window": spec.window, "params": params}
        else:
            window = parent if fragment.items is not None and step.id == fragment.items.like else step.window
            own = {"scope": scope, "window": window, "params": params}
        return step if all(getattr(step, name) == value for name, value in own.items()) else step.model_copy(update=own)

    steps = tuple(map(adopted, fragment.steps))
    return fragment if steps == fragment.steps else fragment.model_copy(update={"steps": steps})


def answering(names: Mapping[str, str], name: str) -> str:
    """Return the step that answers to a name: each of `names` means another name, or a step."""
    while name in names:
        name = names[name]
    return name
