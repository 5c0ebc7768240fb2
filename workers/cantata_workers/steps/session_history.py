"""The session's conversation before a turn, as far as a step sees it.

A conversation does not change while a turn of it is running, unless it is cleared. So each attempt of a step sees the same entries.
"""

from __future__ import annotations

from itertools import chain

from cantata.flows.definitions import History
from cantata.flows.graph import Outcome
from cantata.flows.turns import history
from cantata.flows.wire import HistoryEntry
from cantata.ledger import conversations
from cantata_workers.process.step_context import StepContext, handles, text_input


def visible_entries(context: StepContext, settings: History, *, max_tokens: int) -> tuple[list[HistoryEntry], bool]:
    """Return the entries that these settings select, oldest first, and whether the conversation has any."""
    if not context.begun.session:
        return [], False
    entries = conversations.newest_first(context.process.ledger, context.begun.session)
    newest = next(entries, None)
    return (
        ([], False)
        if newest is None
        else (history.select_entries(chain([newest], entries), settings, max_tokens=max_tokens), True)
    )


def visible_to_agent(context: StepContext) -> list[HistoryEntry]:
    """Return the entries that the agent of this step sees."""
    if "history" not in context.params:
        return []
    settings = context.definitions.agents[context.text_param("agent")].history
    return visible_entries(context, settings, max_tokens=context.int_param("history"))[0]


@handles("history.block")
def history_block(context: StepContext) -> Outcome:
    """Put the session's conversation before an agent's input."""
    entries = visible_to_agent(context)
    return Outcome(output=history.with_history(entries, text_input(context)), detail={"entries": len(entries)})
