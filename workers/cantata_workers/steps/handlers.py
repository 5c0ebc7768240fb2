"""The modules with handlers, each of which is registered beside its function: `@handles("tool.call")`.

Frontends add theirs by entry points of the group `cantata.step_handlers`, each the name of a module.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from types import ModuleType

from cantata_workers.process.step_context import HANDLERS
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

__all__ = ["HANDLERS"]

MODULES = (
    agent_turns, commands, decisions, functions, instruction_steps, mcp, memory_access, provider_batches, routing, session_history,
    task_calls, team_calls, webhooks, workflow_steps,
)  # fmt: skip
"""Those of ours, imported."""

for each in entry_points(group="cantata.step_handlers"):
    if not isinstance(each.load(), ModuleType):
        raise TypeError(
            f"the entry point {each.name} = {each.value!r} of cantata.step_handlers is no module: name one that uses @handles"
        )
