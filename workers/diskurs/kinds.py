"""Step kind → handler, of Diskurs folders."""

from __future__ import annotations

from workers.diskurs import agents, calls, conductors, sequences
from workers.work import Handler

HANDLERS: dict[str, Handler] = {
    "diskurs.open": agents.diskurs_open,
    "diskurs.visit": conductors.diskurs_visit,
    "diskurs.rules": conductors.diskurs_rules,
    "diskurs.begin": agents.diskurs_begin,
    "diskurs.ask": agents.diskurs_ask,
    "diskurs.read": agents.diskurs_read,
    "diskurs.tool": calls.diskurs_tool,
    "diskurs.gather": agents.diskurs_gather,
    "diskurs.heuristic": sequences.diskurs_heuristic,
    "diskurs.branch": sequences.diskurs_branch,
    "diskurs.join": sequences.diskurs_join,
    "diskurs.finalize": conductors.diskurs_finalize,
    "diskurs.fail": conductors.diskurs_fail,
}
