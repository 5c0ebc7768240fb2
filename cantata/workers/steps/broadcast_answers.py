"""The answers of a broadcast team: collected, or merged by a synthesizer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from cantata.errors import ModelError, StepError
from cantata.models.graph import Outcome
from cantata.models.values import JsonValue
from cantata.planning import templates
from cantata.state.ledger.encoding import to_json
from cantata.workers.models.model_calls import call_models, reply_detail
from cantata.workers.runtime.step_context import StepContext


async def team_synthesize(context: StepContext) -> Outcome:
    """Merge a broadcast's answers with a model; if it fails for good, return the answers unmerged, with a warning."""
    synthesizer = context.definitions.teams[context.text_param("team")].synthesizer
    assert synthesizer is not None
    responses, warnings = await asyncio.to_thread(responses_of, context)
    values = {"agent_responses": to_json(responses), "user_input": str(context.begun.inputs.get("@text", ""))}
    messages: list[Mapping[str, JsonValue]] = [{"role": "user", "content": templates.fill(synthesizer.prompt, values)}]
    models = context.definitions.with_fallbacks(context.definitions.model_of(synthesizer.model))
    models = [model.model_copy(update={"params": {**model.params, **synthesizer.params}}) for model in models]
    try:
        reply = await call_models(context, models, messages, timeout_s=synthesizer.timeout_s)
    except ModelError as error:
        if error.retryable and context.begun.failures < context.begun.spec.retries:
            raise
        warning = f"the synthesizer failed, so the answers are not merged: {error}"
        return Outcome(output=to_json(responses), warnings=(*warnings, warning), detail={"unmerged": str(error)})
    return Outcome(output=reply.text, usage=reply.usage, warnings=warnings, detail=reply_detail(reply, messages))


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
