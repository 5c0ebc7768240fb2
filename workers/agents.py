"""Asks models on behalf of agents and synthesizers, in rounds: a turn of the model, the tools it calls, the next turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import cast

from orchestrator.errors import ModelError, StepError
from orchestrator.models.definitions import Model
from orchestrator.models.graph import Graph, Outcome
from orchestrator.models.instructions import AgenticStep
from orchestrator.models.values import JsonValue, ToolSchema
from orchestrator.planning import templates
from orchestrator.planning.strategies.agents import next_round, tool_step
from orchestrator.state.ledger import to_json
from workers import llm
from workers.deltas import Deltas
from workers.dialects import notes
from workers.dialects.calls import Call, Said, calls_of
from workers.dialects.messages import Message
from workers.dialects.names import resolve
from workers.dialects.results import agentic_result
from workers.dialects.rounds import Round
from workers.leave import leave_to_ask
from workers.turns import Turn
from workers.work import Work

NO_WORKFLOW = "This tool has no workflow of its own; name one of its methods, with params."


async def agent_turn(work: Work) -> Outcome:
    """Asks an agent's model for one instruction; grows the tool calls that it asks for, and the turn that follows them."""
    turn = await asyncio.to_thread(Turn.read, work)
    if turn.rounds and turn.agent.response_mode == "streaming":
        return Outcome(output=_as_it_came(turn))
    known = await turn.tools()
    prompt, uses_input = turn.prompt()
    reply = await _ask(work, turn, turn.messages(prompt, known), known)
    said = calls_of(reply.text, reply.tool_calls) if known or turn.agent.dialect == "json" else Said(reply.text)
    detail: dict[str, JsonValue] = {"model": reply.model, "finish": reply.finish_reason}
    if reply.cached:
        detail["cached"] = True
    warnings = () if uses_input or turn.rounds else (_unused(turn),)
    outcome = _go_on(turn, reply, said, known) if not turn.is_closing else None
    outcome = outcome or _end(turn, reply, said)
    return outcome.model_copy(
        update={"usage": reply.usage, "detail": {**detail, **outcome.detail}, "warnings": (*outcome.warnings, *warnings)}
    )


def _go_on(turn: Turn, reply: llm.Reply, said: Said, known: tuple[ToolSchema, ...]) -> Outcome | None:
    """Another round: for the tools that were called, or because the reply is empty or not what was asked for; None if it is the answer."""
    agentic = isinstance(turn.instruction, AgenticStep)
    if said.calls:
        names = [tool.name for tool in known]
        calls = tuple(_without_workflow(resolve(call, names)) for call in said.calls)
        is_over = turn.count("calls") + 1 >= turn.most_tool_rounds
        return _round(turn, reply, Round(calls=calls, note=notes.rounds_over(turn.most_tool_rounds) if is_over else ""))
    if agentic and not reply.text.strip():
        most = cast(AgenticStep, turn.instruction).max_internal_steps
        is_over = turn.count("nudge") + 1 >= most
        return _round(turn, reply, Round(kind="nudge", note=notes.steps_over(most) if is_over else notes.nudge()))
    if turn.schema() is not None:
        try:
            turn.parsed(reply.text)
        except ValueError as error:
            trials = turn.agent.output.trials if turn.agent.output else 0
            if turn.count("correction") >= trials:
                raise StepError(
                    f"the model's reply is not what was asked for, after {trials} corrections: {error}", code="bad_reply"
                ) from None
            return _round(turn, reply, Round(kind="correction", note=notes.correction(str(error))))
    return None


def _round(turn: Turn, reply: llm.Reply, done: Round) -> Outcome:
    """The outcome of a turn that another follows."""
    work = turn.work
    done = done.model_copy(update={"reply": reply.text, "usage": reply.usage})
    calls = [
        tool_step(f"{work.begun.step_id}/t{number}", call.name, call.arguments or {}, work.definitions)
        for number, call in enumerate(done.calls)
        if not call.fault
    ]
    fragment: Graph = next_round(work.begun.step_id, work.begun.spec, len(turn.rounds) + 1, calls)
    return Outcome(output=done.to_json(), fragment=fragment)


