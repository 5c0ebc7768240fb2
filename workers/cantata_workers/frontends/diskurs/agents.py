"""An agent's turn: its prompts, the calls of its model, the reading of replies, and its end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from cantata.flows.definitions import Model
from cantata.flows.graph import Outcome
from cantata.flows.turns.agent_steps import next_round
from cantata.flows.turns.history import estimate_tokens
from cantata.values import ErrorInfo, JsonValue, ToolSchema
from cantata_frontends.diskurs import handovers
from cantata_frontends.diskurs.conversation_config import FINALIZERS, ConversationAgent, ConversationModel
from cantata_frontends.diskurs.handovers import AgentTurn
from cantata_workers.frontends.diskurs import conversation_state, plans, tool_calling
from cantata_workers.frontends.diskurs.conversation_state import ConversationState, Utterance, utterances_in
from cantata_workers.frontends.diskurs.replies import ReplyError
from cantata_workers.frontends.diskurs.user_code import code_loading, fields
from cantata_workers.frontends.diskurs.user_code.prompt_rendering import Prompter, memory_class, memory_key
from cantata_workers.models import llm
from cantata_workers.models.dialects.call_parsing import ParsedCall, calls_of, resolve
from cantata_workers.models.dialects.conversation import ROUNDS_EXHAUSTED, Message, ModelRound, conversation
from cantata_workers.models.model_calls import call_models, recorded_prompt
from cantata_workers.process.step_context import StepContext, handles, text_input

CALL_TIMEOUT_S = 60.0
MAX_TOOL_ROUNDS = 25
"""Rounds of tool calls before the model must answer without tools."""
NO_ANSWER = "No valid answer found after {max_trials} trials."


@handles("diskurs.open")
def diskurs_open(context: StepContext) -> Outcome:
    """Begin a run: initialise the long-term memories with the user's text and what earlier turns of the session stored."""
    config, text = code_loading.config_of(context), text_input(context)
    warnings = [warning for name in config.agents for warning in Prompter(context, name).check_names()]
    conductors = [name for name, agent in config.agents.items() if agent.kind == "conductor"]
    known = [config.memory_of(name) for name in conductors] or [config.memory]
    stored, reset = conversation_state.load_memories(context), _per_turn(context)
    memories = {}
    for found in known:
        begun = fields.blank(memory_class(context, found))
        before = {
            name: value
            for name, value in stored.get(memory_key(found), {}).items()
            if name in begun and name not in reset
        }
        query = {"user_query": text} if "user_query" in begun else {}
        memories[memory_key(found)] = {**begun, **before, **query}
    utterances = [*conversation_state.earlier_utterances(context), Utterance(role="user", text=text)]
    state = ConversationState(memories=memories).with_(context.begun.step_id, *utterances)
    following = handovers.hand_over(config.first_contact, config, number=1, before=context.begun.step_id)
    return Outcome(output=state.to_json(), fragment=following, warnings=tuple(warnings))


def _per_turn(context: StepContext) -> set[str]:
    """Return the fields that are reset in each turn of a session."""
    config = code_loading.config_of(context)
    classes = [Prompter(context, name).argument_class for name in config.agents]
    classes += [
        memory_class(context, config.memory_of(name))
        for name, agent in config.agents.items()
        if agent.kind == "conductor"
    ]
    return {name for cls in classes for name, access in fields.accesses(cls).items() if access == "per_turn"}


@handles("diskurs.begin")
def diskurs_begin(context: StepContext) -> Outcome:
    """Begin an agent's turn: render its prompts with its arguments; a branch of a parallel agent has the arguments of its part."""
    turn, state = AgentTurn.of(context.params), ConversationState.of(context)
    if turn.part != "branch":
        return begin_turn(context, turn, state, Prompter(context, turn.agent).arguments(state))
    part = state.parts[int(cast(int, context.params["branch"]))]
    return begin_turn(context, turn, part, part.arguments, utterances=part.utterances)


