"""Log entries of the decisions in a turn: rules, routers, prefixes of answers, and the merging of a broadcast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, cast

from cantata.ledger.records import StepRecord
from cantata.values import JsonValue, as_text

Fields = dict[str, JsonValue]


class LogEntry(NamedTuple):
    """One entry: the event name, its fields, and its time by Redis's clock."""

    event: str
    fields: Fields
    at_ms: int | None = None


def text_of(value: JsonValue) -> str:
    """Return an answer as text; anything but a text as JSON."""
    return "" if value is None else as_text(value)


def length_of(value: JsonValue) -> int:
    """Return the length of an answer as text."""
    return len(text_of(value))


Decision = Callable[[StepRecord, str | None, str], Iterator[LogEntry]]
"""Yields the entries of a decision step, given its error, if it failed, and the router's strategy."""


def round_of(step: StepRecord) -> int:
    """Return the number of the round in its turn, from 1."""
    return int(cast("dict[str, int]", step.spec.params.get("round") or {}).get("number", 1))


def _rules(step: StepRecord, error: str | None, strategy: str) -> Iterator[LogEntry]:
    number, agent = round_of(step), step.info.get("chosen_agent")
    if error is not None:
        yield LogEntry("simple_router_warning", {"internal_step": number, "error": error})
    elif agent is None:
        yield LogEntry("simple_router_defer", {"internal_step": number})
    else:
        if "rule" in step.info:
            yield LogEntry("simple_router_match", {"internal_step": number, "agent": agent, "rule": step.info["rule"]})
        yield LogEntry(
            "router_decision", _choice_fields(str(step.info.get("source")), agent, refined=False, number=number)
        )


def _router(step: StepRecord, error: str | None, strategy: str) -> Iterator[LogEntry]:
    if error is not None:
        yield LogEntry("router_error", {"internal_step": round_of(step), "error": error})
    else:
        text = text_of(step.output)
        yield LogEntry(
            "complex_router_output", {"internal_step": round_of(step), "output": text, "output_length": len(text)}
        )


def _route(step: StepRecord, error: str | None, strategy: str) -> Iterator[LogEntry]:
    number, info = round_of(step), step.info
    if fault := info.get("fault") or error:
        yield LogEntry("parse_decision_error", {"internal_step": number, "error": fault})
    if error is not None:
        yield LogEntry("router_decision_failed", {"internal_step": number, "error": error})
        return
    if not fault:
        yield LogEntry("parse_decision_success", {"internal_step": number})
    source, agent = str(info.get("source")), info.get("chosen_agent")
    if "plan" in info:
        yield LogEntry("static_plan_created", {"plan": info["plan"], "source": source})
    elif strategy == "dynamic_decomposition" and (agent or "next_action" in info):
        action = info.get("next_action", "call_agent")
        yield LogEntry(
            "dynamic_decomp_decision",
            {"internal_step": number, "next_action": action, "agent": agent, "source": source},
        )
    elif agent is not None:
        yield LogEntry(
            "router_decision", _choice_fields(source, agent, refined=bool(info.get("refined")), number=number)
        )


def _reply(step: StepRecord, error: str | None, strategy: str) -> Iterator[LogEntry]:
    if error is not None:
        return
    prefix, length = step.info.get("prefix"), length_of(step.output)
    agent = step.spec.params.get("agent")
    if prefix == "reroute" and strategy != "dynamic_decomposition":
        name = "static_plan_reroute" if strategy == "static_plan" else "agent_reroute_requested"
        yield LogEntry(name, {"agent": agent, "next_input_length": length})
    elif prefix == "final":
        yield LogEntry("agent_final_response_prefix", {"agent": agent, "response_length": length})
    elif strategy == "router":
        yield LogEntry("agent_final_response_no_prefix", {"agent": agent, "response_length": length})


def _synthesizer(step: StepRecord, error: str | None, strategy: str) -> Iterator[LogEntry]:
    if error is not None or "model" not in step.info:
        yield LogEntry(
            "broadcast_synthesis_error", {"error": error or step.info.get("unmerged", "the answers are not merged")}
        )
    else:
        yield LogEntry(
            "broadcast_synthesis_success", {"model": step.info["model"], "response_length": length_of(step.output)}
        )


def _collect(step: StepRecord, error: str | None, strategy: str) -> Iterator[LogEntry]:
    if error is None:
        yield LogEntry("broadcast_concatenation", {"response_length": length_of(step.output)})


DECISIONS: Mapping[str, Decision] = {
    "team.rules": _rules, "team.ask": _router, "team.call": _router, "team.route": _route, "team.reply": _reply,
    "team.synthesize": _synthesizer, "team.collect": _collect,
}  # fmt: skip
"""Step kind → its log entries."""


def _choice_fields(source: str, agent: JsonValue, *, refined: bool, number: int) -> Fields:
    return {"source": source, "agent": agent, "refined_query_present": refined, "internal_step": number}
