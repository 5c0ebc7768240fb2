"""Decisions about the agent that answers a turn: by rules, a router's reply or rotation, and by the prefixes of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import regex

from cantata.errors import ImportFailedError, StepError
from cantata.features.sessions import rotation
from cantata.flows.definitions import Team
from cantata.flows.graph import RAW, Outcome
from cantata.flows.turns import choices, routing
from cantata.flows.turns.choices import RouterDecision
from cantata.flows.turns.mentions import prefix_of
from cantata.flows.turns.routing import RoutingRound
from cantata.operation import exits
from cantata.text.patterns import SearchTime
from cantata.values import ErrorInfo, JsonValue
from cantata_workers.process.step_context import StepContext, handles, text_input
from cantata_workers.steps.team_calls import TIMEOUT_CODES, team_of
from cantata_workers.tools import functions

NO_AGENT = "I couldn't determine which agent should handle your request."
NO_DECISION: Mapping[str, str] = {
    "single_agent_dispatch": "Sorry, an error occurred during agent selection: ",
    "static_plan": "Error: Could not determine execution plan. ",
    "dynamic_decomposition": "Sorry, an error occurred while determining the next step: ",
}
"""The beginning of the error of a turn whose router cannot be called."""

SEARCH_S = 1.0  # processor time of a team's patterns; each has its share, so that none keeps the others from a text
MAX_QUOTED_CHARS = 150  # of the last input, in the error when the steps are used up


@handles("team.rules")
def team_rules(context: StepContext) -> Outcome:
    """Choose an agent by the first rule that matches, else expand to a call of the router."""
    now, team, text = RoutingRound.of(context.params), team_of(context), text_input(context)
    warnings: list[str] = []
    for number in range(len(team.rules)):
        agent = agent_by_rule(context, team, number, text, warnings)
        if agent is not None:
            return _rules_chose(context, now, agent, {"source": "rules", "rule": number}, warnings)
    if team.default_agent and not routing.asks_router(team):
        return _rules_chose(context, now, team.default_agent, {"source": "default"}, warnings)
    return Outcome(output=text, fragment=routing.ask_router(now, context.definitions), warnings=tuple(warnings))


@handles("team.route")
def team_route(context: StepContext) -> Outcome:
    """Carry out the router's decision."""
    now, team = RoutingRound.of(context.params), team_of(context)
    error = _error_of_router(context)
    if error is not None:
        return _undecided(context, now, error["message"], error["code"])
    try:
        choice = choices.decision_of(context.begun.inputs["@reply"], team.strategy, team.agents)
    except ValueError as fault:
        return _undecided(context, now, str(fault))
    return _decided(context, now, choice)


@handles("team.reply")
def team_reply(context: StepContext) -> Outcome:
    """Decide by the prefix of an agent's answer: it is the answer of the turn, or the input of the next agent."""
    now, team = RoutingRound.of(context.params), team_of(context)
    answer = context.begun.inputs["@text"]
    prefix, rest = prefix_of(answer)
    detail: dict[str, JsonValue] = {"prefix": prefix}
    if prefix == "final":
        return Outcome(output=rest, detail=detail)
    if "plan" in context.params:
        return _along_the_plan(context, now, answer, rest if prefix and rest else None).model_copy(
            update={"detail": detail}
        )
    if team.strategy == "dynamic_decomposition" and "is_default" not in context.params:
        following = replace(now, number=now.number + 1, last=_own_output(context))
        return Outcome(output=rest, fragment=routing.ask_router(following, context.definitions), detail=detail)
    if not prefix:
        return Outcome(output=answer, detail=detail)
    if now.number >= team.max_internal_steps:
        return _exhausted(
            context, f"the last agent requested another step with: {str(rest)[:MAX_QUOTED_CHARS]}", answer
        )
    text = _own_output(context) if rest else now.text  # without an input: the same is routed again
    fragment = routing.next_routing_round(replace(now, number=now.number + 1, text=text), context.definitions)
    return Outcome(output=rest, fragment=fragment, detail=detail)


@handles("team.next")
def team_next(context: StepContext) -> Outcome:
    """Choose the next agent of the rotation."""
    begun, name = context.begun, context.text_param("team")
    agents = context.definitions.teams[name].agents
    step = f"{begun.run_id}|{begun.step_id}"
    number = rotation.take(context.process.ledger, tenant=begun.tenant, team=name, session=begun.session, step=step)
    agent = agents[number % len(agents)]
    fragment = routing.run_next(
        name, agent, context.definitions, prefix=context.text_param("prefix"), asked=_own_output(context)
    )
    return Outcome(output=text_input(context), fragment=fragment, detail={"chosen_agent": agent, "index": number})


# --- outcomes -------------------------------------------------------------------------------------------------------


def _rules_chose(
    context: StepContext, now: RoutingRound, agent: str, why: Mapping[str, JsonValue], warnings: Sequence[str]
) -> Outcome:
    """Return the outcome where a rule or the default chose an agent."""
    fragment = routing.run_agent(
        now, agent, context.definitions, asked=_own_output(context), is_default=why["source"] == "default"
    )
    return Outcome(
        output=text_input(context), fragment=fragment, detail={"chosen_agent": agent, **why}, warnings=tuple(warnings)
    )


