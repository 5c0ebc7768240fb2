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


def shown_to(work: StepContext, settings: History, *, max_tokens: int) -> tuple[list[HistoryEntry], bool]:
    """The entries that someone with these settings sees, oldest first, and whether anything was said at all."""
    if not work.begun.session:
        return [], False
    entries = conversations.newest_first(work.process.ledger, work.begun.session)
    newest = next(entries, None)
    return ([], False) if newest is None else (history.shown(chain([newest], entries), settings, max_tokens=max_tokens), True)


def shown_to_agent(work: StepContext) -> list[HistoryEntry]:
    """The entries that the agent of this step sees."""
    if "history" not in work.params:
        return []
    settings = work.definitions.agents[work.text_param("agent")].history
    return shown_to(work, settings, max_tokens=int(cast(int, work.params["history"])))[0]


def history_block(work: StepContext) -> Outcome:
    """Puts what was said before an agent's input."""
    entries = shown_to_agent(work)
    return Outcome(output=history.before(entries, text_input(work)), detail={"entries": len(entries)})
