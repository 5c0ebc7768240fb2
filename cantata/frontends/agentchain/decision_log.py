"""What the decisions of a turn are in the run log: of rules, routers, answers that say what is next, and of what merges a broadcast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import cast

from cantata.frontends.agentchain.log_entry import Fields, Line, length_of, text_of
from cantata.models.values import JsonValue
from cantata.state.runs.records import StepRecord

Decision = Callable[[StepRecord, str | None, str], Iterator[Line]]
"""The lines of a step that decided, or that failed with an error; by the router's strategy."""


def round_of(step: StepRecord) -> int:
    """Which agent of the turn is chosen, from 1."""
    return int(cast("dict[str, int]", step.spec.params.get("round") or {}).get("number", 1))


def _rules(step: StepRecord, error: str | None, strategy: str) -> Iterator[Line]:
    number, agent = round_of(step), step.info.get("chosen_agent")
    if error is not None:
        yield Line("simple_router_warning", {"internal_step": number, "error": error})
    elif agent is None:
        yield Line("simple_router_defer", {"internal_step": number})
    else:
        if "rule" in step.info:
            yield Line("simple_router_match", {"internal_step": number, "agent": agent, "rule": step.info["rule"]})
        yield Line("router_decision", _chosen(str(step.info.get("source")), agent, refined=False, number=number))


def _router(step: StepRecord, error: str | None, strategy: str) -> Iterator[Line]:
    if error is not None:
        yield Line("router_error", {"internal_step": round_of(step), "error": error})
    else:
        said = text_of(step.output)
        yield Line("complex_router_output", {"internal_step": round_of(step), "output": said, "output_length": len(said)})


def _route(step: StepRecord, error: str | None, strategy: str) -> Iterator[Line]:
    number, info = round_of(step), step.info
    if fault := info.get("fault") or error:
        yield Line("parse_decision_error", {"internal_step": number, "error": fault})
    if error is not None:
        yield Line("router_decision_failed", {"internal_step": number, "error": error})
        return
    if not fault:
        yield Line("parse_decision_success", {"internal_step": number})
    source, agent = str(info.get("source")), info.get("chosen_agent")
    if "plan" in info:
        yield Line("static_plan_created", {"plan": info["plan"], "source": source})
    elif strategy == "dynamic_decomposition" and (agent or "next_action" in info):
        action = info.get("next_action", "call_agent")
        yield Line("dynamic_decomp_decision", {"internal_step": number, "next_action": action, "agent": agent, "source": source})
    elif agent is not None:
        yield Line("router_decision", _chosen(source, agent, refined=bool(info.get("refined")), number=number))


def _reply(step: StepRecord, error: str | None, strategy: str) -> Iterator[Line]:
    if error is not None:
        return
    prefix, said = step.info.get("prefix"), length_of(step.output)
    agent = step.spec.params.get("agent")
    if prefix == "reroute" and strategy != "dynamic_decomposition":
        name = "static_plan_reroute" if strategy == "static_plan" else "agent_reroute_requested"
        yield Line(name, {"agent": agent, "next_input_length": said})
    elif prefix == "final":
        yield Line("agent_final_response_prefix", {"agent": agent, "response_length": said})
    elif strategy == "router":
        yield Line("agent_final_response_no_prefix", {"agent": agent, "response_length": said})


def _synthesizer(step: StepRecord, error: str | None, strategy: str) -> Iterator[Line]:
    if error is not None or "model" not in step.info:
        yield Line("broadcast_synthesis_error", {"error": error or step.info.get("unmerged", "the answers stand unmerged")})
    else:
        yield Line("broadcast_synthesis_success", {"model": step.info["model"], "response_length": length_of(step.output)})


def _collect(step: StepRecord, error: str | None, strategy: str) -> Iterator[Line]:
    if error is None:
        yield Line("broadcast_concatenation", {"response_length": length_of(step.output)})


DECISIONS: Mapping[str, Decision] = {
    "team.rules": _rules, "team.ask": _router, "team.call": _router, "team.route": _route, "team.reply": _reply,
    "team.synthesize": _synthesizer, "team.collect": _collect,
}  # fmt: skip
"""Step kind → what it is in the log."""


def _chosen(source: str, agent: JsonValue, *, refined: bool, number: int) -> Fields:
    return {"source": source, "agent": agent, "refined_query_present": refined, "internal_step": number}