def begin_turn(
    context: StepContext,
    turn: AgentTurn,
    state: ConversationState,
    arguments: dict[str, JsonValue],
    *,
    utterances: Sequence[Utterance] = (),
    detail: Mapping[str, JsonValue] | None = None,
) -> Outcome:
    """Return the outcome of the step before the first call of an agent's model in this turn."""
    prompter, this = Prompter(context, turn.agent), context.begun.step_id
    turn = replace(turn, base=this)
    asked = Utterance(
        role="user", text=prompter.user(arguments), by=turn.agent, is_inner=_is_inner(turn, prompter.agent)
    )
    state = state.with_(
        this,
        *utterances,
        asked,
        agent=turn.agent,
        arguments=arguments,
        system=prompter.system(arguments),
        tools=prompter.tools,
    )
    return Outcome(
        output=state.to_json(), fragment=handovers.ask(turn, prompter.config, before=this), detail=dict(detail or {})
    )


def _is_inner(turn: AgentTurn, agent: ConversationAgent) -> bool:
    return agent.kind == "conductor" or bool(turn.judges)


# --- asking ---------------------------------------------------------------------------------------------------------


@handles("diskurs.ask")
async def diskurs_ask(context: StepContext) -> Outcome:
    """Call an agent's model; expand into the tool calls that it requests and the next call. The reply is the output."""
    turn = AgentTurn.of(context.params)
    config = code_loading.config_of(context)
    messages, rounds, known = await asyncio.to_thread(_messages, context, turn)
    is_closing = len(rounds) >= MAX_TOOL_ROUNDS
    reply = await call_models(
        context,
        [model_of(config.llms[str(config.agents[turn.agent].llm)])],
        messages,
        timeout_s=CALL_TIMEOUT_S,
        tools=known,
        tool_choice="none" if known and is_closing else None,
        allow_empty=True,
        fresh=turn.trial > 1,
    )
    outcome = await asyncio.to_thread(_record_reply, context, reply, rounds, known, is_closing)
    return (
        outcome
        if rounds
        else outcome.model_copy(update={"detail": {**outcome.detail, "prompt": recorded_prompt(messages)}})
    )


def _messages(
    context: StepContext, turn: AgentTurn
) -> tuple[list[Message], tuple[ModelRound, ...], tuple[ToolSchema, ...]]:
    """Return the messages for the model (system prompt, utterances, rounds of tool calls), the rounds, and the tools."""
    state, start, config = (
        ConversationState.of(context),
        ConversationState.of(context, "@turn_start"),
        code_loading.config_of(context),
    )
    agent = config.agents[turn.agent]
    sees_inner = _is_inner(turn, agent)
    utterances = [each for each in utterances_in(context, state.past) if sees_inner or not each.is_inner]
    base: list[Message] = [{"role": "system", "content": start.system}]
    base += [{"role": each.role, "content": each.text} for each in utterances]
    rounds, answers = tool_calling.rounds_of(context)
    token_limit = config.llms[str(agent.llm)].max_tokens
    return conversation(truncate(base, token_limit), rounds, answers), rounds, start.tools


def truncate(messages: Sequence[Message], token_limit: int | None) -> list[Message]:
    """Return the messages that fit into so many tokens: always the first and the last, then the newest."""
    first, *others = messages
    if token_limit is None or not others:
        return list(messages)
    *middle, last = others
    remaining = token_limit - _tokens(first) - _tokens(last)
    stored: list[Message] = []
    for message in reversed(middle):
        remaining -= _tokens(message)
        if remaining < 0:
            break
        stored.append(message)
    return [first, *stored[::-1], last]


def _tokens(message: Message) -> int:
    return estimate_tokens(str(message["content"] or ""))


def model_of(found: ConversationModel) -> Model:
    """Return the model with its API key, which comes from this process's environment and is never stored."""
    key = os.environ.get(found.api_key_variable) if found.api_key_variable else None
    model = Model(model=found.model, params=found.params)
    return model.model_copy(update={"params": {**found.params, "api_key": key}}) if key else model


