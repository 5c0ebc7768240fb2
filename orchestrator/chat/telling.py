"""What the events of a turn tell a reader: who speaks, what is said, what of it is void, and what was decided and called meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from orchestrator import words
from orchestrator.models.values import JsonValue
from orchestrator.models.wire import RunEvent
from orchestrator.results import answer_text
from orchestrator.state.records import StepRecord

FINAL, REROUTE = "[FINAL]", "[REROUTE]"
SPEAKERS = frozenset({"agent.turn", "agent.run", "team.synthesize"})
CALLS = frozenset({"tool.call", "mcp.call"})
ENDS = frozenset({"done", "failed", "late", "skipped"})
DECIDED = frozenset({"done", "grown"})
VOIDS: Mapping[str, str] = {
    "lost": "its worker is gone, another begins anew",
    "retry": "the attempt failed, another follows",
    "released": "its worker was stopped, another begins anew",
    "fallback": "the model failed, another is asked",
}
"""Events after which what an attempt said does not count."""

MOST_VALUE = 100  # characters of a call's arguments or result


class Told(NamedTuple):
    """Something to be shown: a name before what is said, a piece of it, that what was said is void, or something aside."""

    what: Literal["speaker", "piece", "void", "note", "warning"]
    text: str


@dataclass
class Speech:
    """What an agent says in a turn, round by round; held back while another has the floor."""

    name: str
    left: int = 1
    """How many of its steps are not over."""
    reply: str = ""
    """What it says in this round, as it comes."""
    shown: int = 0
    """How many characters of that were told, as a reader sees it."""
    held: list[Told] = field(default_factory=list)
    """What was not taken yet."""
    before: int = 0
    """How much of that is of rounds before this one."""

    def add(self, text: str) -> None:
        """Another piece."""
        self.reply += text
        seen = visible(self.reply)
        if len(seen) > self.shown:
            self.held.append(Told("piece", seen[self.shown :]))
            self.shown = len(seen)

    def note(self, text: str) -> None:
        """Something aside."""
        self.held.append(Told("note", text))

    def take_back(self, why: str) -> None:
        """What was said in this round does not count: it is not told, or what was told of it is called back."""
        said = "".join(told.text for told in self.held[self.before :] if told.what == "piece")
        self.held[self.before :] = [told for told in self.held[self.before :] if told.what != "piece"]
        if self.shown > len(said):
            self.held += [Told("void", why), Told("speaker", self.name)]
        else:
            self.note(f"{self.name}: {why}")
        self.reply, self.shown = "", 0

    def end_round(self) -> None:
        """What was said stays; what comes next is said anew."""
        if self.shown:
            self.held.append(Told("piece", "\n"))
        self.reply, self.shown, self.before = "", 0, len(self.held)

    def conclude(self, answer: str) -> None:
        """The answer, if it is not what was said: it came in one piece, or something was made of it."""
        if not self.has_said(answer) and not answer.lstrip().startswith(REROUTE):
            self.end_round()
            self.held.append(Told("piece", answer))
            self.reply, self.shown = answer, len(answer)

    def has_said(self, answer: str) -> bool:
        """Whether an answer was said, and a reader sees it."""
        seen = visible(self.reply).strip() if self.shown < len(self.reply) else self.reply.strip()
        return bool(seen) and answer.strip() in (seen, self.reply.strip())

    def take(self) -> list[Told]:
        """What was not taken yet."""
        taken, self.held, self.before = self.held, [], 0
        return taken


class Telling:
    """Makes of a turn's events what a reader is told. Agents that work at once speak one after the other."""

    def __init__(self) -> None:
        self._speeches: dict[str, Speech] = {}
        self._waiting: list[Speech] = []
        self._floor: Speech | None = None
        self._told: list[Told] = []
        self._is_over = False
        self._has_collected = False

    def hear(self, event: RunEvent, step: StepRecord | None) -> None:
        """Add what an event tells; `step` is what is known of the step that it happened to."""
        self._is_over |= event.type == "closed"
        speech = step and self._speech(event, step)
        if speech and step:
            _hear(speech, event, step)
        elif aside := _aside(event, step):
            self._told += [*self._speak(), *aside]
        self._has_collected |= event.type == "done" and step is not None and step.spec.kind == "team.collect"

    def take(self) -> list[Told]:
        """What is to be told by now and was not taken yet: nothing of attempts that are void already."""
        taken, self._told = [*self._told, *self._speak()], []
        return taken

    def has_told(self, answer: str) -> bool:
        """Whether the answer of the turn is what was said last, or is made of nothing but what was said."""
        return self._has_collected or (self._floor is not None and self._floor.has_said(answer))

    def _speech(self, event: RunEvent, step: StepRecord) -> Speech | None:
        """Of the agent that a step is, or that grew it."""
        parts = step.step_id.split("/")
        for end in range(len(parts)):
            if known := self._speeches.get("/".join(parts[: end + 1])):
                return known
        if event.type != "started" or step.spec.kind not in SPEAKERS:
            return None
        speech = self._speeches[step.step_id] = Speech(step.spec.work.partition(":")[2])
        self._waiting.append(speech)
        return speech

    def _speak(self) -> Iterator[Told]:
        """What is said by who has the floor, and by those who get it since the one before is over."""
        if self._floor:
            yield from self._floor.take()
        while self._waiting and (self._floor is None or self._floor.left <= 0 or self._is_over):
            self._floor = self._waiting.pop(0)
            yield Told("speaker", self._floor.name)
            yield from self._floor.take()


