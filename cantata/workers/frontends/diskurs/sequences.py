"""Agents and parts of them that are code: heuristic sequences, and how a parallel agent splits a conversation and joins the parts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, cast

from cantata.errors import StepError
from cantata.models.conversation_config import BranchCode
from cantata.models.graph import Outcome
from cantata.models.values import JsonValue, Usage
from cantata.planning.turns import handovers
from cantata.planning.turns.handovers import Hop
from cantata.workers.frontends.diskurs import agents, endings, tool_calling
from cantata.workers.frontends.diskurs.conductor_steps import conversation_of
from cantata.workers.frontends.diskurs.conversation_state import Said, Talk
from cantata.workers.frontends.diskurs.user_code import code_loading, fields
from cantata.workers.frontends.diskurs.user_code.entities import ChatMessage, Conversation, Role
from cantata.workers.frontends.diskurs.user_code.prompt_rendering import Prompter, memory_key
from cantata.workers.models.model_calls import ask
from cantata.workers.runtime.step_context import StepContext


def diskurs_heuristic(work: StepContext) -> Outcome:
    """Runs an agent that is code: it is given the conversation, and gives it back."""
    hop, talk = Hop.of(work.params), Talk.of(work)
    prompter = Prompter(work, hop.agent)
    found = prompter.function("heuristic_sequence")
    if found is None:
        raise StepError(f"prompt.py of agent {hop.agent!r} has no function 'heuristic_sequence'", code="bad_code")
    arguments = prompter.arguments(talk)
    conversation = conversation_of(prompter, talk, arguments)
    function = code_loading.room_of(work).load(found, prompter.forum.modules)
    client = _Model(prompter)
    offered = {
        "conversation": conversation, "call_tool": _tools(prompter), "llm_client": client,
        "prompt_argument": conversation.prompt_argument, "metadata": conversation.metadata,
    }  # fmt: skip
    if not inspect.iscoroutinefunction(function):
        generate = _waited_for(work, client.generate)
        offered |= {"call_tool": _waited_for(work, _tools(prompter)), "llm_client": SimpleNamespace(generate=generate)}
    wanted = inspect.signature(function).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in wanted.values())
    made = code_loading.call(work, found, **{name: value for name, value in offered.items() if takes_any or name in wanted})
    talk = _after(prompter, talk, made)
    if prompter.agent.render_prompt:
        prompt = Said(role="user", text=prompter.user(talk.arguments), by=hop.agent)
        talk = talk.with_(work.begun.step_id, *talk.said, prompt)
    outcome = endings.done(work, hop, talk)
    return outcome.model_copy(update={"usage": client.usage}) if client.usage.model_calls else outcome


def _tools(prompter: Prompter) -> Callable[..., Coroutine[object, object, Any]]:
    """How a sequence calls tools: those of the agent, or all if it names none."""
    known = tool_calling.callables(prompter.work, prompter.agent.tools or prompter.forum.tools)

    async def call_tool(function_name: str, arguments: Mapping[str, Any]) -> Any:
        if function_name not in known:
            raise ValueError(f"Tool '{function_name}' not found.")
        return await known[function_name](arguments)

    return call_tool


def _waited_for(work: StepContext, function: Callable[..., Coroutine[object, object, Any]]) -> Callable[..., Any]:
    """The function for code that is sync, which cannot await it."""

    def waiting(*given: Any, **named: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(function(*given, **named), work.process.loop()).result()

    return waiting


class _Model:
    """How a sequence asks its agent's model: `await llm_client.generate(conversation)`. It is asked again if the step is done again."""

    def __init__(self, prompter: Prompter) -> None:
        self._prompter = prompter
        self.usage = Usage()

    async def generate(self, conversation: Conversation[Any], tools: object = None) -> Conversation[Any]:
        """The conversation with the model's reply said last."""
        prompter = self._prompter
        if prompter.agent.llm is None:
            raise ValueError(f"agent {prompter.name!r} has no llm")
        messages = [{"role": str(each.role), "content": each.content or ""} for each in conversation.render_chat()]
        found = prompter.forum.llms[prompter.agent.llm]
        reply = await ask(prompter.work, [agents.model_of(found)], messages, timeout_s=agents.CALL_S, allow_empty=True)
        self.usage += reply.usage
        return conversation.append(ChatMessage(role=Role.ASSISTANT, content=reply.text, name=prompter.name))


