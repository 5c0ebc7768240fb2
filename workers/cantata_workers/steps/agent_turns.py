"""Rounds of an agent's model: each round calls the model and expands to its tool calls and the next round, until it answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import structlog

from cantata.errors import StepError
from cantata.flows.expressions import json_repair
from cantata.flows.graph import Outcome
from cantata.flows.instructions import AgenticStep
from cantata.flows.provider_schemas import fit_tools
from cantata.flows.turns.agent_steps import next_round, tool_step
from cantata.ledger.encoding import to_json
from cantata.values import JsonValue, ToolSchema
from cantata_workers.models import llm
from cantata_workers.models.dialects import conversation
from cantata_workers.models.dialects.call_parsing import ParsedCall, ParsedReply, calls_of, resolve
from cantata_workers.models.dialects.conversation import ModelRound, agentic_result
from cantata_workers.models.model_calls import call_models, recorded_prompt
from cantata_workers.process.step_context import StepContext, as_compact_text, handles
from cantata_workers.steps.model_turns import ModelTurn, unreadable_tools

log = structlog.get_logger(__name__)

TRUNCATED = ("length",)  # finish reasons of incomplete replies
TRUNCATED_JSON = "it ends in the middle of its JSON object"
NO_WORKFLOW = "This tool has no workflow of its own; name one of its methods, with params."


@handles("agent.turn")
def agent_turn(context: StepContext) -> Outcome:
    """Call an agent's model for one instruction; expand to the tool calls that it requests, and to the round that follows them."""
    turn = ModelTurn.read(context)
    if turn.agent.response_mode == "streaming" and turn.rounds and turn.rounds[-1].calls:
        return Outcome(output=_streaming_output(turn))
    known = turn.tools()
    started_at = time.perf_counter()
    reply = _call_model(turn, known)
    ms = round((time.perf_counter() - started_at) * 1000, 1)
    return outcome_of(turn, reply, known, ms)


def _call_model(turn: ModelTurn, known: tuple[ToolSchema, ...]) -> llm.Reply:
    schema = turn.validator.schema if turn.validator else None
    native = known if turn.agent.dialect == "native" else ()
    return turn.context.wait_for(
        call_models(
            turn.context,
            turn.models(),
            turn.messages(known),
            stream=turn.is_streamed,
            timeout_s=turn.agent.timeout_s,
            tools=native,
            tool_choice="none" if native and turn.is_closing else None,
            schema=None if known else schema,
            allow_empty=isinstance(turn.instruction, AgenticStep) or turn.is_closing,
            fresh=turn.count("correction") > 0,
            fallback_on=turn.agent.fallback_on,
        )
    )


def outcome_of(turn: ModelTurn, reply: llm.Reply, known: Sequence[ToolSchema], ms: float) -> Outcome:
    """Return the outcome of a reply: another round, or the answer."""
    is_json = turn.agent.dialect == "json"
    is_cut = reply.finish_reason in TRUNCATED
    parsed = (
        calls_of(reply.text, reply.tool_calls, is_incomplete=is_cut) if known or is_json else ParsedReply(reply.text)
    )
    if not (is_json or parsed.calls):  # to a model that calls natively, a JSON object is an answer like any other
        is_truncated = (
            is_cut and turn.validator is not None and json_repair.is_truncated(reply.text, (), is_incomplete=True)
        )
        parsed = ParsedReply(reply.text, is_truncated=is_truncated)
    if reply.tool_calls and not known and _is_empty(parsed.response):
        names = ", ".join(repr(call.name) for call in reply.tool_calls)
        raise StepError(
            f"the model called {names}, and agent {turn.name!r} has no tools", code="model_empty", retryable=True
        )
    another = _another_round(turn, reply, parsed, known)
    memory: dict[str, object] = {} if turn.rounds else {"memory": dict(turn.memory)}
    done = (another or ModelRound()).model_copy(update={"reply": reply.text, "usage": reply.usage, "ms": ms, **memory})
    outcome = _expanded(turn, done) if another else _answered(turn, parsed, done)
    detail: dict[str, JsonValue] = {"model": reply.model, "finish": reply.finish_reason, "request": dict(reply.request)}
    if reply.reasoning:
        detail["reasoning"] = reply.reasoning.model_dump(mode="json", exclude_defaults=True)
    if reply.cached:
        detail["cached"] = True
    if not turn.rounds:
        detail["prompt"] = recorded_prompt(turn.messages(known))
    warnings = () if turn.rounds else (*_instruction_warnings(turn), *_tool_warnings(turn, known))
    if is_cut:
        warnings = (
            *warnings,
            f"a reply to agent {turn.name!r} is incomplete: its finish reason is {reply.finish_reason!r}",
        )
    if parsed.calls and turn.is_closing:
        names = ", ".join(repr(call.name) for call in parsed.calls)
        warnings = (
            *warnings,
            f"agent {turn.name!r} calls {names} in its closing reply, after which no call is made: it was dropped",
        )
    return outcome.model_copy(
        update={"usage": reply.usage, "detail": {**detail, **outcome.detail}, "warnings": warnings}
    )


