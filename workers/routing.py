"""Chooses the agents of a turn: by rules, by a router's reply, one after the other; and reads what their answers say of the turn."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from orchestrator.errors import ModelError, StepError
from orchestrator.models.definitions import History, Model, Router, Rule, Team
from orchestrator.models.graph import RAW, Outcome
from orchestrator.models.values import ErrorInfo, JsonValue, Usage
from orchestrator.planning import choices, history, templates
from orchestrator.planning.choices import Choice
from orchestrator.planning.prefixes import prefix_of
from orchestrator.planning.strategies import routing
from orchestrator.planning.strategies.routing import Round
from orchestrator.state import rotation
from workers import conversations, tools
from workers.asking import ask
from workers.dialects.messages import Message
from workers.work import Work, as_text, text_input

NOBODY = "I couldn't determine which agent should handle your request."
NO_DECISION: Mapping[str, str] = {
    "single_agent_dispatch": "Sorry, an error occurred during agent selection: ",
    "static_plan": "Error: Could not determine execution plan. ",
    "dynamic_decomposition": "Sorry, an error occurred while determining the next step: ",
}
"""What a turn fails with if its router cannot be asked; what went wrong stands behind it. Source: PromptChain."""

CORRECTION = "Your reply cannot be used: {fault}. Reply with JSON only: {form}"
LAST_INPUT = 150  # characters of it that are told when the steps are used up
LATE = frozenset({"timeout", "model_timeout"})


def team_rules(work: Work) -> Outcome:
    """Chooses an agent by the first rule that matches, else has the router asked."""
    now, team, text = Round.of(work.params), _team(work), text_input(work)
    warnings: list[str] = []
    for number, rule in enumerate(team.rules):
        agent = _matched(work, rule, number, text, warnings)
        if agent is not None:
            return _rules_chose(work, now, agent, {"source": "rules", "rule": number}, warnings)
    if team.default_agent and not routing.asks_router(team):
        return _rules_chose(work, now, team.default_agent, {"source": "default"}, warnings)
    return Outcome(output=text, fragment=routing.ask_router(now, work.definitions), warnings=tuple(warnings))


async def team_ask(work: Work) -> Outcome:
    """Asks the model that routes; its reply is the output."""
    settings = _team(work).router or Router()
    messages = await asyncio.to_thread(_messages, work, settings)
    models = work.definitions.with_fallbacks(_model(work, settings))
    models = [model.model_copy(update={"params": {**model.params, **settings.params}}) for model in models]
    schema = None
    if models[0].model.startswith("local/"):  # the embedded model scores names; what it writes is seldom one of them
        messages, schema = [{"role": "user", "content": text_input(work)}], _names_schema(_team(work).agents)
        models[0] = models[0].model_copy(update={"params": {**models[0].params, "examples": _examples(work)}})
    try:
        reply = await ask(work, models, messages, timeout_s=settings.timeout_s, schema=schema)
    except ModelError as error:
        if error.code in LATE:  # it had its time; what becomes of that is decided by `team.route`
            raise StepError(f"the router took longer than its {settings.timeout_s:g} s", code="timeout") from error
        raise
    return Outcome(output=reply.text, usage=reply.usage, detail={"model": reply.model, "finish": reply.finish_reason})


def team_call(work: Work) -> Outcome:
    """Calls the function that routes with (user_input, history, agent_descriptions); what it gives is the output."""
    team = _team(work)
    name = str((team.router or Router()).function)
    function = tools.load(name, tools.folder_here(work.definitions.folder))
    entries, _ = conversations.shown_to(work, History(), max_tokens=team.max_history_tokens)
    told = [{"role": entry.role, "content": entry.content} for entry in entries]
    answer = tools.call(work, name, partial(function, text_input(work), told, _descriptions(work)), {})
    return Outcome(output=answer, usage=Usage(tool_calls=1))


def team_route(work: Work) -> Outcome:
    """Does what the router's reply says."""
    now, team = Round.of(work.params), _team(work)
    error = _error_of_router(work)
    if error is not None:
        return _undecided(work, now, error["message"], error)
    try:
        choice = choices.choice_of(work.begun.inputs["@said"], team.strategy, team.agents)
    except ValueError as fault:
        return _undecided(work, now, str(fault), None)
    return _decided(work, now, choice)


