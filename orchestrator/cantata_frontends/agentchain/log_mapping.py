"""Mapping of a run's events to the documented entries of AgentChain's run log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from cantata.flows.definitions import Team
from cantata.flows.events import RunAccepted, RunEvent, RunWarning
from cantata.flows.graph import RAW, START
from cantata.flows.wire import RunResult, TurnRequest
from cantata.ledger.records import StepRecord
from cantata_frontends.agentchain.decision_log import DECISIONS, Fields, LogEntry, length_of, round_of, text_of

Steps = Callable[[Sequence[str]], Mapping[str, StepRecord]]
"""Returns the records of steps, by id, as they are at the event or later."""

EXHAUSTED = "exhausted"
"""The error code of a step that failed since no more agents may run; the end of the turn reports it."""

_BEGIN_ROUNDS = ("team.rules", "team.ask", "team.call")

DIRECT = "direct"
_EVENT_PREFIXES = {
    "router": "agent_execution", "pipeline": "pipeline_step", "round_robin": "round_robin_agent", "broadcast": "broadcast_agent",
    "static_plan": "static_plan_step", "dynamic_decomposition": "dynamic_decomp_agent", DIRECT: "run_direct",
}  # fmt: skip
"""The prefixes of agents' events, by mode or strategy: `<prefix>_start`, `<prefix>_success`, `<prefix>_error`."""


