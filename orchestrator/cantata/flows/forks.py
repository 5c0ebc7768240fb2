"""Values of forks: an ended run as a fork reads it, and the new run that a fork makes of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field, JsonValue

from cantata.flows.graph import answering
from cantata.values import Value


class OutEdge(NamedTuple):
    """An edge without its source."""

    target: str
    label: str
    wakes: bool
    alone: bool = False


class CountedEdge(NamedTuple):
    """An edge whose source was over already when it was added."""

    source: str
    target: str
    label: str
    wakes: bool
    alone: bool = False


class EndedStep(Value):
    """The state of a step at the end of its run."""

    state: str
    pending: int = Field(description="in-edges that were not resolved")
    taken: int = Field(description="in-edges that were taken")
    takes: tuple[str, ...] = Field((), description="the labels of the out-edges that it took, if it is over")


class ForkSpec(Value):
    """The part of a step's spec that a fork needs."""

    kind: str = ""
    work: str = ""
    on_error: Literal["abort", "skip", "jump"] = "abort"
    scope: str | None = None
    window: str | None = None
    quorum: int | None = None
    deadline_s: float | None = None


class ExpandedItems(Value):
    """The items of a map: steps `prefix/0`, `prefix/1`, ..."""

    like: str
    prefix: str
    count: int
    window: int

    @property
    def ids(self) -> list[str]:
        """Return the ids of the item steps."""
        return [f"{self.prefix}/{index}" for index in range(self.count)]


class Expansion(Value):
    """The steps that a parent step added, and the edges, names and terminals that this replaced."""

    ids: tuple[str, ...] = ()
    items: ExpandedItems | None = None
    exit: str | None = None
    own: tuple[OutEdge, ...] = Field((), description="the edges of the exit that it does not have from its parent")
    counted: tuple[CountedEdge, ...] = Field((), description="edges whose source was over already")
    names: dict[str, str | Literal[False]] = Field(
        default_factory=dict, description="name → the step that it meant before; false: the step of that id"
    )
    terminals: str | None = Field(None, description="the terminals before, as JSON")

    @property
    def steps(self) -> list[str]:
        """Return the ids of all added steps, map items included."""
        like = self.items.like if self.items else None
        return [*(step_id for step_id in self.ids if step_id != like), *(self.items.ids if self.items else ())]


class EndedRun(Value):
    """A run that is over."""

    run_id: str
    status: str
    kind: str
    request: JsonValue
    definitions: str = Field(description="their content hash")
    labels: dict[str, str]
    steps: dict[str, EndedStep]
    specs: dict[str, ForkSpec]
    shared: dict[str, str] = Field(description="map item → the step whose spec and edges it shares")
    edges: dict[str, tuple[OutEdge, ...]]
    names: dict[str, str]
    expansions: dict[str, Expansion] = Field(
        description="by parent step, in the order of the expansions; without the plan"
    )
    terminals: str

    def edges_of(self, step_id: str) -> tuple[OutEdge, ...]:
        """Return a step's out-edges."""
        own = self.edges.get(step_id)
        return self.edges.get(self.shared.get(step_id, ""), ()) if own is None else own

    def resolve(self, name: str) -> str:
        """Return the step that a name meant when the run ended."""
        return answering(self.names, name)


class RestartedStep(Value):
    """A step that a fork runs again, in its first state."""

    step_id: str
    pending: int
    taken: int
    quorum: int = 0
    is_quorum_met: bool = Field(False, description="whether the steps that are taken over reach its quorum")
    joins: list[JsonValue] | None = Field(
        None, description="the steps that it waits for, if it has a quorum or a deadline"
    )
    deadline_s: float | None = None
    waits: bool = Field(False, description="whether it waits for a signal")


class Window(Value):
    """A map some of whose items run again."""

    size: int
    busy: int = Field(description="items under way: those with steps in their expansions that run again")
    items: tuple[str, ...]


class Fork(Value):
    """A run made of an ended one: the steps that run again, and the expansions that are undone. All else is taken over."""

    source: str
    restarted: tuple[RestartedStep, ...]
    removed: tuple[str, ...] = Field(description="steps that restarted steps had added")
    forgotten: tuple[str, ...] = Field(description="specs that only removed items shared")
    expand_again: tuple[str, ...] = Field(description="steps that expanded, and may expand again")
    edges: dict[str, list[OutEdge]] = Field(description="out-edges that differ from the source's")
    names: dict[str, str | Literal[False]] = Field(
        description="names that mean other steps than in the source; false: removed"
    )
    windows: dict[str, Window]
    terminals: str
    left: int
    count: int
