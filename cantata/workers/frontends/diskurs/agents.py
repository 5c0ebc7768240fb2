"""An agent's turn: its prompts, the questions to its model, what the replies come to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from cantata.models.conversation_config import ConversationAgent, ConversationModel
from cantata.models.definitions import Model
from cantata.models.graph import Outcome
from cantata.models.values import JsonValue, ToolSchema
from cantata.planning.turns import handovers
from cantata.planning.turns.agent_steps import next_round
from cantata.planning.turns.handovers import Hop
from cantata.planning.turns.history import tokens
from cantata.workers.frontends.diskurs import endings, plans, session_state, tool_calling
from cantata.workers.frontends.diskurs.conversation_state import Said, Talk, said_in
from cantata.workers.frontends.diskurs.replies import ReplyError
from cantata.workers.frontends.diskurs.user_code import code_loading, fields
from cantata.workers.frontends.diskurs.user_code.prompt_rendering import Prompter, memory_class, memory_key
from cantata.workers.models import llm, prompt_record
from cantata.workers.models.dialects import followup_prompts
from cantata.workers.models.dialects.call_parsing import ParsedCall, calls_of
from cantata.workers.models.dialects.conversation import Message, conversation
from cantata.workers.models.dialects.rounds import ModelRound
from cantata.workers.models.dialects.tool_lookup import resolve
from cantata.workers.models.model_calls import ask
from cantata.workers.runtime.step_context import StepContext, text_input

CALL_S = 60.0
MOST_TOOL_ROUNDS = 25
"""Rounds of tool calls for one question, before the model must answer without tools."""
NO_ANSWER = "No valid answer found after {most} trials."


def diskurs_open(work: StepContext) -> Outcome:
    """Begins a turn: the long-term memories know the user's text, and what the session's turns before left in them."""
    forum, text = code_loading.forum_of(work), text_input(work)
    for name in forum.agents:
        Prompter(work, name).check_names()
    conductors = [name for name, agent in forum.agents.items() if agent.kind == "conductor"]
    known = [forum.memory_of(name) for name in conductors] or [forum.memory]
    kept, renewed = session_state.kept(work), _per_turn(work)
    memories = {}
    for found in known:
        begun = fields.blank(memory_class(work, found))
        before = {name: value for name, value in kept.get(memory_key(found), {}).items() if name in begun and name not in renewed}
        query = {"user_query": text} if "user_query" in begun else {}
        memories[memory_key(found)] = {**begun, **before, **query}
    said = [*session_state.said_before(work), Said(role="user", text=text)]
    talk = Talk(memories=memories).with_(work.begun.step_id, *said)
    return Outcome(output=talk.to_json(), fragment=handovers.hand(forum.first_contact, forum, number=1, before=work.begun.step_id))


def _per_turn(work: StepContext) -> set[str]:
    """The fields that begin anew with each turn."""
    forum = code_loading.forum_of(work)
    classes = [Prompter(work, name).argument_class for name in forum.agents]
    classes += [memory_class(work, forum.memory_of(name)) for name, agent in forum.agents.items() if agent.kind == "conductor"]
    return {name for cls in classes for name, access in fields.accesses(cls).items() if access == "per_turn"}


def diskurs_begin(work: StepContext) -> Outcome:
    """Begins an agent's turn: renders its prompts for what it knows; a part of a parallel agent's work knows what the split gave it."""
    hop, talk = Hop.of(work.params), Talk.of(work)
    if hop.part != "branch":
        return begun(work, hop, talk, Prompter(work, hop.agent).arguments(talk))
    part = talk.parts[int(cast(int, work.params["branch"]))]
    return begun(work, hop, part, part.arguments, said=part.said)


def begun(
    work: StepContext, hop: Hop, talk: Talk, arguments: dict[str, JsonValue], *, said: Sequence[Said] = (),
    detail: Mapping[str, JsonValue] | None = None,
) -> Outcome:  # fmt: skip
    """The outcome of the step that asks an agent's model for the first time in this hop."""
    prompter, this = Prompter(work, hop.agent), work.begun.step_id
    hop = replace(hop, base=this)
    asked = Said(role="user", text=prompter.user(arguments), by=hop.agent, is_inner=_is_inner(hop, prompter.agent))
    talk = talk.with_(
        this, *said, asked, agent=hop.agent, arguments=arguments, system=prompter.system(arguments), tools=prompter.tools
    )  # fmt: skip
    return Outcome(output=talk.to_json(), fragment=handovers.ask(hop, prompter.forum, before=this), detail=dict(detail or {}))


