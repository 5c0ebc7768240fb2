"""TurnView: the events of a turn as a chat shows them, agent by agent. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cantata.client.records import StepRecord, answer_text
from cantata.client.turn_activity import (
    Activity,
    AgentAnswered,
    AgentChosen,
    AgentFailed,
    AttemptVoided,
    Handover,
    RateLimit,
    ReplyPiece,
    ToolDone,
    ToolFailed,
    ToolStarted,
    TurnAgent,
    TurnAgents,
    TurnWarning,
    activity_of,
)
from cantata.flows.events import RunEvent, StepExpanded
from cantata.text import text_format
from cantata.values import JsonValue, as_text

FINAL, REROUTE = "[FINAL]", "[REROUTE]"
MAX_VALUE = 100  # characters of a call's arguments or result


class ChatItem(NamedTuple):
    """An item to show: a speaker's name, a piece of the reply, that the reply is void, a note or a warning."""

    type: Literal["speaker", "piece", "void", "note", "warning"]
    text: str


@dataclass
class AgentReply:
    """The reply of an agent in a turn, round by round; held back while the reply of another agent is shown."""

    agent: TurnAgent
    reply: str = ""
    """The reply of this round, as it comes."""
    shown: int = 0
    """The number of characters of the visible reply among the items."""
    items: list[ChatItem] = field(default_factory=list)
    """Items that were not taken yet."""
    earlier: int = 0
    """The number of items of earlier rounds."""

    def apply(self, event: RunEvent, step: StepRecord) -> None:
        """Add an event of one of the agent's steps."""
        name, activity = self.agent.name, activity_of(event, step)
        match activity:
            case ReplyPiece(text):
                self._add(text_format.clean(text))
            case AttemptVoided(is_final=False):
                reason = "; ".join(filter(None, (activity.error, activity.reason)))
                if activity.is_heard:
                    self._void(reason)
                else:
                    self._note(f"{name}: {reason}")
            case RateLimit(reason):
                self._note(f"{name} waits: {reason}")
            case ToolStarted(tool, arguments):
                shown = (
                    ", ".join(f"{key}={_short(value)}" for key, value in arguments.items())
                    if isinstance(arguments, dict)
                    else ""
                )
                self._note(f"⚙ {tool}({text_format.line(shown, MAX_VALUE)})")
            case ToolDone(tool, output):
                self._note(f"⚙ {tool} → {_short(output)}")
            case ToolFailed(tool, cause, reason):
                self._note(f"⚙ {tool} {cause}: {reason}")
            case TurnWarning(message):
                self.items.append(ChatItem("warning", message))
        if isinstance(event, StepExpanded):
            self._end_round()
        match self.agent.apply(event, step):
            case AgentAnswered(output):
                self._conclude(text_format.clean(answer_text(output)))
            case AgentFailed(error, is_skipped=True):
                self._note(f"{name} failed: {error}")

    def contains(self, answer: str) -> bool:
        """Return whether an answer was shown."""
        seen = visible(self.reply).strip() if self.shown < len(self.reply) else self.reply.strip()
        return bool(seen) and answer.strip() in (seen, self.reply.strip())

    def take(self) -> list[ChatItem]:
        """Return the items that were not taken yet."""
        taken, self.items, self.earlier = self.items, [], 0
        return taken

    def _add(self, text: str) -> None:
        self.reply += text
        seen = visible(self.reply)
        if len(seen) > self.shown:
            self.items.append(ChatItem("piece", seen[self.shown :]))
            self.shown = len(seen)

    def _note(self, text: str) -> None:
        self.items.append(ChatItem("note", text))

    def _void(self, reason: str) -> None:
        """Drop the pieces of this round; if some were taken already, add an item that voids them."""
        not_taken = "".join(item.text for item in self.items[self.earlier :] if item.type == "piece")
        self.items[self.earlier :] = [item for item in self.items[self.earlier :] if item.type != "piece"]
        if self.shown > len(not_taken):
            self.items += [ChatItem("void", reason), ChatItem("speaker", self.agent.name)]
        else:
            self._note(f"{self.agent.name}: {reason}")
        self.reply, self.shown = "", 0

    def _end_round(self) -> None:
        if self.shown:
            self.items.append(ChatItem("piece", "\n"))
        self.reply, self.shown, self.earlier = "", 0, len(self.items)

    def _conclude(self, answer: str) -> None:
        """Add the answer if it was not shown: it came in one piece, or is not the reply itself."""
        if not self.contains(answer) and not answer.lstrip().startswith(REROUTE):
            self._end_round()
            self.items.append(ChatItem("piece", answer))
            self.reply, self.shown = answer, len(answer)


