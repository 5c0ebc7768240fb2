"""Activity of a turn: the meaning of its events for those who follow it, from each event and the record of its step. Pure.

Surfaces only render it. `activity_of` looks at one event, so it can begin anywhere; `TurnAgents` counts the steps of agents from the start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cantata.client.records import StepRecord
from cantata.flows.chains.step_ids import ancestors
from cantata.flows.events import (
    AttemptFailed,
    LeaseLost,
    ModelFallback,
    RateLimited,
    ReplyDelta,
    RunEvent,
    StepExpanded,
)
from cantata.flows.graph import START
from cantata.flows.step_kinds import kind_named
from cantata.values import JsonValue


@dataclass(frozen=True, slots=True)
class ReplyPiece:
    """A piece of a model's reply, as it streams."""

    text: str


@dataclass(frozen=True, slots=True)
class AttemptVoided:
    """An attempt is void, with all that it streamed."""

    cause: str
    """The type of the event."""
    reason: str
    error: str | None = None
    """The error that ended the attempt, if one did."""
    is_heard: bool = True
    """False if its step streams nothing that readers see: a router, a function."""
    is_final: bool = False
    """True if no other attempt follows."""


@dataclass(frozen=True, slots=True)
class AgentBegan:
    """An agent, or the synthesizer of a team, begins an instruction."""

    name: str
    is_synthesizer: bool


@dataclass(frozen=True, slots=True)
class AgentAnswered:
    """The last step of an agent is done."""

    output: JsonValue


@dataclass(frozen=True, slots=True)
class AgentFailed:
    """An agent failed for good; the turn goes on without it if `is_skipped`."""

    error: str
    is_skipped: bool


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """An attempt of a tool call began."""

    tool: str
    input: JsonValue


@dataclass(frozen=True, slots=True)
class ToolDone:
    """A tool call is done."""

    tool: str
    output: JsonValue


@dataclass(frozen=True, slots=True)
class ToolFailed:
    """An attempt of a tool call failed; the fields are those of AttemptVoided."""

    tool: str
    cause: str
    reason: str
    error: str | None


@dataclass(frozen=True, slots=True)
class AgentChosen:
    """A team decided who answers next: an agent, or a plan of several; or it did not, because of a fault."""

    agent: JsonValue
    by: str
    """rules, router, turn or default."""
    text: JsonValue
    """The agent's input."""
    plan: JsonValue
    next_action: JsonValue
    refined: JsonValue
    """True if the router reworded the input."""
    fault: JsonValue
    """The fault in the router's reply."""


@dataclass(frozen=True, slots=True)
class Handover:
    """An agent passes a text on instead of answering."""

    agent: JsonValue
    text: JsonValue


@dataclass(frozen=True, slots=True)
class TurnWarning:
    """Something went wrong without failing the turn."""

    message: str


@dataclass(frozen=True, slots=True)
class RateLimit:
    """An attempt waits, since a limit is reached."""

    reason: str


Activity = (
    ReplyPiece
    | AttemptVoided
    | AgentBegan
    | ToolStarted
    | ToolDone
    | ToolFailed
    | AgentChosen
    | Handover
    | TurnWarning
    | RateLimit
)


def steps_of(events: Iterable[RunEvent]) -> list[str]:
    """Return the steps whose records `activity_of` needs for these events."""
    needed = [event for event in events if event.step_state in ("running", "done") or event.voids_attempt]
    return list(dict.fromkeys(event.step for event in needed if event.step and event.step != START))


def activity_of(event: RunEvent, step: StepRecord | None) -> Activity | None:
    """Return the meaning of an event, if it has any; `step` is the record of its step, where `steps_of` names it."""
    match event:
        case ReplyDelta():
            return ReplyPiece(event.text)
        case ModelFallback():
            return AttemptVoided(event.type, event.voids_attempt)
        case RunEvent(is_warning=True):
            return TurnWarning(event.explanation)
        case RateLimited():
            return RateLimit(event.reason)
    if step is None:
        return None
    match step.spec.role:
        case "tool":
            return _tool_call(event, step)
        case "choice":
            return _choice(step) if event.step_state == "done" else None
        case "reply" if event.step_state == "done" and step.info.get("prefix") == "reroute":
            return Handover(step.spec.params.get("agent"), step.output)
    is_heard = kind_named(step.spec.kind).is_heard
    if event.voids_attempt:
        return AttemptVoided(event.type, event.voids_attempt, _error(event), is_heard, event.ends_step)
    if event.step_state == "running" and is_heard and not step.spec.params.get("round"):
        return AgentBegan(step.spec.work_name, step.spec.role == "synthesis")
    return None


def _tool_call(event: RunEvent, step: StepRecord) -> Activity | None:
    tool = step.spec.work_name
    match event:
        case RunEvent(step_state="running"):
            return ToolStarted(tool, step.spec.params.get("input"))
        case RunEvent(step_state="done"):
            return ToolDone(tool, step.output)
        case AttemptFailed() | LeaseLost():
            return ToolFailed(tool, event.type, event.explanation, _error(event))
    return None


def _choice(step: StepRecord) -> AgentChosen | None:
    agent, *found = (step.info.get(name) for name in ("chosen_agent", "plan", "next_action", "refined", "fault"))
    by = "default" if step.info.get("source") == "default" else kind_named(step.spec.kind).chosen_by
    return AgentChosen(agent, by, step.output, *found) if agent or any(found) else None


def _error(event: RunEvent) -> str | None:
    return event.explanation if isinstance(event, AttemptFailed) else None


@dataclass(slots=True)
class TurnAgent:
    """An agent whose step began. The steps that it expands to are its own."""

    step_id: str
    name: str
    open_steps: int = 1

    def apply(self, event: RunEvent, step: StepRecord) -> AgentAnswered | AgentFailed | None:
        """Count the open steps; return the end of the agent with the last one."""
        if isinstance(event, StepExpanded):
            self.open_steps += event.steps - 1
        elif event.ends_step:
            self.open_steps -= 1
            if self.open_steps == 0 and event.step_state == "done":
                return AgentAnswered(step.output)
            if self.open_steps == 0 and event.step_state == "failed":
                return AgentFailed(event.explanation, step.spec.on_error == "skip")
        return None


class TurnAgents:
    """The agents of a turn that began."""

    def __init__(self) -> None:
        self._known: dict[str, TurnAgent] = {}

    def agent_of(self, event: RunEvent, step: StepRecord) -> TurnAgent | None:
        """Return the agent that a step is, or that expanded to it. An agent begins with the first event of its step."""
        if event.step_state == "running" and kind_named(step.spec.kind).is_heard and not self._known_of(step.step_id):
            self._known[step.step_id] = TurnAgent(step.step_id, step.spec.work_name)
        return self._known_of(step.step_id)

    def _known_of(self, step_id: str) -> TurnAgent | None:
        return next((self._known[each] for each in (step_id, *ancestors(step_id)) if each in self._known), None)
