"""TurnView: the events of a turn as a chat shows them, agent by agent. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cantata.client.records import StepRecord, answer_text
from cantata.flows.events import AttemptFailed, LeaseLost, RateLimited, ReplyDelta, RunEvent, StepExpanded
from cantata.flows.step_kinds import kind_named
from cantata.text import text_format
from cantata.values import JsonValue

FINAL, REROUTE = "[FINAL]", "[REROUTE]"
MAX_VALUE = 100  # characters of a call's arguments or result


class ChatItem(NamedTuple):
    """An item to show: a speaker's name, a piece of the reply, that the reply is void, a note or a warning."""

    type: Literal["speaker", "piece", "void", "note", "warning"]
    text: str


@dataclass
class AgentReply:
    """The reply of an agent in a turn, round by round; held back while the reply of another agent is shown."""

    name: str
    open_steps: int = 1
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
        if step.spec.role == "tool":
            self._apply_call(event, step)
        elif isinstance(event, ReplyDelta):
            self._add(text_format.clean(event.text))
        elif event.voids_attempt and not event.ends_step:
            error = event.explanation if isinstance(event, AttemptFailed) else ""
            self._void("; ".join(filter(None, (error, event.voids_attempt))))
        elif isinstance(event, RateLimited):
            self._note(f"{self.name} waits: {event.reason}")
        if isinstance(event, StepExpanded):
            self._end_round()
            self.open_steps += event.steps - 1
        elif event.ends_step:
            self.open_steps -= 1
            if self.open_steps == 0:
                self._end(event, step)

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
            self.items += [ChatItem("void", reason), ChatItem("speaker", self.name)]
        else:
            self._note(f"{self.name}: {reason}")
        self.reply, self.shown = "", 0

    def _end_round(self) -> None:
        if self.shown:
            self.items.append(ChatItem("piece", "\n"))
        self.reply, self.shown, self.earlier = "", 0, len(self.items)

    def _end(self, event: RunEvent, step: StepRecord) -> None:
        if event.step_state == "done":
            self._conclude(text_format.clean(answer_text(step.output)))
        elif event.step_state == "failed" and step.spec.on_error == "skip":
            self._note(f"{self.name} failed: {event.explanation}")

    def _conclude(self, answer: str) -> None:
        """Add the answer if it was not shown: it came in one piece, or is not the reply itself."""
        if not self.contains(answer) and not answer.lstrip().startswith(REROUTE):
            self._end_round()
            self.items.append(ChatItem("piece", answer))
            self.reply, self.shown = answer, len(answer)

    def _apply_call(self, event: RunEvent, step: StepRecord) -> None:
        name = step.spec.work_name
        match event:
            case RunEvent(step_state="running"):
                arguments = step.spec.params.get("input")
                shown = ", ".join(f"{key}={_short(value)}" for key, value in arguments.items()) if isinstance(arguments, dict) else ""
                self._note(f"⚙ {name}({text_format.line(shown, MAX_VALUE)})")
            case RunEvent(step_state="done"):
                self._note(f"⚙ {name} → {_short(step.output)}")
            case AttemptFailed() | LeaseLost():
                self._note(f"⚙ {name} {event.type}: {event.explanation}")


class TurnView:
    """Folds the events of a turn into chat items. Concurrent agents are shown one after the other."""

    def __init__(self) -> None:
        self._replies: dict[str, AgentReply] = {}
        self._waiting: list[AgentReply] = []
        self._current: AgentReply | None = None
        self._items: list[ChatItem] = []
        self._is_over = False
        self._is_collected = False

    def apply(self, event: RunEvent, step: StepRecord | None) -> None:
        """Add an event; `step` is the record of the step that it happened to."""
        self._is_over |= event.ends_run
        reply = step and self._reply_of(event, step)
        if reply and step:
            reply.apply(event, step)
        elif items := _items_outside(event, step):
            self._items += [*self._ready_items(), *items]
        self._is_collected |= event.step_state == "done" and step is not None and step.spec.role == "collection"

    def take(self) -> list[ChatItem]:
        """Return the items that can be shown and were not taken yet: none of attempts that are void already."""
        taken, self._items = [*self._items, *self._ready_items()], []
        return taken

    def has_shown(self, answer: str) -> bool:
        """Return whether the answer of the turn was shown last, or consists only of replies that were shown."""
        return self._is_collected or (self._current is not None and self._current.contains(answer))

    def _reply_of(self, event: RunEvent, step: StepRecord) -> AgentReply | None:
        """Return the reply of the agent that a step is, or that expanded to it."""
        parts = step.step_id.split("/")
        for end in range(len(parts)):
            if known := self._replies.get("/".join(parts[: end + 1])):
                return known
        if event.step_state != "running" or not kind_named(step.spec.kind).is_heard:
            return None
        reply = self._replies[step.step_id] = AgentReply(step.spec.work_name)
        self._waiting.append(reply)
        return reply

    def _ready_items(self) -> Iterator[ChatItem]:
        """Yield the items of the current agent, and of those that follow it if it is done."""
        if self._current:
            yield from self._current.take()
        while self._waiting and (self._current is None or self._current.open_steps <= 0 or self._is_over):
            self._current = self._waiting.pop(0)
            yield ChatItem("speaker", self._current.name)
            yield from self._current.take()


def visible(reply: str) -> str:
    """Return the visible part of a reply under way: no prefix for the router, no JSON object."""
    head = reply.lstrip()
    if any(mark.startswith(head) for mark in (FINAL, REROUTE)) or head.startswith((REROUTE, "{")):
        return ""
    return head.removeprefix(FINAL).lstrip() if head.startswith(FINAL) else reply


def _items_outside(event: RunEvent, step: StepRecord | None) -> list[ChatItem]:
    """Return the items of an event that belongs to no agent."""
    if event.is_warning:
        return [ChatItem("warning", event.explanation)]
    is_decision = step is not None and step.spec.role in ("choice", "reply") and event.step_state == "done"
    return list(_decision(step)) if step and is_decision else []


def _decision(step: StepRecord) -> Iterator[ChatItem]:
    """Yield notes on a decision of a team: the chosen agent and why, or that an agent hands over."""
    info = step.info
    chosen, plan = info.get("chosen_agent"), info.get("plan")
    if isinstance(plan, list):
        yield ChatItem("note", f"plan: {' → '.join(map(str, plan))}")
    elif chosen:
        refined = f", asked: {_short(step.output)}" if info.get("refined") else ""
        by = "default" if info.get("source") == "default" else kind_named(step.spec.kind).chosen_by
        yield ChatItem("note", f"→ {chosen} ({_CHOSEN_BY.get(by, 'the router')}{refined})")
    elif fault := info.get("fault"):
        yield ChatItem("note", f"asking the router again: {_short(fault)}")
    if info.get("prefix") == "reroute":
        agent, text = step.spec.params.get("agent", "the agent"), f": {_short(step.output)}" if step.output else ""
        yield ChatItem("note", f"↪ {agent} hands over{text}")


_CHOSEN_BY: Mapping[str, str] = {"rules": "a rule", "turn": "in turn", "default": "by default"}


def _short(value: JsonValue) -> str:
    return text_format.line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), MAX_VALUE)
