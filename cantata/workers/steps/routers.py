"""Router calls: a model or a function. The router's reply is the output of the step, which `cantata/workers/steps/routing.py` reads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from cantata.errors import ModelError, StepError
from cantata.models.definitions import History, Model, Router, Team
from cantata.models.graph import Outcome
from cantata.models.values import JsonValue, Usage
from cantata.planning import templates
from cantata.planning.turns import choices, history
from cantata.workers.models.dialects.conversation import Message
from cantata.workers.models.model_calls import call_models, reply_detail
from cantata.workers.runtime.step_context import StepContext, as_text, text_input
from cantata.workers.steps import session_history
from cantata.workers.tools import functions

TIMEOUT_CODES = frozenset({"timeout", "model_timeout"})
"""The codes of errors of a router that took too long."""

CORRECTION = "Your reply cannot be used: {fault}. Reply with JSON only: {form}"


async def team_ask(context: StepContext) -> Outcome:
    """Call the routing model; its reply is the output."""
    team = team_of(context)
    settings = team.router or Router()
    named = settings.models[0] if settings.models else None
    first = named if isinstance(named, Model) else context.definitions.model_of(named)
    models = [_with_params(model, settings.params) for model in context.definitions.with_fallbacks(first)]
    messages, schema = await asyncio.to_thread(_messages, context, settings), None
    if models[0].model.startswith("local/") and team.strategy == "single_agent_dispatch":
        # the embedded model scores names; what it writes is seldom one of them
        messages, schema = [{"role": "user", "content": text_input(context)}], _names_schema(team.agents)
        models[0] = _with_params(models[0], {"examples": _examples(context)})
    try:
        reply = await call_models(context, models, messages, timeout_s=settings.timeout_s, schema=schema)
    except ModelError as error:
        if error.code in TIMEOUT_CODES:  # it is not retried in this step: the next step decides
            raise StepError(f"the router took longer than its {settings.timeout_s:g} s", code="timeout") from error
        raise
    return Outcome(output=reply.text, usage=reply.usage, detail=reply_detail(reply, messages))


def team_call(context: StepContext) -> Outcome:
    """Call the routing function with (user_input, history, agent_descriptions); its result is the output."""
    team = team_of(context)
    name = str((team.router or Router()).function)
    function = functions.load(name, context.folder)
    entries, _ = session_history.visible_entries(context, History(), max_tokens=team.max_history_tokens)
    messages = [{"role": entry.role, "content": entry.content} for entry in entries]
    output = functions.call(context, name, partial(function, text_input(context), messages, _descriptions(context)), {})
    return Outcome(output=output, usage=Usage(tool_calls=1))


def _messages(context: StepContext, settings: Router) -> Sequence[Message]:
    """Return the messages to a routing model; the second time also its reply, and what was wrong with it."""
    team = team_of(context)
    entries, is_any = session_history.visible_entries(context, History(), max_tokens=team.max_history_tokens)
    text, last = text_input(context), context.begun.inputs.get("@last")
    placeholders = {
        "user_input": text,
        "initial_user_request": as_text(context.begun.inputs.get("@request")),
        "last_step_output": choices.NO_STEP_YET if last is None else as_text(last),
        "history": history.as_lines(entries, is_any=is_any),
        "agent_details": choices.agent_details(_descriptions(context)),
    }
    prompt = templates.fill(settings.template(team.strategy) or choices.DEFAULT_TEMPLATES[team.strategy], placeholders)
    messages: list[Message] = [{"role": "user", "content": templates.instruct(str(settings.instructions[1]), prompt)[0]}]
    if "fault" in context.params:
        reply = context.begun.inputs.get("@reply")
        correction = templates.fill(CORRECTION, {"fault": context.text_param("fault"), "form": choices.REPLY_FORMS[team.strategy]})
        messages += [{"role": "assistant", "content": as_text(reply)}] if reply else []
        messages.append({"role": "user", "content": correction})
    return messages


def _with_params(model: Model, params: Mapping[str, JsonValue]) -> Model:
    return model.model_copy(update={"params": {**model.params, **params}})


def _names_schema(names: Sequence[str]) -> dict[str, JsonValue]:
    return {"type": "object", "properties": {"chosen_agent": {"enum": list(names)}}, "required": ["chosen_agent"]}


def _examples(context: StepContext) -> list[JsonValue]:
    return [{"text": description or name, "label": name} for name, description in _descriptions(context).items()]


def _descriptions(context: StepContext) -> dict[str, str]:
    return {name: context.definitions.agents[name].description for name in team_of(context).agents}


def team_of(context: StepContext) -> Team:
    """Return the team that a step belongs to."""
    return context.definitions.teams[context.text_param("team")]