class TurnView:
    """Folds the events of a turn into chat items. Concurrent agents are shown one after the other."""

    def __init__(self) -> None:
        self._agents = TurnAgents()
        self._replies: dict[str, AgentReply] = {}
        self._waiting: list[AgentReply] = []
        self._current: AgentReply | None = None
        self._items: list[ChatItem] = []
        self._is_over = False
        self._is_collected = False

    def apply(self, event: RunEvent, step: StepRecord | None) -> None:
        """Add an event; `step` is the record of the step that it happened to."""
        self._is_over |= event.ends_run
        if step and (agent := self._agents.agent_of(event, step)):
            if agent.step_id not in self._replies:
                self._replies[agent.step_id] = AgentReply(agent)
                self._waiting.append(self._replies[agent.step_id])
            self._replies[agent.step_id].apply(event, step)
        elif items := list(_items_outside(activity_of(event, step))):
            self._items += [*self._ready_items(), *items]
        self._is_collected |= event.step_state == "done" and step is not None and step.spec.role == "collection"

    def take(self) -> list[ChatItem]:
        """Return the items that can be shown and were not taken yet: none of attempts that are void already."""
        taken, self._items = [*self._items, *self._ready_items()], []
        return taken

    def has_shown(self, answer: str) -> bool:
        """Return whether the answer of the turn was shown last, or consists only of replies that were shown."""
        return self._is_collected or (self._current is not None and self._current.contains(answer))

    def _ready_items(self) -> Iterator[ChatItem]:
        """Yield the items of the current agent, and of those that follow it if it is done."""
        if self._current:
            yield from self._current.take()
        while self._waiting and (self._current is None or self._current.agent.open_steps <= 0 or self._is_over):
            self._current = self._waiting.pop(0)
            yield ChatItem("speaker", self._current.agent.name)
            yield from self._current.take()


def visible(reply: str) -> str:
    """Return the visible part of a reply under way: no prefix for the router, no JSON object."""
    head = reply.lstrip()
    if any(mark.startswith(head) for mark in (FINAL, REROUTE)) or head.startswith((REROUTE, "{")):
        return ""
    return head.removeprefix(FINAL).lstrip() if head.startswith(FINAL) else reply


def _items_outside(activity: Activity | None) -> Iterator[ChatItem]:
    """Yield the items of what belongs to no agent: decisions of a team, and warnings."""
    match activity:
        case AgentChosen(plan=list(plan)):
            yield ChatItem("note", f"plan: {' → '.join(map(str, plan))}")
        case AgentChosen(agent, by) if agent:
            refined = f", asked: {_short(activity.text)}" if activity.refined else ""
            yield ChatItem("note", f"→ {agent} ({_CHOSEN_BY.get(by, 'the router')}{refined})")
        case AgentChosen(fault=fault) if fault:
            yield ChatItem("note", f"asking the router again: {_short(fault)}")
        case Handover(agent, output):
            text = f": {_short(output)}" if output else ""
            yield ChatItem("note", f"↪ {agent or 'the agent'} hands over{text}")
        case TurnWarning(message):
            yield ChatItem("warning", message)


_CHOSEN_BY: Mapping[str, str] = {"rules": "a rule", "turn": "in turn", "default": "by default"}


def _short(value: JsonValue) -> str:
    return text_format.line(as_text(value), MAX_VALUE)