def _decided(context: StepContext, now: RoutingRound, choice: RouterDecision) -> Outcome:
    """Return the outcome of a valid decision."""
    team, text = team_of(context), text_input(context)
    agent_input = text if choice.asked is None else choice.asked
    detail: dict[str, JsonValue] = {"strategy": team.strategy, "source": "router", "refined": choice.asked is not None}
    if choice.answer is not None:
        return Outcome(output=choice.answer, detail={**detail, "next_action": "final_answer"})
    if team.strategy == "static_plan":
        fragment = routing.run_plan(now, choice.agents, context.definitions, asked=_own_output(context))
        return Outcome(output=agent_input, fragment=fragment, detail={**detail, "plan": list(choice.agents)})
    agent = choice.agents[0]
    if now.number > team.max_internal_steps:  # only where the router decides after each agent
        return _exhausted(context, f"the router chose {agent!r} next", context.begun.inputs.get("@last"))
    fragment = routing.run_agent(now, agent, context.definitions, asked=_own_output(context))
    return Outcome(output=agent_input, fragment=fragment, detail={**detail, "chosen_agent": agent})


def _undecided(context: StepContext, now: RoutingRound, fault: str, code: str = "") -> Outcome:
    """Return the outcome without a valid decision: the router is called once more, then the default agent answers, if there is one."""
    team, text = team_of(context), text_input(context)
    is_model = not (team.router and team.router.function)
    was_called = not code or code in TIMEOUT_CODES  # without a valid decision, or too late
    if is_model and not now.again and was_called:
        reply_of = None if code else context.text_param("asked")
        fragment = routing.ask_router(replace(now, again=True), context.definitions, fault=fault, said=reply_of)
        return Outcome(output=text, fragment=fragment, detail={"strategy": team.strategy, "fault": fault})
    if team.default_agent is not None:
        if now.number > team.max_internal_steps:
            return _exhausted(context, f"the router made no decision: {fault}", context.begun.inputs.get("@last"))
        detail: dict[str, JsonValue] = {
            "strategy": team.strategy, "chosen_agent": team.default_agent, "source": "default", "refined": False, "fault": fault,
        }  # fmt: skip
        warning = f"the router made no decision, so {team.default_agent!r} answers: {fault}"
        fragment = routing.run_agent(
            now, team.default_agent, context.definitions, asked=_own_output(context), is_default=True
        )
        return Outcome(output=text, fragment=fragment, detail=detail, warnings=(warning,))
    is_undetermined = team.strategy == "single_agent_dispatch" and was_called
    head = f"{NO_AGENT} (" if is_undetermined else NO_DECISION[team.strategy]
    raise StepError(f"{head}{fault}{')' if is_undetermined else ''}", code="no_agent")


def _along_the_plan(context: StepContext, now: RoutingRound, answer: JsonValue, next_input: JsonValue) -> Outcome:
    """Return the outcome of a plan's agent: it is called again, the next one is called, or the plan has ended."""
    plan = cast("list[str]", context.params["plan"])
    position, run = context.int_param("position"), context.int_param("run")
    expand = partial(routing.run_plan, now, plan, context.definitions, asked=_own_output(context))
    if next_input is not None and run < team_of(context).max_internal_steps:
        return Outcome(output=next_input, fragment=expand(position=position, run=run + 1))
    if position + 1 < len(plan):
        return Outcome(output=answer, fragment=expand(position=position + 1))
    return Outcome(output=answer)


def _exhausted(context: StepContext, why: str, last: JsonValue) -> Outcome:
    """Return the outcome when no more agents may run; it keeps the last answer."""
    limit = team_of(context).max_internal_steps
    error = ErrorInfo(
        code="exhausted", message=f"[Info] Reached max internal steps ({limit}); {why}", step=context.begun.step_id
    )
    return Outcome(status="failed", error=error, detail={"last_output": last})


def _error_of_router(context: StepContext) -> Mapping[str, str] | None:
    """Return the error of the router's call; None if it replied."""
    (info,) = context.process.ledger.reader.infos(context.begun.run_id, [context.text_param("asked")])
    return cast("Mapping[str, str] | None", info.get("error"))


def _own_output(context: StepContext) -> str:
    """Return the reference to the output of this step."""
    return f"{RAW}{context.begun.step_id}"


def agent_by_rule(context: StepContext, team: Team, number: int, text: str, warnings: list[str]) -> str | None:
    """Return the agent that a rule chooses; None if it chooses none. A rule that fails chooses none, and adds to `warnings`.

    Raises StepError if its function raises what is no `Exception`.
    """
    rule = team.rules[number]
    try:
        agent: Any = None
        if rule.match is not None and SearchTime(SEARCH_S / len(team.rules)).is_found(regex.compile(rule.match), text):
            agent = rule.agent
        elif rule.function:
            answer = functions.result_of(context, functions.load_for(rule.function, context)(text))
            agent = rule.agent if answer is True else answer
    except ImportFailedError:  # another worker may have the function
        raise
    except TimeoutError as error:
        warnings.append(f"rule {number + 1} chooses no agent: {error}")
        return None
    except Exception as error:  # noqa: BLE001  # whatever a user's function raises
        warnings.append(f"rule {number + 1} ({rule.function}) chooses no agent: {type(error).__name__}: {error}")
        return None
    except BaseException as error:
        raise exits.failure_of(f"rule {number + 1} ({rule.function})", error) from error
    if not agent or agent in team.agents:
        return agent or None
    warnings.append(f"rule {number + 1} ({rule.function}) chooses {agent!r}, which is not an agent of the team")
    return None
