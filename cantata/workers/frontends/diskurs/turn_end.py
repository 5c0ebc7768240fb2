"""The end of an agent's turn: the conversation is handed on, or given up."""

from __future__ import annotations

from dataclasses import replace

from cantata.frontends.diskurs import handovers
from cantata.frontends.diskurs.conversation_config import FINALIZERS
from cantata.frontends.diskurs.handovers import AgentTurn
from cantata.models.graph import Outcome
from cantata.models.values import ErrorInfo, JsonValue
from cantata.workers.frontends.diskurs import conversation_state
from cantata.workers.frontends.diskurs.conversation_state import ConversationState
from cantata.workers.frontends.diskurs.user_code import fields
from cantata.workers.frontends.diskurs.user_code.prompt_rendering import Prompter
from cantata.workers.runtime.step_context import StepContext


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
        return Outcome(output=state.to_json(), fragment=handovers.return_verdict(turn, turn.judges, before=this), detail=detail)
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
    failing = handovers.fail(replace(turn, judges=""), conductor, before=context.begun.step_id, code="exhausted", reason=reason)
    return Outcome(output=state.to_json(), fragment=failing, detail=detail)
