"""Step kind → handler: what a worker can do. Frontends add theirs by entry points of the group `cantata.step_handlers`.

Such an entry point names a mapping of step kinds to handlers, such as `package.module:HANDLERS`.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from cantata_workers.process.step_context import Handler
from cantata_workers.steps import (
    agent_turns,
    decisions,
    instruction_steps,
    provider_batches,
    routing,
    session_history,
    team_calls,
    workflow_steps,
)
from cantata_workers.tools import commands, functions, mcp, memory_access, webhooks
from cantata_workers.tools.celery_tasks import task_calls

HANDLERS: dict[str, Handler] = {
    "run.start": decisions.run_start,
    "tool.call": functions.tool_call,
    "mcp.call": mcp.mcp_call,
    "task.call": task_calls.task_call,
    "proc.run": commands.proc_run,
    "agent.turn": agent_turns.agent_turn,
    "agent.run": decisions.agent_run,
    "agent.function": instruction_steps.agent_function,
    "agent.memory": memory_access.agent_memory,
    "agent.break": instruction_steps.agent_break,
    "agent.end": instruction_steps.agent_end,
    "team.run": decisions.team_run,
    "team.rules": routing.team_rules,
    "team.ask": team_calls.team_ask,
    "team.call": team_calls.team_call,
    "team.route": routing.team_route,
    "team.reply": routing.team_reply,
    "team.next": routing.team_next,
    "team.synthesize": team_calls.team_synthesize,
    "team.collect": team_calls.team_collect,
    "history.block": session_history.history_block,
    "chain.branch": decisions.chain_branch,
    "chain.map": decisions.chain_map,
    "chain.gather": decisions.chain_gather,
    "chain.run": decisions.chain_run,
    "chain.end": decisions.chain_end,
    "workflow.advance": workflow_steps.workflow_advance,
    "workflow.call": workflow_steps.workflow_call,
    "workflow.start": workflow_steps.workflow_start,
    "batch.create": provider_batches.batch_create,
    "batch.collect": provider_batches.batch_collect,
    "batch.cancel": provider_batches.batch_cancel,
    "webhook.deliver": webhooks.webhook_deliver,
}

for each in entry_points(group="cantata.step_handlers"):
    HANDLERS |= each.load()
