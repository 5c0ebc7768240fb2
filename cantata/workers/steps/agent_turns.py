"""Has agents take their turns: the model is asked, the tools it calls are grown with the next turn behind them, till it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from cantata.errors import StepError
from cantata.models.graph import Outcome
from cantata.models.instructions import AgenticStep
from cantata.models.values import JsonValue, ToolSchema
from cantata.planning.turns.agent_steps import next_round, tool_step
from cantata.state.ledger.encoding import to_json
from cantata.workers.models import llm, prompt_record
from cantata.workers.models.dialects import followup_prompts
from cantata.workers.models.dialects.agentic_results import agentic_result
from cantata.workers.models.dialects.call_parsing import ParsedCall, ParsedReply, calls_of
from cantata.workers.models.dialects.rounds import ModelRound
from cantata.workers.models.dialects.tool_lookup import resolve
from cantata.workers.models.model_calls import call_models
from cantata.workers.runtime.step_context import StepContext
from cantata.workers.steps.model_turns import ModelTurn

NOT_WHOLE = ("length", "content_filter")  # why a model stopped before it was done
NO_WORKFLOW = "This tool has no workflow of its own; name one of its methods, with params."


async def agent_turn(context: StepContext) -> Outcome:
    """Asks an agent's model for one instruction; grows the tool calls that it asks for, and the turn that follows them."""
    turn = await asyncio.to_thread(ModelTurn.read, context)
    if turn.agent.response_mode == "streaming" and turn.rounds and turn.rounds[-1].calls:
        return Outcome(output=_as_it_came(turn))
    known = await turn.tools()
    since = time.perf_counter()
    reply = await _ask(turn, known)
    ms = round((time.perf_counter() - since) * 1000, 1)
    return await asyncio.to_thread(_outcome, turn, reply, known, ms)


async def _ask(turn: ModelTurn, known: tuple[ToolSchema, ...]) -> llm.Reply:
    schema = await asyncio.to_thread(lambda: turn.shape.schema if turn.shape else None)  # it may import a user's module
    native = known if turn.agent.dialect == "native" else ()
    return await call_models(
        turn.context, turn.models(), turn.messages(known), stream=turn.is_streamed, timeout_s=turn.agent.timeout_s,
        tools=native, tool_choice="none" if native and turn.is_closing else None, schema=None if known else schema,
        allow_empty=isinstance(turn.instruction, AgenticStep) or turn.is_closing, fresh=turn.count("correction") > 0,
    )  # fmt: skip


def _outcome(turn: ModelTurn, reply: llm.Reply, known: Sequence[ToolSchema], ms: float) -> Outcome:
    """What comes of a reply: another round, or the answer."""
    is_json = turn.agent.dialect == "json"
    said = calls_of(reply.text, reply.tool_calls) if known or is_json else ParsedReply(reply.text)
    if not (is_json or said.calls):
        said = ParsedReply(reply.text)  # to a model that calls natively, a JSON object is an answer like any other
    another = _another(turn, reply, said, known)
    told: dict[str, object] = {} if turn.rounds else {"memory": dict(turn.memory)}
    done = (another or ModelRound()).model_copy(update={"reply": reply.text, "usage": reply.usage, "ms": ms, **told})
    outcome = _round(turn, done) if another else _end(turn, said, done)
    detail: dict[str, JsonValue] = {"model": reply.model, "finish": reply.finish_reason, **({"cached": True} if reply.cached else {})}
    if not turn.rounds:
        detail["prompt"] = prompt_record.recorded(turn.messages(known))
    warnings = () if turn.rounds else tuple(_odd(turn))
    if reply.finish_reason in NOT_WHOLE:
        warnings = (*warnings, f"a reply to agent {turn.name!r} is not whole: the model stopped for {reply.finish_reason!r}")
    return outcome.model_copy(update={"usage": reply.usage, "detail": {**detail, **outcome.detail}, "warnings": warnings})