def _end(turn: Turn, reply: llm.Reply, said: Said) -> Outcome:
    """The answer."""
    output: JsonValue = said.response
    if turn.schema() is not None:
        output = turn.parsed(reply.text)
    elif not reply.text.strip():
        raise StepError(
            f"agent {turn.name!r} gave no answer within its {turn.most_tool_rounds} rounds of tool calls", code="exhausted"
        )  # fmt: skip
    if not isinstance(turn.instruction, AgenticStep):
        return Outcome(output=output)
    last = Round(reply=reply.text, usage=reply.usage)
    result = agentic_result(
        output, [*turn.rounds, last], [*turn.answers, ()], history_mode=turn.instruction.history_mode, max_steps_reached=turn.is_closing
    )
    return Outcome(output=output, detail={"agentic": result})


def _as_it_came(turn: Turn) -> str:
    """The reply that called tools, and what they gave, without asking the model again. Source: LangSwarm, `response_mode: streaming`."""
    last, answers = turn.rounds[-1], turn.answers[-1]
    said = calls_of(last.reply).response
    parts = [said if isinstance(said, str) else to_json(said)]
    for call, answer in zip(last.calls, answers, strict=True):
        error = call.fault or answer.error
        parts.append(f"Tool error: {error}" if error else f"[Tool executed successfully]\n\n{to_json(answer.value)}")
    return "\n\n".join(part for part in parts if part)


def _without_workflow(call: Call) -> Call:
    return call.model_copy(update={"fault": NO_WORKFLOW}) if call.intent and not call.fault else call


def _unused(turn: Turn) -> str:
    return f"instruction {turn.number + 1} of agent {turn.name!r} has no {{input}}, so its input is not used"


async def _ask(work: Work, turn: Turn, messages: list[Message], known: tuple[ToolSchema, ...]) -> llm.Reply:
    schema = turn.schema() if not known or turn.is_closing else None
    native = known if turn.agent.dialect == "native" else ()
    choice = "none" if native and turn.is_closing else None

    async def asked(model: Model) -> llm.Reply:
        async with leave_to_ask(work, model, messages) as leave, Deltas(work) as deltas:
            leave.reply = await llm.cached(
                work.process.ledger.redis, model, messages, schema=schema, tools=native, tool_choice=choice,
                timeout_s=turn.agent.timeout_s, on_delta=deltas.add if work.params.get("stream") else None,
                allow_empty=isinstance(turn.instruction, AgenticStep) or turn.is_closing, fresh=bool(turn.count("correction")),
            )  # fmt: skip
            return leave.reply

    return await _with_fallbacks(work, turn.models(), asked)


async def _with_fallbacks(work: Work, models: list[Model], asked: Callable[[Model], object]) -> llm.Reply:
    """The first model's reply; another model's if it fails and no try is left, or none would help."""
    left = work.begun.failures < work.begun.spec.retries

    async def tried(model: Model) -> llm.Reply:
        try:
            return await asked(model)  # type: ignore[no-any-return,misc]  # a coroutine
        except ModelError as error:
            if left and error.retryable and model is models[0]:
                raise _Again(error) from None
            raise

    try:
        return await llm.ask(models, tried)
    except _Again as again:
        raise again.error from None


class _Again(Exception):
    """The first model is asked again later, before any other."""

    def __init__(self, error: ModelError) -> None:
        super().__init__(str(error))
        self.error = error


async def team_synthesize(work: Work) -> Outcome:
    """Merges a broadcast's answers; if the model fails for good, the answers stand as they are, with a warning."""
    team = work.definitions.teams[work.text_param("team")]
    if team.synthesizer is None:
        raise StepError("the team has no synthesizer", code="internal")
    responses, warnings = await asyncio.to_thread(responses_of, work)
    values = {"agent_responses": to_json(responses), "user_input": str(work.begun.inputs.get("@text", ""))}
    prompt = templates.fill(team.synthesizer.prompt, values)
    model = work.definitions.model_of(team.synthesizer.model)
    params = {**model.params, **team.synthesizer.params}
    messages: list[Mapping[str, JsonValue]] = [{"role": "user", "content": prompt}]
    try:
        async with leave_to_ask(work, model, messages) as leave:
            leave.reply = reply = await llm.complete(model.model, messages, params=params, timeout_s=team.synthesizer.timeout_s)
    except ModelError as error:
        if error.retryable and work.begun.failures < work.begun.spec.retries:
            raise
        return Outcome(output=to_json(responses), warnings=(*warnings, f"the synthesizer failed, so the answers stand unmerged: {error}"))
    detail: dict[str, JsonValue] = {"model": reply.model, "finish": reply.finish_reason}
    return Outcome(output=reply.text, usage=reply.usage, warnings=warnings, detail=detail)


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
