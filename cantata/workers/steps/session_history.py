"""Reads what was said before in the session of a turn, as far as a step is to see it.

Nobody adds to a conversation while a turn of it is under way, so each attempt of a step sees the same, unless somebody clears it.
"""

from __future__ import annotations

from itertools import chain
from typing import cast

from cantata.models.definitions import History
from cantata.models.graph import Outcome
from cantata.models.wire import HistoryEntry
from cantata.planning.turns import history
from cantata.state.sessions import conversations
from cantata.workers.runtime.step_context import StepContext, text_input


def shown_to(context: StepContext, settings: History, *, max_tokens: int) -> tuple[list[HistoryEntry], bool]:
    """The entries that someone with these settings sees, oldest first, and whether anything was said at all."""
    if not context.begun.session:
        return [], False
    entries = conversations.newest_first(context.process.ledger, context.begun.session)
    newest = next(entries, None)
    return ([], False) if newest is None else (history.select_entries(chain([newest], entries), settings, max_tokens=max_tokens), True)


def shown_to_agent(context: StepContext) -> list[HistoryEntry]:
    """The entries that the agent of this step sees."""
    if "history" not in context.params:
        return []
    settings = context.definitions.agents[context.text_param("agent")].history
    return shown_to(context, settings, max_tokens=int(cast(int, context.params["history"])))[0]


def history_block(context: StepContext) -> Outcome:
    """Puts what was said before an agent's input."""
    entries = shown_to_agent(context)
    return Outcome(output=history.with_history(entries, text_input(context)), detail={"entries": len(entries)})