def _another(turn: ModelTurn, reply: llm.Reply, said: ParsedReply, known: Sequence[ToolSchema]) -> ModelRound | None:
    """Why the model is asked again, and what it is told: it called tools, said nothing, or not what was asked for. None if it answered."""
    if said.calls and not turn.is_closing:
        names = [tool.name for tool in known]
        calls = tuple(_without_workflow(resolve(call, names)) for call in said.calls)
        is_over = turn.count("calls") + 1 >= turn.most_tool_rounds
        return ModelRound(calls=calls, note=followup_prompts.rounds_over(turn.most_tool_rounds) if is_over else "")
    if _is_empty(said.response):
        if not isinstance(turn.instruction, AgenticStep) or turn.is_closing:
            return None
        is_over = turn.count("nudge") + 1 >= turn.most_steps
        return ModelRound(kind="nudge", note=followup_prompts.steps_over(turn.most_steps) if is_over else followup_prompts.nudge())
    if turn.shape is None or (fault := turn.shape.fault_of(said, reply.text)) is None:
        return None
    trials = turn.shape.output.trials
    if turn.count("correction") >= trials:
        raise StepError(f"the model's reply is not what was asked for, after {trials} corrections: {fault}", code="bad_reply")
    return ModelRound(kind="correction", note=followup_prompts.correction(fault))


def _round(turn: ModelTurn, done: ModelRound) -> Outcome:
    """The outcome of a turn that another follows."""
    begun = turn.context.begun
    calls = [
        tool_step(f"{begun.step_id}/t{number}", call.name, call.arguments or {}, turn.context.definitions)
        for number, call in enumerate(done.calls)
        if not call.fault
    ]
    fragment = next_round(begun.step_id, begun.spec, len(turn.rounds) + 1, calls, given=begun.given)
    return Outcome(output=done.to_json(), fragment=fragment)


def _end(turn: ModelTurn, said: ParsedReply, last: ModelRound) -> Outcome:
    """The answer."""
    if _is_empty(said.response):
        if not turn.is_closing:
            raise StepError(f"the model of agent {turn.name!r} answered nothing", code="model_empty", retryable=True)
        raise StepError(f"agent {turn.name!r} gave no answer within its {turn.bound}", code="exhausted")
    output = turn.shape.parsed(said, last.reply) if turn.shape else said.response
    if not isinstance(turn.instruction, AgenticStep):
        return Outcome(output=output)
    result = agentic_result(
        output, [*turn.rounds, last], [*turn.answers, ()], history_mode=turn.instruction.history_mode, max_steps_reached=turn.is_closing
    )
    return Outcome(output=output, detail={"agentic": result})


def _as_it_came(turn: ModelTurn) -> str:
    """The reply that called tools, and what they gave, without asking the model again. Source: LangSwarm, `response_mode: streaming`."""
    last, answers = turn.rounds[-1], turn.answers[-1]
    said = calls_of(last.reply).response
    parts = [said if isinstance(said, str) else to_json(said)]
    for call, answer in zip(last.calls, answers, strict=True):
        error = call.fault or answer.error
        parts.append(f"Tool error: {error}" if error else f"[Tool executed successfully]\n\n{to_json(answer.value)}")
    return "\n\n".join(part for part in parts if part)


def _without_workflow(call: ParsedCall) -> ParsedCall:
    return call.model_copy(update={"fault": NO_WORKFLOW}) if call.intent and not call.fault else call


def _is_empty(response: JsonValue) -> bool:
    return response is None or (isinstance(response, str) and not response.strip())


def _odd(turn: ModelTurn) -> Iterator[str]:
    """What is to be said of an instruction once."""
    what = f"instruction {turn.number + 1} of agent {turn.name!r}"
    if not turn.uses_input:
        yield f"{what} has no {{input}}, so its input is not used"
    for name in turn.forgotten:
        yield f"{what}: nothing is remembered under {{{name}}}, so it is left empty"
