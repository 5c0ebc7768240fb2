"""Step kind → handler: the one table of what this worker can do."""

from __future__ import annotations

from workers import agents, decisions, tools
from workers.work import Handler

HANDLERS: dict[str, Handler] = {
    "run.start": decisions.run_start,
    "tool.call": tools.tool_call,
    "proc.run": tools.proc_run,
    "agent.turn": agents.agent_turn,
    "agent.run": decisions.agent_run,
    "team.run": decisions.team_run,
    "team.synthesize": agents.team_synthesize,
    "team.collect": agents.team_collect,
    "chain.branch": decisions.chain_branch,
    "chain.map": decisions.chain_map,
    "chain.gather": decisions.chain_gather,
    "chain.run": decisions.chain_run,
    "chain.end": decisions.chain_end,
}