def _is_inner(hop: Hop, agent: ConversationAgent) -> bool:
    return agent.kind == "conductor" or bool(hop.judges)


# --- asking ---------------------------------------------------------------------------------------------------------


async def diskurs_ask(work: StepContext) -> Outcome:
    """Asks an agent's model; grows the tool calls that it asks for, and the question that follows them. The reply is the output."""
    hop = Hop.of(work.params)
    forum = code_loading.forum_of(work)
    messages, rounds, known = await asyncio.to_thread(_told, work, hop)
    is_closing = len(rounds) >= MOST_TOOL_ROUNDS
    reply = await ask(
        work, [model_of(forum.llms[str(forum.agents[hop.agent].llm)])], messages, timeout_s=CALL_S, tools=known,
        tool_choice="none" if known and is_closing else None, allow_empty=True, fresh=hop.trial > 1,
    )  # fmt: skip
    outcome = await asyncio.to_thread(_asked, work, reply, rounds, known, is_closing)
    return outcome if rounds else outcome.model_copy(update={"detail": {**outcome.detail, "prompt": prompt_record.recorded(messages)}})


def _told(work: StepContext, hop: Hop) -> tuple[list[Message], tuple[ModelRound, ...], tuple[ToolSchema, ...]]:
    """What the model is told: its system prompt, what was said, and the rounds of tool calls of this question."""
    talk, start, forum = Talk.of(work), Talk.of(work, "@begun"), code_loading.forum_of(work)
    agent = forum.agents[hop.agent]
    sees_inner = _is_inner(hop, agent)
    said = [each for each in said_in(work, talk.past) if sees_inner or not each.is_inner]
    base: list[Message] = [{"role": "system", "content": start.system}]
    base += [{"role": each.role, "content": each.text} for each in said]
    rounds, answers = tool_calling.rounds_of(work)
    most = forum.llms[str(agent.llm)].max_tokens
    return conversation(shortened(base, most), rounds, answers), rounds, start.tools


def shortened(messages: Sequence[Message], most: int | None) -> list[Message]:
    """The messages that fit so many tokens: the first and the last always, then the newest."""
    first, *others = messages
    if most is None or not others:
        return list(messages)
    *middle, last = others
    left = most - _tokens(first) - _tokens(last)
    kept: list[Message] = []
    for message in reversed(middle):
        left -= _tokens(message)
        if left < 0:
            break
        kept.append(message)
    return [first, *kept[::-1], last]


def _tokens(message: Message) -> int:
    return tokens(str(message["content"] or ""))


def model_of(found: ConversationModel) -> Model:
    """The model to ask, with its key, which this process's environment holds and nothing stores."""
    key = os.environ.get(found.api_key_variable) if found.api_key_variable else None
    model = Model(model=found.model, params=found.params)
    return model.model_copy(update={"params": {**found.params, "api_key": key}}) if key else model


def _asked(work: StepContext, reply: llm.Reply, rounds: Sequence[ModelRound], known: Sequence[ToolSchema], is_closing: bool) -> Outcome:
    begun, names = work.begun, [tool.name for tool in known]
    asked: tuple[ParsedCall, ...] = calls_of("", reply.tool_calls).calls if known and not is_closing else ()
    asked = tuple(resolve(call, names) for call in asked)
    detail: dict[str, JsonValue] = {"model": reply.model, "finish": reply.finish_reason}
    note = followup_prompts.rounds_over(MOST_TOOL_ROUNDS) if asked and len(rounds) + 1 >= MOST_TOOL_ROUNDS else ""
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