def team_reply(work: Work) -> Outcome:
    """Reads what an agent's answer says of the turn: it is the answer, or what is to be done next."""
    now, team = Round.of(work.params), _team(work)
    answer = work.begun.inputs["@text"]
    prefix, rest = prefix_of(answer)
    detail: dict[str, JsonValue] = {"prefix": prefix}
    if prefix == "final":
        return Outcome(output=rest, detail=detail)
    if "plan" in work.params:
        return _along_the_plan(work, now, answer, rest if prefix and rest else None).model_copy(update={"detail": detail})
    if team.strategy == "dynamic_decomposition" and "is_default" not in work.params:
        following = replace(now, number=now.number + 1, last=_this(work))
        return Outcome(output=rest, fragment=routing.ask_router(following, work.definitions), detail=detail)
    if not prefix:
        return Outcome(output=answer)
    if now.number >= team.max_internal_steps:
        return _exhausted(work, f"the last agent asked to go on with: {str(rest)[:LAST_INPUT]}", answer)
    text = _this(work) if rest else now.text  # without an input: the same is routed again
    fragment = routing.next_round(replace(now, number=now.number + 1, text=text), work.definitions)
    return Outcome(output=rest, fragment=fragment, detail=detail)


def team_next(work: Work) -> Outcome:
    """Chooses the agent whose turn it is."""
    begun, name = work.begun, work.text_param("team")
    agents = work.definitions.teams[name].agents
    step = f"{begun.run_id}|{begun.step_id}"
    number = rotation.take(work.process.ledger, tenant=begun.tenant, team=name, session=begun.session, step=step)
    agent = agents[number % len(agents)]
    fragment = routing.run_next(name, agent, work.definitions, prefix=work.text_param("prefix"), asked=_this(work))
    return Outcome(output=text_input(work), fragment=fragment, detail={"chosen_agent": agent, "index": number})


# --- what is decided ------------------------------------------------------------------------------------------------


def _rules_chose(work: Work, now: Round, agent: str, why: Mapping[str, JsonValue], warnings: Sequence[str]) -> Outcome:
    """The outcome where nobody need be asked."""
    fragment = routing.run_agent(now, agent, work.definitions, asked=_this(work), is_default=why["source"] == "default")
    return Outcome(output=text_input(work), fragment=fragment, detail={"chosen_agent": agent, **why}, warnings=tuple(warnings))


def _decided(work: Work, now: Round, choice: Choice) -> Outcome:
    """The outcome of a decision that can be used."""
    team, text = _team(work), text_input(work)
    asked = text if choice.asked is None else choice.asked
    detail: dict[str, JsonValue] = {"strategy": team.strategy, "source": "router", "refined": choice.asked is not None}
    if choice.answer is not None:
        return Outcome(output=choice.answer, detail={**detail, "next_action": "final_answer"})
    if team.strategy == "static_plan":
        fragment = routing.run_plan(now, choice.agents, work.definitions, asked=_this(work))
        return Outcome(output=asked, fragment=fragment, detail={**detail, "plan": list(choice.agents)})
    agent = choice.agents[0]
    if now.number > team.max_internal_steps:  # only where the router decides after each agent
        return _exhausted(work, f"the router would ask {agent!r} next", work.begun.inputs.get("@last"))
    fragment = routing.run_agent(now, agent, work.definitions, asked=_this(work))
    return Outcome(output=asked, fragment=fragment, detail={**detail, "chosen_agent": agent})


def _undecided(work: Work, now: Round, fault: str, error: Mapping[str, str] | None) -> Outcome:
    """The outcome where the router gave nothing that can be used: it is asked once more, then the default agent answers, if any."""
    team, text = _team(work), text_input(work)
    is_model = not (team.router and team.router.function)
    is_late = error is not None and error["code"] in LATE
    if is_model and not now.again and (error is None or is_late):
        said = None if error else work.text_param("asked")
        fragment = routing.ask_router(replace(now, again=True), work.definitions, fault=fault, said=said)
        return Outcome(output=text, fragment=fragment, detail={"strategy": team.strategy, "fault": fault})
    if team.default_agent is not None:
        if now.number > team.max_internal_steps:
            return _exhausted(work, f"the router did not decide what is next: {fault}", work.begun.inputs.get("@last"))
        detail: dict[str, JsonValue] = {
            "strategy": team.strategy, "chosen_agent": team.default_agent, "source": "default", "refined": False, "fault": fault,
        }  # fmt: skip
        warning = f"the router did not decide, so {team.default_agent!r} answers: {fault}"
        fragment = routing.run_agent(now, team.default_agent, work.definitions, asked=_this(work), is_default=True)
        return Outcome(output=text, fragment=fragment, detail=detail, warnings=(warning,))
    said_nothing = team.strategy == "single_agent_dispatch" and (error is None or is_late)
    head = f"{NOBODY} (" if said_nothing else NO_DECISION[team.strategy]
    raise StepError(f"{head}{fault}{')' if said_nothing else ''}", code="no_agent")