def visible(reply: str) -> str:
    """What a reader is shown of a reply while it comes: nothing of the prefixes that are for the router, nor of a JSON object."""
    head = reply.lstrip()
    if any(mark.startswith(head) for mark in (FINAL, REROUTE)) or head.startswith((REROUTE, "{")):
        return ""
    return head.removeprefix(FINAL).lstrip() if head.startswith(FINAL) else reply


def _hear(speech: Speech, event: RunEvent, step: StepRecord) -> None:
    """Add to what an agent says what an event of one of its steps tells."""
    if step.spec.kind in CALLS:
        _hear_call(speech, event, step)
    elif event.type == "delta":
        speech.add(words.clean(str(event.detail.get("text", ""))))
    elif event.type in VOIDS:
        speech.take_back("; ".join(filter(None, (_error(event), VOIDS[event.type]))))
    elif event.type == "waits":
        speech.note(f"{speech.name} waits: {event.detail.get('reason', '')}")
    if event.type == "grown":
        speech.end_round()
        speech.left += int(str(event.detail.get("steps", 0))) - 1
    elif event.type in ENDS:
        speech.left -= 1
        if speech.left == 0:
            _hear_end(speech, event, step)


def _hear_end(speech: Speech, event: RunEvent, step: StepRecord) -> None:
    if event.type == "done":
        speech.conclude(words.clean(answer_text(step.output)))
    elif event.type != "skipped" and step.spec.on_error == "skip":
        speech.note(f"{speech.name} failed: {_error(event)}")


def _hear_call(speech: Speech, event: RunEvent, step: StepRecord) -> None:
    name = step.spec.work.partition(":")[2]
    if event.type == "started":
        given = step.spec.params.get("input")
        shown = ", ".join(f"{key}={_short(value)}" for key, value in given.items()) if isinstance(given, dict) else ""
        speech.note(f"⚙ {name}({words.line(shown, MOST_VALUE)})")
    elif event.type == "done":
        speech.note(f"⚙ {name} → {_short(step.output)}")
    elif event.type in ("failed", "late", "retry", "lost"):
        speech.note(f"⚙ {name} {event.type}: {_error(event) or 'its worker is gone'}")


def _aside(event: RunEvent, step: StepRecord | None) -> list[Told]:
    """What an event tells that is not of an agent."""
    if event.type in ("warning", "unserved"):
        return [Told("warning", str(event.detail.get("message", "")))]
    return list(_decided(step)) if step and event.type in DECIDED and step.spec.kind.startswith("team.") else []


def _decided(step: StepRecord) -> Iterator[Told]:
    """What a decision of a team tells: who was chosen and why, or that an agent passes its text on."""
    info = step.info
    chosen, plan = info.get("chosen_agent"), info.get("plan")
    if isinstance(plan, list):
        yield Told("note", f"plan: {' → '.join(map(str, plan))}")
    elif chosen:
        refined = f", asked: {_short(step.output)}" if info.get("refined") else ""
        how = "by default" if info.get("source") == "default" else _CHOOSERS.get(step.spec.kind, "the router")
        yield Told("note", f"→ {chosen} ({how}{refined})")
    elif fault := info.get("fault"):
        yield Told("note", f"the router is asked again: {_short(fault)}")
    if info.get("prefix") == "reroute":
        yield Told("note", f"↪ {step.spec.params.get('agent', 'the agent')} passes on{f': {_short(step.output)}' if step.output else ''}")


_CHOOSERS: Mapping[str, str] = {"team.rules": "a rule", "team.next": "in turn"}
"""Step kind → how an agent was chosen, where the router was not asked."""


def _error(event: RunEvent) -> str:
    error = event.detail.get("error")
    return str(error.get("message", "")) if isinstance(error, dict) else ""


def _short(value: JsonValue) -> str:
    return words.line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), MOST_VALUE)
