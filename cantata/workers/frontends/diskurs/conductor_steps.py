"""A conductor's turn: whether the conversation is done, who has it next, and what it comes to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog

from cantata.errors import StepError
from cantata.models.conversation_config import HandoverRule
from cantata.models.graph import Outcome
from cantata.models.values import ErrorInfo, JsonValue
from cantata.planning.turns import handovers
from cantata.planning.turns.handovers import Hop
from cantata.workers.frontends.diskurs import agents, session_state, tool_calling
from cantata.workers.frontends.diskurs.conversation_state import Said, Talk
from cantata.workers.frontends.diskurs.user_code import code_loading, entities
from cantata.workers.frontends.diskurs.user_code.prompt_rendering import Prompter
from cantata.workers.runtime.step_context import StepContext
from cantata.workers.tools import memory_access, schemas

log = structlog.get_logger(__name__)

NOT_FINALIZED = "Failed to finalize conversation"


def diskurs_visit(work: StepContext) -> Outcome:
    """Has a conductor decide: done, given up, or who is next. What a predicate agent says of it comes in a second visit."""
    hop, talk = Hop.of(work.params), Talk.of(work)
    prompter = Prompter(work, hop.agent)
    agent, this = prompter.agent, work.begun.step_id
    is_judged = bool(work.params.get("judged"))
    is_done = is_judged and bool(talk.arguments.get("can_finalize"))
    if not is_judged:
        talk = talk.model_copy(update={"dispatches": {**talk.dispatches, hop.agent: talk.dispatches.get(hop.agent, 0) + 1}})
    count = talk.dispatches[hop.agent]
    talk = talk.with_(this, conductor=hop.agent)
    detail: dict[str, JsonValue] = {"dispatch": count}
    if agent.judge and not is_judged:
        judging = handovers.hand(agent.judge, prompter.forum, number=hop.number + 1, before=this, judges=hop.agent)
        return Outcome(output=talk.to_json(), fragment=judging, detail={**detail, "asks": agent.judge})
    if is_done or _can_finalize(prompter, talk):
        return _finalized(work, hop, talk, {**detail, "verdict": "done"})
    if count >= agent.max_dispatches:
        reason = f"conductor {hop.agent!r} has had the conversation {count} times, which is its maxDispatches"
        failing = handovers.fail(hop, hop.agent, before=this, code="exhausted", reason=reason)
        return Outcome(output=talk.to_json(), fragment=failing, detail={**detail, "verdict": "exhausted"})
    if agent.rules:
        return Outcome(output=talk.to_json(), fragment=handovers.rules(hop, before=this), detail=detail)
    return _model_chooses(work, hop, talk, **detail)


def _can_finalize(prompter: Prompter, talk: Talk) -> bool:
    found = prompter.function("can_finalize")
    return found is not None and bool(code_loading.call(prompter.work, found, prompter.memory_instance(talk)))


def _finalized(work: StepContext, hop: Hop, talk: Talk, detail: Mapping[str, JsonValue]) -> Outcome:
    prompter, this = Prompter(work, hop.agent), work.begun.step_id
    talk = talk.model_copy(update={"dispatches": {**talk.dispatches, hop.agent: 0}})  # it may be given the conversation anew
    following = prompter.agent.finalizer or prompter.agent.supervisor
    if following:
        fragment = handovers.hand(following, prompter.forum, number=hop.number + 1, before=this)
        return Outcome(output=talk.to_json(), fragment=fragment, detail={**detail, "handed_to": following})
    return Outcome(output=talk.to_json(), fragment=handovers.finalize(hop, before=this), detail=dict(detail))


def diskurs_rules(work: StepContext) -> Outcome:
    """Chooses the agent of the first rule that holds; else the model is asked. A rule that raises is passed over, with a warning."""
    hop, talk = Hop.of(work.params), Talk.of(work)
    prompter = Prompter(work, hop.agent)
    warnings: list[str] = []
    for rule in prompter.agent.rules:
        if _holds(work, rule, talk, prompter, warnings):
            routed = Said(role="assistant", text=json.dumps({"next_agent": rule.target}), by=hop.agent, is_inner=True)
            talk = talk.with_(work.begun.step_id, routed)
            fragment = handovers.hand(rule.target, prompter.forum, number=hop.number + 1, before=work.begun.step_id)
            detail: dict[str, JsonValue] = {"rule": rule.name, "chosen_agent": rule.target}
            return Outcome(output=talk.to_json(), fragment=fragment, detail=detail, warnings=tuple(warnings))
    return _model_chooses(work, hop, talk).model_copy(update={"warnings": tuple(warnings)})


def _holds(work: StepContext, rule: HandoverRule, talk: Talk, prompter: Prompter, warnings: list[str]) -> bool:
    try:
        return bool(code_loading.call(work, rule.condition, conversation_of(prompter, talk, prompter.arguments(talk))))
    except StepError as error:
        warnings.append(f"rule {rule.name!r} of conductor {prompter.name!r} is passed over: {error}")
        return False


def _model_chooses(work: StepContext, hop: Hop, talk: Talk, **detail: JsonValue) -> Outcome:
    prompter = Prompter(work, hop.agent)
    if prompter.agent.fallback_to_llm and prompter.agent.llm:
        return agents.begun(work, replace(hop, trial=1, step=1, asked=1), talk, prompter.arguments(talk), detail=detail)
    reason = f"no rule of conductor {hop.agent!r} holds, and no model is asked"
    failing = handovers.fail(hop, hop.agent, before=work.begun.step_id, code="no_agent", reason=reason)
    return Outcome(output=talk.with_(work.begun.step_id).to_json(), fragment=failing, detail={**detail, "verdict": "nobody"})


def diskurs_finalize(work: StepContext) -> Outcome:
    """Makes the result of the long-term memory: by the conductor's `finalize`, else all of it."""
    hop, talk = Hop.of(work.params), Talk.of(work)
    prompter = Prompter(work, hop.agent)
    found = prompter.function("finalize")
    result: Any = code_loading.call(work, found, prompter.memory_instance(talk)) if found else prompter.memory(talk)
    session_state.keep(work, talk)
    return Outcome(output=schemas.jsonable(result))