def _along_the_plan(work: Work, now: Round, answer: JsonValue, asked_again: JsonValue) -> Outcome:
    """The outcome of a plan's agent: it is asked again, the next one has its turn, or the plan is at its end."""
    plan = cast("list[str]", work.params["plan"])
    position, run = (int(cast(int, work.params[key])) for key in ("position", "run"))
    go_on = partial(routing.run_plan, now, plan, work.definitions, asked=_this(work))
    if asked_again is not None and run < _team(work).max_internal_steps:
        return Outcome(output=asked_again, fragment=go_on(position=position, run=run + 1))
    if position + 1 < len(plan):
        return Outcome(output=answer, fragment=go_on(position=position + 1))
    return Outcome(output=answer)


def _exhausted(work: Work, why: str, last: JsonValue) -> Outcome:
    """The outcome when no more agents may run; what the last one said is kept."""
    most = _team(work).max_internal_steps
    error = ErrorInfo(code="exhausted", message=f"[Info] Reached max internal steps ({most}); {why}", step=work.begun.step_id)
    return Outcome(status="failed", error=error, detail={"last_output": last})


# --- what is asked --------------------------------------------------------------------------------------------------


def _messages(work: Work, settings: Router) -> Sequence[Message]:
    """What a routing model is asked; the second time also what it said, and what was wrong with it."""
    team = _team(work)
    entries, is_any = conversations.shown_to(work, History(), max_tokens=team.max_history_tokens)
    text, last = text_input(work), work.begun.inputs.get("@last")
    gaps = {
        "user_input": text,
        "initial_user_request": as_text(work.begun.inputs.get("@request")),
        "last_step_output": choices.NOTHING_YET if last is None else as_text(last),
        "history": history.lines(entries, is_any=is_any),
        "agent_details": choices.details(_descriptions(work)),
    }
    prompt = templates.fill(settings.template(team.strategy) or choices.TEMPLATES[team.strategy], gaps)
    messages: list[Message] = [{"role": "user", "content": templates.instruct(str(settings.instructions[1]), prompt)[0]}]
    if "fault" in work.params:
        said = work.begun.inputs.get("@said")
        correction = templates.fill(CORRECTION, {"fault": work.text_param("fault"), "form": choices.FORMS[team.strategy]})
        messages += [{"role": "assistant", "content": as_text(said)}] if said else []
        messages.append({"role": "user", "content": correction})
    return messages


def _model(work: Work, settings: Router) -> Model:
    named = settings.models[0] if settings.models else None
    return named if isinstance(named, Model) else work.definitions.model_of(named)


def _names_schema(names: Sequence[str]) -> dict[str, JsonValue]:
    return {"type": "object", "properties": {"chosen_agent": {"enum": list(names)}}, "required": ["chosen_agent"]}


def _examples(work: Work) -> list[JsonValue]:
    return [{"text": description or name, "label": name} for name, description in _descriptions(work).items()]


def _descriptions(work: Work) -> dict[str, str]:
    return {name: work.definitions.agents[name].description for name in _team(work).agents}


def _matched(work: Work, rule: Rule, number: int, text: str, warnings: list[str]) -> str | None:
    """The agent that a rule chooses, if it chooses one; a function that fails chooses nobody."""
    if rule.match is not None:
        return rule.agent if re.search(rule.match, text) else None
    try:
        answer: Any = tools.load(str(rule.function), tools.folder_here(work.definitions.folder))(text)
        if inspect.iscoroutine(answer):
            answer = asyncio.run_coroutine_threadsafe(answer, work.process.loop()).result()
    except Exception as error:  # noqa: BLE001  # whatever a user's function raises
        warnings.append(f"rule {number + 1} ({rule.function}) chooses nobody: {type(error).__name__}: {error}")
        return None
    agent = rule.agent if answer is True else answer
    if not agent or agent in _team(work).agents:
        return agent or None
    warnings.append(f"rule {number + 1} ({rule.function}) chooses {agent!r}, which is no agent of the team")
    return None


def _error_of_router(work: Work) -> Mapping[str, str] | None:
    """Why the router could not be asked, if it could not."""
    (info,) = work.process.ledger.infos(work.begun.run_id, [work.text_param("asked")])
    return cast("Mapping[str, str] | None", info.get("error"))


def _team(work: Work) -> Team:
    return work.definitions.teams[work.text_param("team")]


def _this(work: Work) -> str:
    """What refers to the output of this very step."""
    return f"{RAW}{work.begun.step_id}"