class LogMapping:
    """Maps the events of one turn, in order, to log entries; it looks up the records of their steps."""

    def __init__(self, turn: TurnRequest, team: Team, steps: Steps) -> None:
        self._turn = turn
        self._team = team
        self._steps = steps
        self._mode = DIRECT if turn.agent else team.mode
        self._strategy = (
            team.strategy if self._mode == "router" and team.strategy != "single_agent_dispatch" else self._mode
        )
        self._agents: dict[str, _Running] = {}
        self._rounds: set[int] = set()
        self._accepted_ms = 0
        self._next = 0

    def entries_of(self, event: RunEvent) -> Iterator[LogEntry]:
        """Yield the entries of an event."""
        if isinstance(event, RunAccepted):
            self._accepted_ms = event.at_ms
        for entry in self._entries(event):
            yield entry._replace(at_ms=event.at_ms)

    def final_entries(self, result: RunResult, at_ms: int) -> Iterator[LogEntry]:
        """Yield the entries of the end of the turn."""
        for entry in (*self._history_entries(result), *self._end_entries(result, at_ms)):
            yield entry._replace(at_ms=at_ms)

    # --- the turn ---------------------------------------------------------------------------------------------------

    def _entries(self, event: RunEvent) -> Iterator[LogEntry]:
        if isinstance(event, RunAccepted):
            yield from self._start_entries()
        elif isinstance(event, RunWarning):
            yield LogEntry("warning", {"message": event.message, "step": event.step})
        elif event.step and event.step != START and (event.ends_step or event.step_state in ("running", "done")):
            step = self._steps([event.step]).get(event.step)
            if step is not None:
                yield from self._step_entries(event, step)

    def _start_entries(self) -> Iterator[LogEntry]:
        if self._mode == DIRECT:
            length = len(self._turn.text)
            yield LogEntry(
                "run_direct_start",
                {"agent": self._turn.agent, "input_length": length, "send_history": self._turn.send_history},
            )
            return
        yield LogEntry("process_input_start", {"mode": self._mode, "input": self._turn.text})
        if self._mode == "router":
            yield LogEntry("router_strategy", {"strategy": self._team.strategy})

    def _history_entries(self, result: RunResult) -> Iterator[LogEntry]:
        """Yield the entries of the messages that the turn added to the conversation."""
        if self._turn.session is None:
            return
        yield LogEntry("history_add", {"role": "user", "content_length": len(self._turn.text)})
        if result.status != "succeeded":
            yield LogEntry(
                "history_add",
                {"role": "system_error", "content_length": len(result.error.message if result.error else "")},
            )
        elif length := length_of(result.output):
            yield LogEntry("history_add", {"role": "assistant", "content_length": length})
        else:
            yield LogEntry("history_add_skipped", {"role": "assistant", "reason": "the answer is empty"})

    def _end_entries(self, result: RunResult, at_ms: int) -> Iterator[LogEntry]:
        took_ms = at_ms - self._accepted_ms
        error = result.error.message if result.error else None
        if self._mode == DIRECT:
            if result.status == "succeeded":
                yield LogEntry(
                    "run_direct_finished", {"agent": self._turn.agent, "response_length": length_of(result.output)}
                )
            else:
                yield LogEntry("run_direct_error", {"agent": self._turn.agent, "status": result.status, "error": error})
            yield LogEntry("run_direct_end", {"agent": self._turn.agent, "duration_ms": took_ms})
            return
        if result.status == "exhausted":
            yield LogEntry(
                "router_max_steps_reached", {"max_internal_steps": self._team.max_internal_steps, "message": error}
            )
        if result.error and result.error.code == "no_agent":
            yield LogEntry("agent_selection_failed", {"error": error})
        if self._mode == "pipeline" and result.status == "succeeded" and not length_of(result.output):
            yield LogEntry("pipeline_empty_response", {"agent": self._team.agents[-1]})
        fields: Fields = {
            "mode": self._mode, "status": result.status, "response_length": length_of(result.output),
            "agent_used": self._last_agent, "execution_time_ms": took_ms,
        }  # fmt: skip
        yield LogEntry("process_input_end", fields if error is None else {**fields, "error": error})

    @property
    def _last_agent(self) -> str | None:
        """The agent that answered; None if none or all did."""
        return [*self._agents.values()][-1].agent if self._agents and self._mode != "broadcast" else None

    # --- its steps --------------------------------------------------------------------------------------------------

    def _step_entries(self, event: RunEvent, step: StepRecord) -> Iterator[LogEntry]:
        kind = step.spec.kind
        if kind in DECISIONS:
            if event.step_state == "running" and kind in _BEGIN_ROUNDS:
                yield from self._round_start_entries(step)
            error = step.error if event.step_state == "failed" else None
            if event.step_state in ("done", "failed") and not (error and error.code == EXHAUSTED):
                yield from DECISIONS[kind](step, error.message if error else None, self._strategy)
        elif kind == "team.next":
            self._next = (cast(int, step.info.get("index", 0)) + 1) % len(self._team.agents)
        elif kind != "history.block":
            yield from self._agent_entries(event, step)

    def _agent_entries(self, event: RunEvent, step: StepRecord) -> Iterator[LogEntry]:
        """Yield the entries of an agent's step, or of a step that its expansion put in its place, such as a round of tool calls."""
        if self._mode == DIRECT:
            return
        root, _, inner = step.step_id.partition("/")
        if (
            not inner
            and event.step_state == "running"
            and root not in self._agents
            and step.spec.work.startswith("agents:")
        ):
            running = self._agents[root] = _Running(
                step.spec.work.removeprefix("agents:"), len(self._agents) + 1, event.at_ms
            )
            text, with_history = self._input_of(step)
            yield LogEntry(
                f"{_EVENT_PREFIXES[self._strategy]}_start",
                {**self._agent_fields(running), **self._input_fields(text, with_history)},
            )
        if not event.ends_step or root not in self._agents:
            return
        if inner and step.spec.scope != self._steps([root])[root].spec.scope:
            return  # an inner step of the expansion
        running = self._agents[root]
        took: Fields = {"duration_ms": event.at_ms - running.since_ms}
        if event.step_state == "done":
            running.answer = text_of(step.output)
            length: Fields = {"response_length": len(running.answer)}
            yield LogEntry(
                f"{_EVENT_PREFIXES[self._strategy]}_success", {**self._agent_fields(running), **length, **took}
            )
        else:
            error = step.error.message if step.error else event.type
            yield LogEntry(
                f"{_EVENT_PREFIXES[self._strategy]}_error", {**self._agent_fields(running), "error": error, **took}
            )

    def _agent_fields(self, running: _Running) -> Fields:
        """Return the fields that name an agent and its position in the turn."""
        match self._mode:
            case "pipeline":
                return {"step": running.number, "total_steps": len(self._team.agents), "agent": running.agent}
            case "router":
                return {"agent": running.agent, "internal_step": running.number}
            case "round_robin":
                return {"agent": running.agent, "next_index": self._next}
        return {"agent": running.agent}

    def _input_fields(self, text: str, with_history: bool) -> Fields:
        return {"input_type": "str", "input_length": len(text), "history_included": with_history}

    def _input_of(self, step: StepRecord) -> tuple[str, bool]:
        """Return the input of an agent, and whether it includes the conversation."""
        source = step.spec.reads.get("@text", START).removeprefix(RAW)
        if source == START:
            return self._turn.text, False
        if source in self._agents:
            return self._agents[source].answer, False
        found = self._steps([source]).get(source)
        return (text_of(found.output), found.spec.kind == "history.block") if found else ("", False)

    # --- its decisions ----------------------------------------------------------------------------------------------

    def _round_start_entries(self, step: StepRecord) -> Iterator[LogEntry]:
        number = round_of(step)
        text, _ = self._input_of(step)
        if number not in self._rounds:
            self._rounds.add(number)
            yield LogEntry("router_internal_step_start", {"step": number, "input_length": len(text)})
        if step.spec.kind != "team.rules":
            asks_again = "fault" in step.spec.params
            yield LogEntry(
                "prepare_full_decision_prompt",
                {"internal_step": number, "input_length": len(text), "asks_again": asks_again},
            )


class _Running:
    """An agent whose step has begun."""

    def __init__(self, agent: str, number: int, since_ms: int) -> None:
        self.agent = agent
        self.number = number
        self.since_ms = since_ms
        self.answer = ""
