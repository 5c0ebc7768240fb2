"""A conductor's turn: it ends the conversation with a result, gives it up, or chooses the next agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog

from cantata.errors import CodeExitError, ImportFailedError, StepError
from cantata.flows.graph import Outcome
from cantata.values import ErrorInfo, JsonValue
from cantata_frontends.diskurs import handovers
from cantata_frontends.diskurs.conversation_config import HandoverRule
from cantata_frontends.diskurs.handovers import AgentTurn
from cantata_workers.frontends.diskurs import agents, conversation_state, tool_calling
from cantata_workers.frontends.diskurs.conversation_state import ConversationState, Utterance
from cantata_workers.frontends.diskurs.user_code import code_loading, entities
from cantata_workers.frontends.diskurs.user_code.prompt_rendering import Prompter
from cantata_workers.process.step_context import StepContext, handles
from cantata_workers.tools import memory_access, schemas

log = structlog.get_logger(__name__)

NOT_FINALIZED = "Failed to finalize conversation"


@handles("diskurs.visit")
def diskurs_visit(context: StepContext) -> Outcome:
    """Let a conductor decide: done, given up, or the next agent. The verdict of a predicate agent comes in a second visit."""
    turn, state = AgentTurn.of(context.params), ConversationState.of(context)
    prompter = Prompter(context, turn.agent)
    agent, this = prompter.agent, context.begun.step_id
    is_judged = bool(context.params.get("judged"))
    is_done = is_judged and bool(state.arguments.get("can_finalize"))
    if not is_judged:
        state = state.model_copy(
            update={"dispatches": {**state.dispatches, turn.agent: state.dispatches.get(turn.agent, 0) + 1}}
        )
    count = state.dispatches[turn.agent]
    state = state.with_(this, conductor=turn.agent)
    detail: dict[str, JsonValue] = {"dispatch": count}
    if agent.judge and not is_judged:
        judging = handovers.hand_over(
            agent.judge, prompter.config, number=turn.number + 1, before=this, judges=turn.agent
        )
        return Outcome(output=state.to_json(), fragment=judging, detail={**detail, "asks": agent.judge})
    if is_done or _can_finalize(prompter, state):
        return _finalized(context, turn, state, {**detail, "verdict": "done"})
    if count >= agent.max_dispatches:
        reason = f"conductor {turn.agent!r} had the conversation {count} times, which is its maxDispatches"
        failing = handovers.fail(turn, turn.agent, before=this, code="exhausted", reason=reason)
        return Outcome(output=state.to_json(), fragment=failing, detail={**detail, "verdict": "exhausted"})
    if agent.rules:
        return Outcome(output=state.to_json(), fragment=handovers.ask_rules(turn, before=this), detail=detail)
    return _model_chooses(context, turn, state, **detail)


def _can_finalize(prompter: Prompter, state: ConversationState) -> bool:
    found = prompter.function("can_finalize")
    return found is not None and bool(code_loading.call(prompter.context, found, prompter.memory_instance(state)))


def _finalized(
    context: StepContext, turn: AgentTurn, state: ConversationState, detail: Mapping[str, JsonValue]
) -> Outcome:
    prompter, this = Prompter(context, turn.agent), context.begun.step_id
    state = state.model_copy(
        update={"dispatches": {**state.dispatches, turn.agent: 0}}
    )  # it may get the conversation again
    following = prompter.agent.finalizer or prompter.agent.supervisor
    if following:
        fragment = handovers.hand_over(following, prompter.config, number=turn.number + 1, before=this)
        return Outcome(output=state.to_json(), fragment=fragment, detail={**detail, "handed_to": following})
    return Outcome(output=state.to_json(), fragment=handovers.finalize(turn, before=this), detail=dict(detail))


@handles("diskurs.rules")
def diskurs_rules(context: StepContext) -> Outcome:
    """Choose the agent of the first rule that holds, else call the model. A rule that raises is skipped with a warning."""
    turn, state = AgentTurn.of(context.params), ConversationState.of(context)
    prompter = Prompter(context, turn.agent)
    warnings: list[str] = []
    for rule in prompter.agent.rules:
        if _rule_holds(context, rule, state, prompter, warnings):
            routed = Utterance(
                role="assistant", text=json.dumps({"next_agent": rule.target}), by=turn.agent, is_inner=True
            )
            state = state.with_(context.begun.step_id, routed)
            fragment = handovers.hand_over(
                rule.target, prompter.config, number=turn.number + 1, before=context.begun.step_id
            )
            detail: dict[str, JsonValue] = {"rule": rule.name, "chosen_agent": rule.target}
            return Outcome(output=state.to_json(), fragment=fragment, detail=detail, warnings=tuple(warnings))
    return _model_chooses(context, turn, state).model_copy(update={"warnings": tuple(warnings)})


def _rule_holds(
    context: StepContext, rule: HandoverRule, state: ConversationState, prompter: Prompter, warnings: list[str]
) -> bool:
    try:
        return bool(
            code_loading.call(context, rule.condition, conversation_of(prompter, state, prompter.arguments(state)))
        )
    except (CodeExitError, ImportFailedError):
        raise
    except StepError as error:
        warnings.append(f"rule {rule.name!r} of conductor {prompter.name!r} is skipped: {error}")
        return False


def _model_chooses(context: StepContext, turn: AgentTurn, state: ConversationState, **detail: JsonValue) -> Outcome:
    prompter = Prompter(context, turn.agent)
    if prompter.agent.fallback_to_llm and prompter.agent.llm:
        return agents.begin_turn(
            context, replace(turn, trial=1, step=1, asked=1), state, prompter.arguments(state), detail=detail
        )
    reason = f"no rule of conductor {turn.agent!r} holds, and it has no model to choose"
    failing = handovers.fail(turn, turn.agent, before=context.begun.step_id, code="no_agent", reason=reason)
    return Outcome(
        output=state.with_(context.begun.step_id).to_json(), fragment=failing, detail={**detail, "verdict": "no_agent"}
    )


@handles("diskurs.finalize")
def diskurs_finalize(context: StepContext) -> Outcome:
    """Return the result: that of the conductor's `finalize`, else the whole long-term memory."""
    turn, state = AgentTurn.of(context.params), ConversationState.of(context)
    prompter = Prompter(context, turn.agent)
    found = prompter.function("finalize")
    result: Any = (
        code_loading.call(context, found, prompter.memory_instance(state)) if found else prompter.memory(state)
    )
    conversation_state.store_memories(context, state)
    return Outcome(output=schemas.jsonable(result))


