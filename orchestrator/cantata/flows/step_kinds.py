"""Kinds of steps and their roles. Handlers are registered by these names; nothing else distinguishes kinds by their names.

Frontends add theirs by entry points of the group `cantata.step_kinds`, each a sequence of `StepKind`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Literal

StepRole = Literal[
    "start",
    "tool",
    "function",
    "turn",
    "synthesis",
    "router",
    "choice",
    "reply",
    "agent",
    "expansion",
    "decision",
    "collection",
    "wait",
]
"""Role of a step:

start        plans the run
tool         a call of a tool
function     a call of a function or command that no model chose
turn         one model call of an agent
synthesis    the model call that merges a team's answers
router       the call that asks who answers next
choice       chooses the agent of a team that answers next
reply        decides whether an agent's answer is final, or is passed on
agent, expansion   expands to the steps of an agent; of a team, a chain or a map
collection   concatenates the answers of a team
wait         waits for a signal
decision     any other decision
"""


@dataclass(frozen=True, slots=True)
class StepKind:
    """A kind of steps."""

    name: str
    role: StepRole = "decision"
    is_heard: bool = False
    """True if the model's reply is for the reader of a chat."""
    chosen_by: str = ""
    """Of a choice: rules, router or turn."""
    is_external: bool = False
    """True if the tool is on another server."""
    is_call: bool = False
    """True if it calls a tool or a command, with the input of its node or the arguments that a model gives."""
    ends_with_round: bool = False
    """Of a turn: whether the last output is a round too, not an answer."""


_ROWS = (
    StepKind("run.start", "start"),
    StepKind("tool.call", "tool", is_call=True),
    StepKind("mcp.call", "tool", is_external=True, is_call=True),
    StepKind("task.call", "tool", is_external=True, is_call=True),
    StepKind("proc.run", "function", is_call=True),
    StepKind("agent.turn", "turn", is_heard=True),
    StepKind("agent.run", "agent", is_heard=True),
    StepKind("agent.function", "function"),
    StepKind("agent.memory"),
    StepKind("agent.break"),
    StepKind("agent.end"),
    StepKind("team.run", "expansion"),
    StepKind("team.rules", "choice", chosen_by="rules"),
    StepKind("team.ask", "router"),
    StepKind("team.call", "function"),
    StepKind("team.route", "choice", chosen_by="router"),
    StepKind("team.next", "choice", chosen_by="turn"),
    StepKind("team.reply", "reply"),
    StepKind("team.synthesize", "synthesis", is_heard=True),
    StepKind("team.collect", "collection"),
    StepKind("history.block"),
    StepKind("chain.branch"),
    StepKind("chain.map", "expansion"),
    StepKind("chain.gather"),
    StepKind("chain.run", "expansion"),
    StepKind("chain.end"),
    StepKind("workflow.advance", "expansion"),
    StepKind("workflow.call", "function", is_call=True),
    StepKind("workflow.start", "function", is_call=True),
    StepKind("wait", "wait"),
    StepKind("batch.create", "function"),
    StepKind("batch.collect", "function"),
    StepKind("batch.cancel", "function"),
    StepKind("webhook.deliver", "function"),
)
MODEL_ROLES: frozenset[StepRole] = frozenset({"turn", "synthesis", "router"})
"""Roles of steps that call a model."""
STEP_KINDS = {row.name: row for row in _ROWS}


def kind_named(name: str) -> StepKind:
    """Return the kind with a name; a decision for names that this version does not know."""
    return STEP_KINDS.get(name) or registered_kinds().get(name) or StepKind(name)


@cache
def registered_kinds() -> dict[str, StepKind]:
    """Return the kinds of the installed frontends, by name. Loaded when a step is of none of ours: most processes see no such step."""
    return {kind.name: kind for each in entry_points(group="cantata.step_kinds") for kind in each.load()}