def _record_reply(
    context: StepContext, reply: llm.Reply, rounds: Sequence[ModelRound], known: Sequence[ToolSchema], is_closing: bool
) -> Outcome:
    begun, names = context.begun, [tool.name for tool in known]
    asked: tuple[ParsedCall, ...] = calls_of("", reply.tool_calls).calls if known and not is_closing else ()
    asked = tuple(resolve(call, names) for call in asked)
    detail: dict[str, JsonValue] = {"model": reply.model, "finish": reply.finish_reason}
    if reply.reasoning:
        detail["reasoning"] = reply.reasoning.model_dump(mode="json", exclude_defaults=True)
    note = ROUNDS_EXHAUSTED.format(MAX_TOOL_ROUNDS) if asked and len(rounds) + 1 >= MAX_TOOL_ROUNDS else ""
    done = ModelRound(reply=reply.text, calls=asked, usage=reply.usage, note=note)
    if not asked:
        return Outcome(output=done.to_json(), usage=reply.usage, detail=detail)
    steps = [
        handovers.tool_step(f"{begun.step_id}/t{number}", call.name, call.arguments or {})
        for number, call in enumerate(asked)
        if not call.fault
    ]
    fragment = next_round(begun.step_id, begun.spec, len(rounds) + 1, steps)
    return Outcome(output=done.to_json(), usage=reply.usage, fragment=fragment, detail=detail)


# --- reading --------------------------------------------------------------------------------------------------------


@handles("diskurs.read")
def diskurs_read(context: StepContext) -> Outcome:
    """Read a reply into the agent's arguments: a correction, the next reasoning step or the end of the turn follows."""
    turn, state = AgentTurn.of(context.params), ConversationState.of(context)
    prompter = Prompter(context, turn.agent)
    text = str(cast("Mapping[str, JsonValue]", context.begun.inputs["@reply"]).get("reply", ""))
    inner = _is_inner(turn, prompter.agent)
    reply = Utterance(role="assistant", text=text, by=turn.agent, is_inner=inner)
    counted: dict[str, JsonValue] = {"trial": turn.trial, "reasoning_step": turn.step}
    try:
        arguments = prompter.read(text, state.arguments)
    except ReplyError as error:
        return _request_correction(context, turn, state, reply, str(error), counted)
    state = state.model_copy(update={"arguments": arguments})
    if prompter.is_final(arguments):
        return finish(context, turn, state.with_(context.begun.step_id, reply), verdict="final", **counted)
    if prompter.agent.kind == "llm_compiler" and plans.is_open(arguments):
        state = state.with_(context.begun.step_id, reply)
        steps = plans.steps_of(arguments)
        ids = [str(step["step_id"]) for step in steps]
        planned = [{**step, "depends_on": cast(JsonValue, plans.needs_of(step, ids))} for step in steps]
        fragment = handovers.run_plan(turn, planned, before=context.begun.step_id)
        return Outcome(
            output=state.to_json(), fragment=fragment, detail={**counted, "verdict": "plan", "steps": len(steps)}
        )
    return go_on(context, turn, state, [reply], **counted)


def go_on(
    context: StepContext,
    turn: AgentTurn,
    state: ConversationState,
    utterances: Sequence[Utterance],
    **detail: JsonValue,
) -> Outcome:
    """Return the outcome where an agent takes another reasoning step with its prompt rendered again, or has none left."""
    prompter, this = Prompter(context, turn.agent), context.begun.step_id
    fragment = handovers.ask_again(turn, prompter.config, before=this, is_valid=True)
    if fragment is None:
        reason = f"agent {turn.agent!r} was not final after {turn.step} reasoning steps"
        return give_up(context, turn, state.with_(this, *utterances), reason)
    prompt = Utterance(
        role="user", text=prompter.user(state.arguments), by=turn.agent, is_inner=_is_inner(turn, prompter.agent)
    )
    return Outcome(
        output=state.with_(this, *utterances, prompt).to_json(), fragment=fragment, detail={"verdict": "step", **detail}
    )


def _request_correction(
    context: StepContext,
    turn: AgentTurn,
    state: ConversationState,
    reply: Utterance,
    fault: str,
    counted: Mapping[str, JsonValue],
) -> Outcome:
    """Return the outcome where a reply is not valid: a message with the fault for the model, if trials are left."""
    config, this = code_loading.config_of(context), context.begun.step_id
    fragment = handovers.ask_again(turn, config, before=this, is_valid=False)
    message = fault if fragment else NO_ANSWER.format(max_trials=config.agents[turn.agent].max_trials)
    state = state.with_(this, reply, Utterance(role="user", text=message, by=turn.agent, is_inner=reply.is_inner))
    if fragment is None:
        return give_up(context, turn, state, f"agent {turn.agent!r}: {message} The last fault: {fault}")
    warning = f"agent {turn.agent!r} is asked again, because its reply is not valid: {fault}"
    detail = {"verdict": "correction", "fault": fault, **counted}
    return Outcome(output=state.to_json(), fragment=fragment, detail=detail, warnings=(warning,))


