"""Asks models on behalf of agents and synthesizers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from orchestrator.errors import ModelError, StepError
from orchestrator.models.definitions import Agent
from orchestrator.models.graph import Outcome
from orchestrator.models.values import JsonValue
from orchestrator.planning import templates
from orchestrator.state.ledger import to_json
from workers import llm
from workers.work import Work, text_input


async def agent_turn(work: Work) -> Outcome:
    """Asks an agent's model for one instruction."""
    agent = work.definitions.agents[work.text_param("agent")]
    turn = int(cast(int, work.params.get("turn", 0)))
    prompt, used = templates.instruct(agent.instructions[turn], text_input(work))
    last = turn == len(agent.instructions) - 1
    schema = agent.output.json_schema if agent.output and last else None
    model = work.definitions.model_of(agent.model)
    params: dict[str, JsonValue] = {**model.params, **agent.params}
    if agent.examples:
        params["examples"] = [{"text": example.input, "label": example.output} for example in agent.examples]
    reply = await llm.complete(model.model, _messages(agent, prompt), params=params, schema=schema, timeout_s=agent.timeout_s)
    warnings = () if used else (f"instruction {turn + 1} of agent {work.text_param('agent')!r} has no {{input}}, so its input is not used",)
    return _outcome(reply, _parsed(reply.text) if schema else reply.text, warnings)


async def team_synthesize(work: Work) -> Outcome:
    """Merges a broadcast's answers; if the model fails for good, the answers stand as they are, with a warning."""
    team = work.definitions.teams[work.text_param("team")]
    if team.synthesizer is None:
        raise StepError("the team has no synthesizer", code="internal")
    responses, warnings = responses_of(work)
    values = {"agent_responses": to_json(responses), "user_input": str(work.begun.inputs.get("@text", ""))}
    prompt = templates.fill(team.synthesizer.prompt, values)
    model = work.definitions.model_of(team.synthesizer.model)
    params = {**model.params, **team.synthesizer.params}
    messages: list[Mapping[str, JsonValue]] = [{"role": "user", "content": prompt}]
    try:
        reply = await llm.complete(model.model, messages, params=params, timeout_s=team.synthesizer.timeout_s)
    except ModelError as error:
        if error.retryable and work.begun.failures < work.begun.spec.retries:
            raise
        return Outcome(output=to_json(responses), warnings=(*warnings, f"the synthesizer failed, so the answers stand unmerged: {error}"))
    return _outcome(reply, reply.text, warnings)


def team_collect(work: Work) -> Outcome:
    """Gathers a broadcast's answers as a JSON object in text."""
    responses, warnings = responses_of(work)
    return Outcome(output=to_json(responses), warnings=warnings)


def responses_of(work: Work) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
    """Each agent's answer, or "Error: …", in declared order, and warnings for those that failed or came late.

    Raises StepError if none answered.
    """
    members = cast("dict[str, str]", work.params["members"])
    steps = work.process.ledger.answering(work.begun.run_id, list(members.values()))
    infos = work.process.ledger.infos(work.begun.run_id, steps)
    responses: dict[str, JsonValue] = {}
    errors: dict[str, str] = {}
    for name, info in zip(members, infos, strict=True):
        error = cast("dict[str, str] | None", info.get("error"))
        if error:
            errors[name] = error["message"]
        responses[name] = f"Error: {error['message']}" if error else work.begun.inputs.get(name)
    if len(errors) == len(members):
        said = "; ".join(f"{name}: {message}" for name, message in errors.items())
        raise StepError(f"every agent of the team failed: {said}", code="all_failed")
    return responses, tuple(f"agent {name!r} is missing: {message}" for name, message in errors.items())


def _messages(agent: Agent, prompt: str) -> list[Mapping[str, JsonValue]]:
    messages: list[Mapping[str, JsonValue]] = []
    if agent.system:
        messages.append({"role": "system", "content": agent.system})
    messages.append({"role": "user", "content": prompt})
    return messages


def _parsed(text: str) -> JsonValue:
    try:
        return cast(JsonValue, json.loads(text))
    except json.JSONDecodeError as error:
        raise ModelError(
            f"the model's reply is not the JSON asked for ({error}): {text[:200]!r}", code="bad_reply", retryable=True
        ) from error


def _outcome(reply: llm.Reply, output: JsonValue, warnings: tuple[str, ...]) -> Outcome:
    return Outcome(output=output, usage=reply.usage, warnings=warnings, detail={"model": reply.model, "finish": reply.finish_reason})
