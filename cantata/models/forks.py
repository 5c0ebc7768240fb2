"""A run that is over, as far as a fork must know it, and what a fork of it is made of."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from cantata.models.values import Value

OutEdge = tuple[str, str, bool]
"""An edge behind its source: target, label, whether it wakes."""


class EndedStep(Value):
    """How a step ended, or was left when its run did."""

    word: str
    pending: int = Field(description="in-edges that were not resolved")
    taken: int = Field(description="in-edges that were taken")
    takes: tuple[str, ...] = Field(default=(), description="the labels that it took, if it is over")


class ForkSpec(Value):
    """What of a step's spec decides how it starts, and what it is."""

    kind: str = ""
    work: str = ""
    on_error: Literal["abort", "skip", "jump"] = "abort"
    scope: str | None = None
    window: str | None = None
    quorum: int | None = None
    deadline_s: float | None = None


class MapItems(Value):
    """The items of a map: steps `prefix/0`, `prefix/1`, ..."""

    like: str
    prefix: str
    count: int
    window: int

    @property
    def ids(self) -> list[str]:
        """The steps."""
        return [f"{self.prefix}/{index}" for index in range(self.count)]


class Expansion(Value):
    """What a step grew: its steps, and what was there before."""

    ids: tuple[str, ...] = ()
    items: MapItems | None = None
    exit: str | None = None
    own: tuple[OutEdge, ...] = Field(default=(), description="the edges of the exit that are not the parent's")
    counted: tuple[tuple[str, str, str, bool], ...] = Field(default=(), description="source, target, label, wakes: the source was over")
    names: dict[str, str | Literal[False]] = Field(default_factory=dict, description="name → what it meant before; false: itself")
    terminals: str | None = Field(default=None, description="those before, as JSON")

    @property
    def steps(self) -> list[str]:
        """All steps, items among them."""
        like = self.items.like if self.items else None
        return [*(step_id for step_id in self.ids if step_id != like), *(self.items.ids if self.items else ())]


class EndedRun(Value):
    """A run that is over."""

    run_id: str
    status: str
    kind: str
    request: JsonValue
    definitions: str = Field(description="by content")
    labels: dict[str, str]
    steps: dict[str, EndedStep]
    specs: dict[str, ForkSpec]
    shared: dict[str, str] = Field(description="item → the step whose spec and edges it shares")
    edges: dict[str, tuple[OutEdge, ...]]
    names: dict[str, str]
    expansions: dict[str, Expansion] = Field(description="by parent, the first first; without the plan")
    terminals: str

    def edges_of(self, step_id: str) -> tuple[OutEdge, ...]:
        """A step's out-edges."""
        own = self.edges.get(step_id)
        return self.edges.get(self.shared.get(step_id, ""), ()) if own is None else own

    def answering(self, name: str) -> str:
        """The step that answered to a name in the end."""
        while name in self.names:
            name = self.names[name]
        return name


class RestartedStep(Value):
    """A step that a fork does anew, as it starts."""

    step_id: str
    pending: int
    taken: int
    quorum: int = 0
    is_quorum_met: bool = Field(default=False, description="its quorum is reached by what is taken over")
    joins: list[JsonValue] | None = Field(default=None, description="whom it waits for, if it has a quorum or a deadline")
    deadline_s: float | None = None
    waits: bool = Field(default=False, description="for a signal")


class Window(Value):
    """A map some of whose items are done anew."""

    size: int
    busy: int = Field(description="of its items that are under way, by what they grew")
    items: tuple[str, ...]


class Fork(Value):
    """A run made of another: what is taken back of its graph, and which steps are done anew. All else is taken over as it ended."""

    source: str
    restarted: tuple[RestartedStep, ...]
    removed: tuple[str, ...] = Field(description="steps that were grown by what is done anew")
    forgotten: tuple[str, ...] = Field(description="specs that only removed items shared")
    expand_again: tuple[str, ...] = Field(description="steps that grew, and may again")
    edges: dict[str, list[OutEdge]] = Field(description="out-edges that are others than in the source")
    names: dict[str, str | Literal[False]] = Field(description="names that mean something else than in the source")
    windows: dict[str, Window]
    terminals: str
    left: int
    count: int
