"""Agents that are code: heuristic sequences, and the functions by which a parallel agent splits a conversation and joins the parts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, cast

from cantata.errors import StepError
from cantata.flows.graph import Outcome
from cantata.operation import exits
from cantata.values import JsonValue, Usage
from cantata_frontends.diskurs import handovers
from cantata_frontends.diskurs.conversation_config import BranchCode
from cantata_frontends.diskurs.handovers import AgentTurn
from cantata_workers.frontends.diskurs import agents, tool_calling
from cantata_workers.frontends.diskurs.conductor_steps import conversation_of
from cantata_workers.frontends.diskurs.conversation_state import ConversationState, Utterance
from cantata_workers.frontends.diskurs.user_code import code_loading, fields
from cantata_workers.frontends.diskurs.user_code.entities import ChatMessage, Conversation, Role
from cantata_workers.frontends.diskurs.user_code.prompt_rendering import Prompter, memory_key
from cantata_workers.models.model_calls import call_models
from cantata_workers.process.step_context import StepContext, handles


@handles("diskurs.heuristic")
def diskurs_heuristic(context: StepContext) -> Outcome:
    """Run an agent that is code: a function that receives the conversation and returns it."""
    turn, state = AgentTurn.of(context.params), ConversationState.of(context)
    prompter = Prompter(context, turn.agent)
    found = prompter.function("heuristic_sequence")
    if found is None:
        folder, file = code_loading.code_folder_of(context), prompter.agent.prompt.file
        raise folder.lacks(file or f"the prompt of agent {turn.agent!r}", "no function 'heuristic_sequence'")
    arguments = prompter.arguments(state)
    conversation = conversation_of(prompter, state, arguments)
    function = code_loading.code_folder_of(context).load(found, prompter.config.modules)
    client = _LlmClient(prompter)
    offered = {
        "conversation": conversation, "call_tool": _tools(prompter), "llm_client": client,
        "prompt_argument": conversation.prompt_argument, "metadata": conversation.metadata,
    }  # fmt: skip
    if not inspect.iscoroutinefunction(function):
        generate = _blocking(context, client.generate)
        offered |= {"call_tool": _blocking(context, _tools(prompter)), "llm_client": SimpleNamespace(generate=generate)}
    wanted = inspect.signature(function).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in wanted.values())
    made = code_loading.call(
        context, found, **{name: value for name, value in offered.items() if takes_any or name in wanted}
    )
    state = _state_from_code(prompter, state, made)
    if prompter.agent.render_prompt:
        prompt = Utterance(role="user", text=prompter.user(state.arguments), by=turn.agent)
        state = state.with_(context.begun.step_id, *state.utterances, prompt)
    outcome = agents.finish(context, turn, state)
    return outcome.model_copy(update={"usage": client.usage}) if client.usage.model_calls else outcome


def _tools(prompter: Prompter) -> Callable[..., Coroutine[object, object, Any]]:
    """Return the function by which a sequence calls tools: those of the agent, or all if it names none."""
    known = tool_calling.callables(prompter.context, prompter.agent.tools or prompter.config.tools)

    async def call_tool(
        function_name: str, arguments: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
    ) -> Any:
        if function_name not in known:
            raise ValueError(f"Tool '{function_name}' not found.")
        return await known[function_name](arguments, metadata)

    return call_tool


def _blocking(context: StepContext, function: Callable[..., Coroutine[object, object, Any]]) -> Callable[..., Any]:
    """Return a blocking form of a coroutine function, for sync code."""

    def waiting(*given: Any, **named: Any) -> Any:
        return exits.result_of(asyncio.run_coroutine_threadsafe(function(*given, **named), context.process.loop()))

    return waiting


class _LlmClient:
    """The model of a sequence's agent: `await llm_client.generate(conversation)`. Another attempt of the step calls it again."""

    def __init__(self, prompter: Prompter) -> None:
        self._prompter = prompter
        self.usage = Usage()

    async def generate(self, conversation: Conversation[Any], tools: object = None) -> Conversation[Any]:
        """Return the conversation with the model's reply appended."""
        prompter = self._prompter
        if prompter.agent.llm is None:
            raise ValueError(f"agent {prompter.name!r} has no llm")
        messages = [{"role": str(each.role), "content": each.content or ""} for each in conversation.render_chat()]
        found = prompter.config.llms[prompter.agent.llm]
        reply = await call_models(
            prompter.context, [agents.model_of(found)], messages, timeout_s=agents.CALL_TIMEOUT_S, allow_empty=True
        )
        self.usage += reply.usage
        return conversation.append(ChatMessage(role=Role.ASSISTANT, content=reply.text, name=prompter.name))