@handles("diskurs.fail")
def diskurs_fail(context: StepContext) -> Outcome:
    """Fail the run; the details have what the conductor's `fail` returns for the long-term memory."""
    turn, state = AgentTurn.of(context.params), ConversationState.of(context)
    prompter = Prompter(context, turn.agent)
    found = prompter.function("fail")
    last_output: Any = (
        code_loading.call(context, found, prompter.memory_instance(state))
        if found
        else {**prompter.memory(state), "error": NOT_FINALIZED}
    )
    conversation_state.store_memories(context, state)
    error = ErrorInfo(code=context.text_param("code"), message=context.text_param("reason"), step=context.begun.step_id)
    return Outcome(
        status="failed",
        error=error,
        detail={"last_output": schemas.jsonable(last_output), "arguments": state.arguments},
    )


def conversation_of(
    prompter: Prompter, state: ConversationState, arguments: Mapping[str, JsonValue]
) -> entities.Conversation[Any]:
    """Return the conversation as an object for code of the folder."""
    context = prompter.context
    chat = [
        entities.ChatMessage(
            role=entities.Role(each.role),
            content=each.text,
            name=each.by,
            type=entities.MessageType.CONDUCTOR if each.is_inner else entities.MessageType.CONVERSATION,
        )
        for each in state.chat(context)
    ]
    return entities.Conversation(
        prompt_argument=prompter.instance(arguments),
        longterm_memory=prompter.memory_instance(state),
        chat=chat,
        metadata=tool_calling.metadata_of(context),
        active_agent=prompter.name,
        conversation_id=memory_access.session_of(context.begun) or context.begun.run_id,
    )