def diskurs_branch(work: StepContext) -> Outcome:
    """Splits the conversation of a parallel agent; its model is asked about each part, all at once."""
    hop, talk = Hop.of(work.params), Talk.of(work)
    prompter = Prompter(work, hop.agent)
    made = code_loading.call(work, _branches(prompter).branch, conversation_of(prompter, talk, talk.arguments))
    if not isinstance(made, list | tuple):
        raise StepError(f"{_branches(prompter).branch.name} gave {type(made).__name__}, not a list of conversations", code="bad_code")
    this = work.begun.step_id
    parts = tuple(_unsaid(_after(prompter, talk, each), this) for each in made)
    talk = talk.with_(this, parts=parts)
    fragment = handovers.branches(hop, before=this, count=len(parts))
    return Outcome(output=talk.to_json(), fragment=fragment, detail={"branches": len(parts)})


def diskurs_join(work: StepContext) -> Outcome:
    """Joins what came of the parts of a parallel agent's work."""
    hop, talk = Hop.of(work.params), Talk.of(work)
    prompter = Prompter(work, hop.agent)
    parts = [Talk.of(work, f"@branch/{i}") for i in range(int(cast(int, work.params["count"])))]
    if reason := next((part.exhausted for part in parts if part.exhausted), None):
        return endings.given_up(work, hop, talk.with_(work.begun.step_id, agent=hop.agent), reason)
    base = parts[0] if parts else talk
    made = code_loading.call(work, _branches(prompter).join, [conversation_of(prompter, part, part.arguments) for part in parts])
    talk = _after(prompter, base, made)
    if _branches(prompter).invoke_on_final:
        return Outcome(output=talk.to_json(), fragment=handovers.after_join(hop, before=work.begun.step_id))
    return endings.done(work, replace(hop, part="joined"), talk)


def _branches(prompter: Prompter) -> BranchCode:
    found = prompter.agent.branches
    assert found is not None
    return found


def _after(prompter: Prompter, talk: Talk, made: Any) -> Talk:
    """The conversation as code gave it back. What was said before is kept by reference if the code left it as it was."""
    this = prompter.work.begun.step_id
    if not isinstance(made, Conversation):  # an older sequence gives the arguments alone
        return talk.with_(this, agent=prompter.name, arguments=_json_of(prompter, made))
    before = talk.chat(prompter.work)
    said = [_said(each) for each in made.chat]
    is_continued = said[: len(before)] == before
    memories = talk.memories
    if made.longterm_memory is not None:
        key = _key_of(prompter, talk)
        memories = {**memories, key: {**memories[key], **fields.to_json(made.longterm_memory)}}
    changed = talk if is_continued else talk.model_copy(update={"past": ()})
    new = said[len(before) :] if is_continued else said
    return changed.with_(
        this, *new, agent=prompter.name, arguments=_json_of(prompter, made.prompt_argument), memories=memories
    )  # fmt: skip


def _json_of(prompter: Prompter, arguments: Any) -> dict[str, JsonValue]:
    if arguments is None:
        raise StepError(f"the code of agent {prompter.name!r} gave no conversation and no arguments", code="bad_code")
    return cast("dict[str, JsonValue]", fields.to_json(arguments))


def _key_of(prompter: Prompter, talk: Talk) -> str:
    return memory_key(prompter.forum.memory_of(talk.conductor)) if talk.conductor else next(iter(talk.memories))


def _said(message: ChatMessage) -> Said:
    role: Literal["user", "assistant"] = "assistant" if str(message.role) == "assistant" else "user"
    return Said(role=role, text=message.content or "", by=message.name or "", is_inner=str(message.type) == "conductor")


def _unsaid(part: Talk, step_id: str) -> Talk:
    """A part whose own words are still to be said, by the step that it begins with."""
    return part.model_copy(update={"past": tuple(each for each in part.past if each != step_id)})