def _another_round(
    turn: ModelTurn, reply: llm.Reply, parsed: ParsedReply, known: Sequence[ToolSchema]
) -> ModelRound | None:
    """Return the next round after a reply with calls, without text, or that is no valid answer; None if the model answered."""
    if parsed.calls and not turn.is_closing:
        names = [tool.name for tool in known]
        calls = tuple(_without_workflow(resolve(call, names)) for call in parsed.calls)
        is_last = turn.count("calls") + 1 >= turn.max_tool_rounds
        return ModelRound(
            calls=calls, note=conversation.ROUNDS_EXHAUSTED.format(turn.max_tool_rounds) if is_last else ""
        )
    if _is_empty(parsed.response):
        if not isinstance(turn.instruction, AgenticStep) or turn.is_closing:
            return None
        is_last = turn.count("nudge") + 1 >= turn.max_steps
        note = conversation.STEPS_EXHAUSTED.format(turn.max_steps) if is_last else conversation.EMPTY_REPLY
        return ModelRound(kind="nudge", note=note)
    fault = (
        TRUNCATED_JSON
        if parsed.is_truncated
        else turn.validator.fault_of(parsed, reply.text)
        if turn.validator
        else None
    )
    if fault is None:
        return None
    trials = turn.validator.output.trials if turn.validator else 1
    if turn.count("correction") >= trials:
        raise StepError(f"the model's reply is invalid after {trials} corrections: {fault}", code="bad_reply")
    return ModelRound(kind="correction", note=conversation.CORRECTION.format(fault))


def _expanded(turn: ModelTurn, done: ModelRound) -> Outcome:
    """Return the outcome of a round that expands to its tool calls and the next round."""
    begun = turn.context.begun
    calls = [
        tool_step(f"{begun.step_id}/t{number}", call.name, call.arguments or {}, turn.context.definitions)
        for number, call in enumerate(done.calls)
        if not call.fault
    ]
    fragment = next_round(begun.step_id, begun.spec, len(turn.rounds) + 1, calls, given=begun.given)
    return Outcome(output=done.to_json(), fragment=fragment)


def _answered(turn: ModelTurn, parsed: ParsedReply, last: ModelRound) -> Outcome:
    """Return the outcome of the last round: the answer."""
    if _is_empty(parsed.response):
        if not turn.is_closing:
            raise StepError(f"the model of agent {turn.name!r} gave an empty reply", code="model_empty", retryable=True)
        used_up = (
            f"{turn.max_steps} steps"
            if turn.count("nudge") >= turn.max_steps
            else f"{turn.max_tool_rounds} rounds of tool calls"
        )
        raise StepError(f"agent {turn.name!r} gave no answer within its {used_up}", code="exhausted")
    output = turn.validator.parsed(parsed, last.reply) if turn.validator else parsed.response
    if not isinstance(turn.instruction, AgenticStep):
        return Outcome(output=output)
    mode = turn.instruction.history_mode
    result = agentic_result(output, [*turn.rounds, last], [*turn.answers, ()], mode, max_steps_reached=turn.is_closing)
    return Outcome(output=output, detail={"agentic": result})


def _streaming_output(turn: ModelTurn) -> str:
    """Return the last reply and the results of its calls, without another model call, as `response_mode: streaming` asks."""
    last, answers = turn.rounds[-1], turn.answers[-1]
    response = calls_of(last.reply).response
    parts = [as_compact_text(response)]
    for _, result in last.results(answers):
        parts.append(
            f"Tool error: {result.error}"
            if result.error
            else f"[Tool executed successfully]\n\n{to_json(result.value)}"
        )
    return "\n\n".join(part for part in parts if part)


def _without_workflow(call: ParsedCall) -> ParsedCall:
    return call.model_copy(update={"fault": NO_WORKFLOW}) if call.intent and not call.fault else call


def _is_empty(response: JsonValue) -> bool:
    return response is None or (isinstance(response, str) and not response.strip())


def _tool_warnings(turn: ModelTurn, known: Sequence[ToolSchema]) -> Iterator[str]:
    """Yield a warning for each tool that the agent's model is not offered: MCP server or provider have no schema for it."""
    model = turn.models()[0]
    provider = llm.provider_of(model.model, model.params)
    unfit = fit_tools(known, provider).left_out if turn.agent.dialect == "native" else {}
    for name, reason in {**unreadable_tools(turn), **unfit}.items():
        log.warning("tool_not_offered", agent=turn.name, tool=name, reason=reason)
        yield f"agent {turn.name!r} is not offered tool {name!r}: {reason}"


def _instruction_warnings(turn: ModelTurn) -> Iterator[str]:
    """Yield the warnings of an instruction, which the first round records."""
    subject = f"instruction {turn.number + 1} of agent {turn.name!r}"
    if not turn.uses_input:
        yield f"{subject} has no {{input}}, so its input is not used"
    for name, text in turn.memory.items():
        if text is None:
            yield f"{subject}: there is no memory {{{name}}}, so it is left empty"
