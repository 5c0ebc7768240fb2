"""Step kind → handler: the one table of what this worker can do."""

from __future__ import annotations

from workers import agents, commands, conversations, decisions, mcp, remembering, routers, routing, rows, teams, tools
from workers.diskurs import kinds as diskurs
from workers.work import Handler

HANDLERS: dict[str, Handler] = {
    "run.start": decisions.run_start,
    "tool.call": tools.tool_call,
    "mcp.call": mcp.mcp_call,
    "proc.run": commands.proc_run,
    "agent.turn": agents.agent_turn,
    "agent.run": decisions.agent_run,
    "agent.function": rows.agent_function,
    "agent.memory": remembering.agent_memory,
    "agent.break": rows.agent_break,
    "agent.end": rows.agent_end,
    "team.run": decisions.team_run,
    "team.rules": routing.team_rules,
    "team.ask": routers.team_ask,
    "team.call": routers.team_call,
    "team.route": routing.team_route,
    "team.reply": routing.team_reply,
    "team.next": routing.team_next,
    "team.synthesize": teams.team_synthesize,
    "team.collect": teams.team_collect,
    "history.block": conversations.history_block,
    "chain.branch": decisions.chain_branch,
    "chain.map": decisions.chain_map,
    "chain.gather": decisions.chain_gather,
    "chain.run": decisions.chain_run,
    "chain.end": decisions.chain_end,
    **diskurs.HANDLERS,
}
