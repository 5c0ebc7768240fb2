"""Takes leave for model calls from the limits that all workers share, and settles for them."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import cast

from orchestrator import faultpoints, metrics
from orchestrator.errors import ModelError, MustWait, StepError
from orchestrator.models.definitions import Budgets, Model
from orchestrator.state.limits import Ask, Exhausted, Granted, Sooner, Wait
from workers import llm
from workers.dialects.messages import Message
from workers.work import Work

CHARACTERS_A_TOKEN = 4  # of English; the true count comes with the reply
USUAL_ANSWER = 1024  # tokens that are reserved for an answer, where the parameters name no bound


class Leave:
    """Leave for one model call; `reply` tells what it used."""

    reply: llm.Reply | None = None


@asynccontextmanager
async def leave_to_ask(work: Work, model: Model, messages: Sequence[Message]) -> AsyncIterator[Leave]:
    """Hold leave for one call while the block lasts.

    Raises MustWait if the limits have no room now, StepError ('budget') if a budget has no room at all.
    """
    leave, ask = Leave(), _ask(work, model, messages)
    match await asyncio.to_thread(_take, work, ask):
        case Wait() as wait:
            metrics.limit_waited(model.model, wait.reason, wait.seconds)
            raise MustWait(wait.seconds, _told(wait))
        case Exhausted() as exhausted:
            metrics.budget_refused(exhausted.budget)
            raise StepError(str(exhausted), code="budget")
    faultpoints.at("budget-reserved")
    work.process.keep_leave(work.begun.lease)
    try:
        yield leave
    except ModelError as error:
        if error.code == "rate_limited" and error.retry_after_s:
            await asyncio.to_thread(work.process.limiter.pause, model.model, error.retry_after_s)
        raise
    finally:
        work.process.drop_leave(work.begun.lease)
        await asyncio.shield(asyncio.to_thread(_settle, work, ask, leave.reply))


def _told(wait: Wait) -> str:
    """Why a call waits, in words."""
    if wait.reason == "pause":
        why = "the model's provider asked for a pause"
    elif wait.reason == "budget":
        why = f"what calls under way may spend is all that is left of the budget of the {wait.of}"
    else:
        why = f"the {wait.reason} of the {wait.of} is used up"
    return f"{why}; calls that come before: {wait.ahead}" if wait.ahead else why


def _settle(work: Work, ask: Ask, reply: llm.Reply | None) -> None:
    """Tell what a call used, and those whose turn comes sooner by that."""
    tokens = reply.usage.input_tokens + reply.usage.output_tokens if reply else 0
    _hasten(work, ask, work.process.limiter.settle(ask.holder, tokens=tokens, usd=reply.usage.cost_usd if reply else 0.0))
    faultpoints.at("budget-settled")


def _hasten(work: Work, ask: Ask, sooner: Iterable[Sooner]) -> None:
    """Have steps come sooner; one that is over gives up its place to the next."""
    process, told = work.process, deque(sooner)
    while told:
        each = told.popleft()
        if each.seconds > 0:
            process.ledger.sooner(each.run_id, each.step_id, each.seconds)
        elif not process.wake(each.run_id, each.step_id):
            told += process.limiter.forget(f"{each.run_id}|{each.step_id}", ask, work.definitions.limits)


def _take(work: Work, ask: Ask) -> Granted | Wait | Exhausted:
    """Take leave; before a wait, see that nobody waits ahead whose run is over: nobody else may come to tell."""
    limiter, limits = work.process.limiter, work.definitions.limits
    while True:
        answer = limiter.take(ask, limits)
        if not (isinstance(answer, Wait) and answer.ahead):
            return answer
        tickets = limiter.front(ask, limits)
        over = [ticket for ticket in tickets if work.process.ledger.is_over(ticket.partition("|")[0])]
        if not over:
            return answer
        for ticket in over:
            _hasten(work, ask, limiter.forget(ticket, ask, limits))


def _ask(work: Work, model: Model, messages: Sequence[Message]) -> Ask:
    asked = len(json.dumps(list(messages), ensure_ascii=False)) // CHARACTERS_A_TOKEN + 1
    bound = model.params.get("max_tokens") or model.params.get("max_completion_tokens")
    answer = int(cast(int, bound)) if isinstance(bound, int | float) else USUAL_ANSWER
    usd = llm.most_usd(model.model, asked, answer) if work.definitions.limits.budgets != Budgets() else None
    return Ask(
        holder=work.begun.lease, model=model.model, tokens=asked + answer, usd=usd, tenant=work.begun.tenant,
        run_timeout_s=work.definitions.defaults.timeout_s,
    )  # fmt: skip