def diskurs_fail(work: StepContext) -> Outcome:
    """Ends the turn without a result; what the conductor's `fail` makes of the long-term memory is kept."""
    hop, talk = Hop.of(work.params), Talk.of(work)
    prompter = Prompter(work, hop.agent)
    found = prompter.function("fail")
    kept: Any = (
        code_loading.call(work, found, prompter.memory_instance(talk)) if found else {**prompter.memory(talk), "error": NOT_FINALIZED}
    )
    session_state.keep(work, talk)
    error = ErrorInfo(code=work.text_param("code"), message=work.text_param("reason"), step=work.begun.step_id)
    return Outcome(status="failed", error=error, detail={"last_output": schemas.jsonable(kept), "arguments": talk.arguments})


def conversation_of(prompter: Prompter, talk: Talk, arguments: Mapping[str, JsonValue]) -> entities.Conversation[Any]:
    """The conversation as code of the folder sees it."""
    work = prompter.work
    chat = [
        entities.ChatMessage(
            role=entities.Role(each.role), content=each.text, name=each.by,
            type=entities.MessageType.CONDUCTOR if each.is_inner else entities.MessageType.CONVERSATION,
        )
        for each in talk.chat(work)
    ]  # fmt: skip
    return entities.Conversation(
        prompt_argument=prompter.instance(arguments), longterm_memory=prompter.memory_instance(talk), chat=chat,
        metadata=tool_calling.metadata_of(work), active_agent=prompter.name,
        conversation_id=memory_access.session_of(work.begun) or work.begun.run_id,
    )  # fmt: skip
