"""Step kind → handler, for Diskurs folders."""

from __future__ import annotations

from cantata_workers.frontends.diskurs import agents, conductor_steps, sequences, tool_calling
from cantata_workers.process.step_context import Handler

HANDLERS: dict[str, Handler] = {
    "diskurs.open": agents.diskurs_open,
    "diskurs.visit": conductor_steps.diskurs_visit,
    "diskurs.rules": conductor_steps.diskurs_rules,
    "diskurs.begin": agents.diskurs_begin,
    "diskurs.ask": agents.diskurs_ask,
    "diskurs.read": agents.diskurs_read,
    "diskurs.tool": tool_calling.diskurs_tool,
    "diskurs.gather": agents.diskurs_gather,
    "diskurs.heuristic": sequences.diskurs_heuristic,
    "diskurs.branch": sequences.diskurs_branch,
    "diskurs.join": sequences.diskurs_join,
    "diskurs.finalize": conductor_steps.diskurs_finalize,
    "diskurs.fail": conductor_steps.diskurs_fail,
}
