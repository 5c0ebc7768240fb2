"""Prompts of routers, and the decisions in their replies: who answers, in which order agents work, or what is done next."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cantata.flows.definitions import Strategy
from cantata.flows.expressions import json_repair
from cantata.values import JsonValue, as_text

REPLY_FORMS: Mapping[Strategy, str] = {
    "single_agent_dispatch": '{"chosen_agent": "<name>", "refined_query": "<a better wording of the request, or null>"}',
    "static_plan": '{"plan": ["<name>", "<name>", ...], "initial_input": "<what the first of them is asked, or null>"}',
    "dynamic_decomposition": (
        '{"next_action": "call_agent", "agent_name": "<name>", "agent_input": "<what it is asked>"} or '
        '{"next_action": "final_answer", "final_answer": "<the answer>"}'
    ),
}
"""The forms of a router's reply, by strategy. Users' own templates and functions rely on them."""

DEFAULT_TEMPLATES: Mapping[Strategy, str] = {
    "single_agent_dispatch": (
        "Choose the agent that is best suited to answer the user.\n\nAgents:\n{agent_details}\n\nConversation so far:\n{history}\n\n"
        f"The user says:\n{{user_input}}\n\nReply with JSON only: {REPLY_FORMS['single_agent_dispatch']}"
    ),
    "static_plan": (
        "Plan which agents work on the user's request, one after the other; each gets the answer of the one before it.\n\n"
        "Agents:\n{agent_details}\n\nConversation so far:\n{history}\n\n"
        f"The user says:\n{{user_input}}\n\nReply with JSON only: {REPLY_FORMS['static_plan']}"
    ),
    "dynamic_decomposition": (
        "Work on the user's request step by step: say which agent does what next, or give the final answer.\n\n"
        "Agents:\n{agent_details}\n\nConversation so far:\n{history}\n\nThe user says:\n{initial_user_request}\n\n"
        f"The last step gave:\n{{last_step_output}}\n\nReply with JSON only: {REPLY_FORMS['dynamic_decomposition']}"
    ),
}
"""The prompts of routers without a template in the configuration, by strategy."""

MAX_PLANNED_AGENTS = 100
"""Agents in one plan."""

NO_STEP_YET = "Nothing has been done yet."


@dataclass(frozen=True)
class RouterDecision:
    """A router's decision: agents in their order, and the input of the first one; or the final answer."""

    agents: tuple[str, ...] = ()
    asked: str | None = None
    """The input of the first agent; None for the turn's text."""
    answer: str | None = None


def agent_details(descriptions: Mapping[str, str]) -> str:
    """Return the list of agents for a prompt."""
    return "\n".join(f"- {name}: {description}" for name, description in descriptions.items())


def decision_of(reply: JsonValue, strategy: Strategy, agents: Sequence[str]) -> RouterDecision:
    """Return the decision in a reply. Raises ValueError with a correction for the router."""
    fields = _object(reply, strategy, agents)
    if strategy == "static_plan":
        plan = fields.get("plan")
        if not isinstance(plan, list) or not plan:
            raise ValueError("'plan' must be a list of at least one agent's name")
        if len(plan) > MAX_PLANNED_AGENTS:
            raise ValueError(f"'plan' has {len(plan)} steps; at most {MAX_PLANNED_AGENTS} are allowed")
        return RouterDecision(tuple(_agent(each, "plan", agents) for each in plan), _text(fields.get("initial_input")))
    if strategy == "dynamic_decomposition":
        match fields.get("next_action"):
            case "final_answer":
                answer = fields.get("final_answer")
                if answer is None:
                    raise ValueError("'final_answer' is missing")
                return RouterDecision(answer=as_text(answer))
            case "call_agent":
                return RouterDecision(
                    (_agent(fields.get("agent_name"), "agent_name", agents),), _text(fields.get("agent_input"))
                )
            case other:
                raise ValueError(f"'next_action' must be 'call_agent' or 'final_answer', not {_json(other)}")
    query = fields.get("refined_query")
    return RouterDecision(
        (_agent(fields.get("chosen_agent"), "chosen_agent", agents),), _text(query) if isinstance(query, str) else None
    )


def _object(reply: JsonValue, strategy: Strategy, agents: Sequence[str]) -> Mapping[str, JsonValue]:
    if isinstance(reply, dict):
        return reply
    if not isinstance(reply, str):
        raise ValueError(f"the reply must be a JSON object, not {_json(reply)}")
    if strategy == "single_agent_dispatch" and reply.strip() in agents:
        return {"chosen_agent": reply.strip()}
    found = [each.value for each in json_repair.objects_in(reply)]
    if not found:
        raise ValueError("the reply is empty" if not reply.strip() else "the reply has no JSON object")
    return found[-1]  # a model that thinks aloud decides at the end


def _agent(name: JsonValue, key: str, agents: Sequence[str]) -> str:
    if not isinstance(name, str) or name not in agents:
        raise ValueError(
            f"{key!r} is {_json(name)}, which is not an agent; the agents are {', '.join(map(repr, agents))}"
        )
    return name


def _text(value: JsonValue) -> str | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    return as_text(value)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)
