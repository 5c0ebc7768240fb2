"""Calls of a team: its router, a model or a function, and the synthesizer or the collection of a broadcast's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from cantata.errors import ModelError, StepError
from cantata.flows.definitions import History, Model, Router, Team
from cantata.flows.expressions import templates
from cantata.flows.graph import Outcome
from cantata.flows.turns import choices, history
from cantata.ledger.encoding import to_json
from cantata.values import JsonValue, Usage
from cantata_workers.models.dialects.conversation import Message
from cantata_workers.models.model_calls import call_models, reply_detail
from cantata_workers.process.step_context import StepContext, as_compact_text, handles, text_input
from cantata_workers.steps import session_history
from cantata_workers.tools import functions

TIMEOUT_CODES = frozenset({"timeout", "model_timeout"})
"""The codes of errors of a router that took too long."""

CORRECTION = "Your reply cannot be used: {fault}. Reply with JSON only: {form}"


@handles("team.ask")
async def team_ask(context: StepContext) -> Outcome:
    """Call the routing model; its reply is the output."""
    team = team_of(context)
    settings = team.router or Router()
    named = settings.models[0] if settings.models else None
    first = named if isinstance(named, Model) else context.definitions.model_of(named)
    models = [_with_params(model, settings.params) for model in context.definitions.with_fallbacks(first)]
    messages = await asyncio.to_thread(_messages, context, settings)
    schema: dict[str, JsonValue] | None = None
    if models[0].model.startswith("local/") and team.strategy == "single_agent_dispatch":
        # the embedded model scores names; what it writes is seldom one of them
        messages = [{"role": "user", "content": text_input(context)}]
        schema = {
            "type": "object",
            "properties": {"chosen_agent": {"enum": [*team.agents]}},
            "required": ["chosen_agent"],
        }
        examples: list[JsonValue] = [
            {"text": text or name, "label": name} for name, text in _descriptions(context).items()
        ]
        models[0] = _with_params(models[0], {"examples": examples})
    try:
        reply = await call_models(context, models, messages, timeout_s=settings.timeout_s, schema=schema)
    except ModelError as error:
        if error.code in TIMEOUT_CODES:  # it is not retried in this step: the next step decides
            raise StepError(f"the router took longer than its {settings.timeout_s:g} s", code="timeout") from error
        raise
    return Outcome(output=reply.text, usage=reply.usage, detail=reply_detail(reply, messages))


@handles("team.call")
def team_call(context: StepContext) -> Outcome:
    """Call the routing function with (user_input, history, agent_descriptions); its result is the output."""
    team = team_of(context)
    name = str((team.router or Router()).function)
    function = functions.load_for(name, context)
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
        "initial_user_request": as_compact_text(context.begun.inputs.get("@request")),
        "last_step_output": choices.NO_STEP_YET if last is None else as_compact_text(last),
        "history": history.as_lines(entries, is_any=is_any),
        "agent_details": choices.agent_details(_descriptions(context)),
    }
    prompt = templates.fill(settings.template(team.strategy) or choices.DEFAULT_TEMPLATES[team.strategy], placeholders)
    messages: list[Message] = [
        {"role": "user", "content": templates.instruct(str(settings.instructions[1]), prompt)[0]}
    ]
    if "fault" in context.params:
        reply = context.begun.inputs.get("@reply")
        correction = templates.fill(
            CORRECTION, {"fault": context.text_param("fault"), "form": choices.REPLY_FORMS[team.strategy]}
        )
        messages += [{"role": "assistant", "content": as_compact_text(reply)}] if reply else []
        messages.append({"role": "user", "content": correction})
    return messages


def _with_params(model: Model, params: Mapping[str, JsonValue]) -> Model:
    return model.model_copy(update={"params": {**model.params, **params}})


def _descriptions(context: StepContext) -> dict[str, str]:
    return {name: context.definitions.agents[name].description for name in team_of(context).agents}


def team_of(context: StepContext) -> Team:
    """Return the team that a step belongs to."""
    return context.definitions.teams[context.text_param("team")]


@handles("team.synthesize")
async def team_synthesize(context: StepContext) -> Outcome:
    """Merge a broadcast's answers with a model; if it fails for good, return the answers unmerged, with a warning."""
    synthesizer = team_of(context).synthesizer
    assert synthesizer is not None
    responses, warnings = await asyncio.to_thread(responses_of, context)
    values = {"agent_responses": to_json(responses), "user_input": str(context.begun.inputs.get("@text", ""))}
    messages: list[Mapping[str, JsonValue]] = [{"role": "user", "content": templates.fill(synthesizer.prompt, values)}]
    first = context.definitions.model_of(synthesizer.model)
    models = [_with_params(model, synthesizer.params) for model in context.definitions.with_fallbacks(first)]
    try:
        reply = await call_models(context, models, messages, timeout_s=synthesizer.timeout_s)
    except ModelError as error:
        if error.retryable and context.begun.failures < context.begun.spec.retries:
            raise
        warning = f"the synthesizer failed, so the answers are not merged: {error}"
        return Outcome(output=to_json(responses), warnings=(*warnings, warning), detail={"unmerged": str(error)})
    return Outcome(output=reply.text, usage=reply.usage, warnings=warnings, detail=reply_detail(reply, messages))


@handles("team.collect")
def team_collect(context: StepContext) -> Outcome:
    """Collect a broadcast's answers as a JSON object in text."""
    responses, warnings = responses_of(context)
    return Outcome(output=to_json(responses), warnings=warnings)


def responses_of(context: StepContext) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
    """Return each agent's answer, or "Error: …", in declared order, and warnings for those that failed or missed the deadline.

    Raises StepError if none answered.
    """
    members = cast("dict[str, str]", context.params["members"])
    steps = context.process.ledger.reader.answering(context.begun.run_id, list(members.values()))
    infos = context.process.ledger.reader.infos(context.begun.run_id, steps)
    responses: dict[str, JsonValue] = {}
    errors: dict[str, str] = {}
    for name, info in zip(members, infos, strict=True):
        error = cast("dict[str, str] | None", info.get("error"))
        if error:
            errors[name] = error["message"]
        responses[name] = f"Error: {error['message']}" if error else context.begun.inputs.get(name)
    if len(errors) == len(members):
        messages = "; ".join(f"{name}: {message}" for name, message in errors.items())
        raise StepError(f"every agent of the team failed: {messages}", code="all_failed")
    return responses, tuple(f"agent {name!r} is missing: {message}" for name, message in errors.items())