def diskurs_read(work: StepContext) -> Outcome:
    """Reads a reply into the agent's arguments: it is corrected, asked for the next step, or done."""
    hop, talk = Hop.of(work.params), Talk.of(work)
    prompter = Prompter(work, hop.agent)
    text = str(cast("Mapping[str, JsonValue]", work.begun.inputs["@said"]).get("reply", ""))
    inner = _is_inner(hop, prompter.agent)
    reply = Said(role="assistant", text=text, by=hop.agent, is_inner=inner)
    counted: dict[str, JsonValue] = {"trial": hop.trial, "reasoning_step": hop.step}
    try:
        arguments = prompter.read(text, talk.arguments)
    except ReplyError as error:
        return _corrected(work, hop, talk, reply, str(error), counted)
    talk = talk.model_copy(update={"arguments": arguments})
    if prompter.is_final(arguments):
        return endings.done(work, hop, talk.with_(work.begun.step_id, reply), verdict="final", **counted)
    if prompter.agent.kind == "llm_compiler" and plans.is_open(arguments):
        talk = talk.with_(work.begun.step_id, reply)
        steps = plans.steps_of(arguments)
        ids = [str(step["step_id"]) for step in steps]
        planned = [{**step, "depends_on": cast(JsonValue, plans.needs_of(step, ids))} for step in steps]
        fragment = handovers.carry_out(hop, planned, before=work.begun.step_id)
        return Outcome(output=talk.to_json(), fragment=fragment, detail={**counted, "verdict": "plan", "steps": len(steps)})
    return go_on(work, hop, talk, [reply], **counted)


def go_on(work: StepContext, hop: Hop, talk: Talk, said: Sequence[Said], **detail: JsonValue) -> Outcome:
    """The outcome where an agent takes another reasoning step, with its prompt rendered anew; or has none left."""
    prompter, this = Prompter(work, hop.agent), work.begun.step_id
    fragment = handovers.ask_again(hop, prompter.forum, before=this, is_valid=True)
    if fragment is None:
        reason = f"agent {hop.agent!r} was not final after {hop.step} reasoning steps"
        return endings.given_up(work, hop, talk.with_(this, *said), reason)
    prompt = Said(role="user", text=prompter.user(talk.arguments), by=hop.agent, is_inner=_is_inner(hop, prompter.agent))
    return Outcome(output=talk.with_(this, *said, prompt).to_json(), fragment=fragment, detail={"verdict": "step", **detail})


def _corrected(work: StepContext, hop: Hop, talk: Talk, reply: Said, fault: str, counted: Mapping[str, JsonValue]) -> Outcome:
    """The outcome where a reply cannot be used: the model is told why, if trials are left."""
    forum, this = code_loading.forum_of(work), work.begun.step_id
    fragment = handovers.ask_again(hop, forum, before=this, is_valid=False)
    told = fault if fragment else NO_ANSWER.format(most=forum.agents[hop.agent].max_trials)
    talk = talk.with_(this, reply, Said(role="user", text=told, by=hop.agent, is_inner=reply.is_inner))
    if fragment is None:
        return endings.given_up(work, hop, talk, f"agent {hop.agent!r}: {told} The last fault: {fault}")
    return Outcome(output=talk.to_json(), fragment=fragment, detail={"verdict": "correction", "fault": fault, **counted})


def diskurs_gather(work: StepContext) -> Outcome:
    """Tells a planning agent what came of its plan."""
    hop, talk = Hop.of(work.params), Talk.of(work)
    steps = plans.steps_of(talk.arguments)
    ids = [f"{work.begun.step_id}/{step['step_id']}" for step in steps]
    answers = tool_calling.answers_of(work, ids)
    came = {str(step["step_id"]): (answer.value, answer.error) for step, answer in zip(steps, answers, strict=True)}
    done = plans.carried_out(steps, came)
    talk = talk.model_copy(update={"arguments": {**talk.arguments, "execution_plan": done, "replan": False}})
    return go_on(work, hop, talk, [], failed=sum(bool(answer.error) for answer in answers))