@handles("diskurs.branch")
def diskurs_branch(context: StepContext) -> Outcome:
    """Split the conversation of a parallel agent; its model is called for all parts in parallel."""
    turn, state = AgentTurn.of(context.params), ConversationState.of(context)
    prompter = Prompter(context, turn.agent)
    made = code_loading.call(context, _branches(prompter).branch, conversation_of(prompter, state, state.arguments))
    if not isinstance(made, list | tuple):
        raise StepError(
            f"{_branches(prompter).branch.name} gave {type(made).__name__}, not a list of conversations",
            code="bad_code",
        )
    this = context.begun.step_id
    parts = tuple(_without_step(_state_from_code(prompter, state, each), this) for each in made)
    state = state.with_(this, parts=parts)
    fragment = handovers.run_branches(turn, before=this, count=len(parts))
    return Outcome(output=state.to_json(), fragment=fragment, detail={"branches": len(parts)})


@handles("diskurs.join")
def diskurs_join(context: StepContext) -> Outcome:
    """Join the results of the parts of a parallel agent's conversation."""
    turn, state = AgentTurn.of(context.params), ConversationState.of(context)
    prompter = Prompter(context, turn.agent)
    parts = [ConversationState.of(context, f"@branch/{i}") for i in range(int(cast(int, context.params["count"])))]
    if reason := next((part.exhausted for part in parts if part.exhausted), None):
        return agents.give_up(context, turn, state.with_(context.begun.step_id, agent=turn.agent), reason)
    base = parts[0] if parts else state
    made = code_loading.call(
        context, _branches(prompter).join, [conversation_of(prompter, part, part.arguments) for part in parts]
    )
    state = _state_from_code(prompter, base, made)
    if _branches(prompter).invoke_on_final:
        return Outcome(output=state.to_json(), fragment=handovers.ask_after_join(turn, before=context.begun.step_id))
    return agents.finish(context, replace(turn, part="joined"), state)


def _branches(prompter: Prompter) -> BranchCode:
    found = prompter.agent.branches
    assert found is not None
    return found


def _state_from_code(prompter: Prompter, state: ConversationState, made: Any) -> ConversationState:
    """Return the state of a conversation that code returned. Earlier utterances stay references if the code did not change them."""
    this = prompter.context.begun.step_id
    if not isinstance(made, Conversation):  # older sequences return the arguments only
        return state.with_(this, agent=prompter.name, arguments=_json_of(prompter, made))
    before = state.chat(prompter.context)
    utterances = [_utterance(each) for each in made.chat]
    is_continued = utterances[: len(before)] == before
    memories = state.memories
    if made.longterm_memory is not None:
        key = _key_of(prompter, state)
        memories = {**memories, key: {**memories[key], **fields.to_json(made.longterm_memory)}}
    changed = state if is_continued else state.model_copy(update={"past": ()})
    new = utterances[len(before) :] if is_continued else utterances
    return changed.with_(
        this, *new, agent=prompter.name, arguments=_json_of(prompter, made.prompt_argument), memories=memories
    )


def _json_of(prompter: Prompter, arguments: Any) -> dict[str, JsonValue]:
    if arguments is None:
        raise StepError(f"the code of agent {prompter.name!r} gave no conversation and no arguments", code="bad_code")
    return cast("dict[str, JsonValue]", fields.to_json(arguments))


def _key_of(prompter: Prompter, state: ConversationState) -> str:
    return memory_key(prompter.config.memory_of(state.conductor)) if state.conductor else next(iter(state.memories))


def _utterance(message: ChatMessage) -> Utterance:
    role: Literal["user", "assistant"] = "assistant" if str(message.role) == "assistant" else "user"
    return Utterance(
        role=role, text=message.content or "", by=message.name or "", is_inner=str(message.type) == "conductor"
    )


def _without_step(part: ConversationState, step_id: str) -> ConversationState:
    """Return a part without the step in its past: its first step will record the part's utterances."""
    return part.model_copy(update={"past": tuple(each for each in part.past if each != step_id)})
