"""What follows when an agent is done with the conversation, or gives it up."""

from __future__ import annotations

from dataclasses import replace

from cantata.models.conversation_config import FINALIZERS
from cantata.models.graph import Outcome
from cantata.models.values import ErrorInfo, JsonValue
from cantata.planning.turns import handovers
from cantata.planning.turns.handovers import Hop
from cantata.workers.frontends.diskurs import session_state
from cantata.workers.frontends.diskurs.conversation_state import Talk
from cantata.workers.frontends.diskurs.user_code import fields
from cantata.workers.frontends.diskurs.user_code.prompt_rendering import Prompter
from cantata.workers.runtime.step_context import StepContext


def done(work: StepContext, hop: Hop, talk: Talk, **detail: JsonValue) -> Outcome:
    """The outcome of the step in which an agent is done: the conversation goes on, or its arguments are the result."""
    prompter = Prompter(work, hop.agent)
    agent, this = prompter.agent, work.begun.step_id
    if hop.part == "branch":
        return Outcome(output=talk.to_json(), detail=detail)
    if agent.kind == "parallel_multistep" and not hop.part:
        return Outcome(output=talk.to_json(), fragment=handovers.split(hop, before=this), detail=detail)
    if agent.kind == "conductor":
        chosen = str(talk.arguments["next_agent"])
        following = handovers.hand(chosen, prompter.forum, number=hop.number + 1, before=this)
        return Outcome(output=talk.to_json(), fragment=following, detail={**detail, "chosen_agent": chosen})
    talk = remembered(prompter, talk)
    if hop.judges:
        return Outcome(output=talk.to_json(), fragment=handovers.judged(hop, hop.judges, before=this), detail=detail)
    if agent.kind in FINALIZERS:
        session_state.keep(work, talk)
        result: JsonValue = {name: talk.arguments.get(name) for name in agent.final_properties}
        return Outcome(output=result, detail=detail)
    following = handovers.hand(agent.topics[0], prompter.forum, number=hop.number + 1, before=this)
    return Outcome(output=talk.to_json(), fragment=following, detail={**detail, "handed_to": agent.topics[0]})


def remembered(prompter: Prompter, talk: Talk) -> Talk:
    """The conversation whose long-term memories know what the agent hands over, by name."""
    names = fields.handed_over(prompter.argument_class, prompter.agent.locked_fields)
    memories = {key: fields.merge(memory, talk.arguments, names) for key, memory in talk.memories.items()}
    return talk.model_copy(update={"memories": memories})


def given_up(work: StepContext, hop: Hop, talk: Talk, reason: str) -> Outcome:
    """The outcome of the step in which an agent reaches a bound: its conductor fails, with the last arguments kept."""
    prompter = Prompter(work, hop.agent)
    detail: dict[str, JsonValue] = {"verdict": "exhausted", "reason": reason, "arguments": talk.arguments}
    if hop.part == "branch":
        return Outcome(output=talk.model_copy(update={"exhausted": reason}).to_json(), detail=detail)
    conductor = hop.judges or (hop.agent if prompter.agent.kind == "conductor" else talk.conductor)
    if prompter.agent.kind != "conductor":
        talk = remembered(prompter, talk)
    if not conductor:
        error = ErrorInfo(code="exhausted", message=reason, step=work.begun.step_id)
        return Outcome(status="failed", error=error, detail={**detail, "last_output": talk.arguments})
    failing = handovers.fail(replace(hop, judges=""), conductor, before=work.begun.step_id, code="exhausted", reason=reason)
    return Outcome(output=talk.to_json(), fragment=failing, detail=detail)