@handles("diskurs.gather")
def diskurs_gather(context: StepContext) -> Outcome:
    """Report the results of its plan to a planning agent."""
    turn, state = AgentTurn.of(context.params), ConversationState.of(context)
    steps = plans.steps_of(state.arguments)
    ids = [f"{context.begun.step_id}/{step['step_id']}" for step in steps]
    answers = tool_calling.answers_of(context, ids)
    results = {str(step["step_id"]): (answer.value, answer.error) for step, answer in zip(steps, answers, strict=True)}
    done = plans.with_results(steps, results)
    state = state.model_copy(update={"arguments": {**state.arguments, "execution_plan": done, "replan": False}})
    return go_on(context, turn, state, [], failed=sum(bool(answer.error) for answer in answers))


# --- the end --------------------------------------------------------------------------------------------------------


def finish(context: StepContext, turn: AgentTurn, state: ConversationState, **detail: JsonValue) -> Outcome:
    """Return the outcome of a finished turn: the conversation goes on, or the agent's arguments are the result."""
    prompter = Prompter(context, turn.agent)
    agent, this = prompter.agent, context.begun.step_id
    if turn.part == "branch":
        return Outcome(output=state.to_json(), detail=detail)
    if agent.kind == "parallel_multistep" and not turn.part:
        return Outcome(output=state.to_json(), fragment=handovers.split(turn, before=this), detail=detail)
    if agent.kind == "conductor":
        chosen = str(state.arguments["next_agent"])
        following = handovers.hand_over(chosen, prompter.config, number=turn.number + 1, before=this)
        return Outcome(output=state.to_json(), fragment=following, detail={**detail, "chosen_agent": chosen})
    state = with_updated_memories(prompter, state)
    if turn.judges:
        return Outcome(
            output=state.to_json(), fragment=handovers.return_verdict(turn, turn.judges, before=this), detail=detail
        )
    if agent.kind in FINALIZERS:
        conversation_state.store_memories(context, state)
        result: JsonValue = {name: state.arguments.get(name) for name in agent.final_properties}
        return Outcome(output=result, detail=detail)
    following = handovers.hand_over(agent.topics[0], prompter.config, number=turn.number + 1, before=this)
    return Outcome(output=state.to_json(), fragment=following, detail={**detail, "handed_to": agent.topics[0]})


def with_updated_memories(prompter: Prompter, state: ConversationState) -> ConversationState:
    """Return the state with the arguments that the agent hands over merged into the long-term memories, by name."""
    names = fields.handed_over(prompter.argument_class, prompter.agent.locked_fields)
    memories = {key: fields.merge(memory, state.arguments, names) for key, memory in state.memories.items()}
    return state.model_copy(update={"memories": memories})


def give_up(context: StepContext, turn: AgentTurn, state: ConversationState, reason: str) -> Outcome:
    """Return the outcome of a turn that reached a bound: its conductor fails; the details have the last arguments."""
    prompter = Prompter(context, turn.agent)
    detail: dict[str, JsonValue] = {"verdict": "exhausted", "reason": reason, "arguments": state.arguments}
    if turn.part == "branch":
        return Outcome(output=state.model_copy(update={"exhausted": reason}).to_json(), detail=detail)
    conductor = turn.judges or (turn.agent if prompter.agent.kind == "conductor" else state.conductor)
    if prompter.agent.kind != "conductor":
        state = with_updated_memories(prompter, state)
    if not conductor:
        error = ErrorInfo(code="exhausted", message=reason, step=context.begun.step_id)
        return Outcome(status="failed", error=error, detail={**detail, "last_output": state.arguments})
    failing = handovers.fail(
        replace(turn, judges=""), conductor, before=context.begun.step_id, code="exhausted", reason=reason
    )
    return Outcome(output=state.to_json(), fragment=failing, detail=detail)
