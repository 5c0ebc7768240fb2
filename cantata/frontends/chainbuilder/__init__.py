"""Dynamic chains in Python: chains that are made, joined and run one by one or in groups, and a state that any process can open.

    ChainBuilder ──edits──▶ Plan: the chains and what they depend on; a new value with each change
       │                      └── compiling ──▶ Definitions and a ChainRequest: one run for all chains that are executed together
       └── state.builders keeps the plan, and of each chain its run or its output

What a chain's status is, the ledger says.
"""

from cantata.frontends.chainbuilder.builder import ChainBuilder
from cantata.frontends.chainbuilder.head_tasks import tasks_in

__all__ = ["ChainBuilder", "tasks_in"]
